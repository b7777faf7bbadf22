package farcall

/*
#include <farcall.h>
*/
import "C"

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
	"unsafe"
)

// closeMax is the maximum time for which Close waits until the written bytes have arrived.
const closeMax = time.Second

// Conn is an end of a byte stream.
type Conn struct {
	waiter        waiter
	stream        *C.farcall_stream
	local, remote Addr
	// Read and changed with the lock of waiter held.
	readDeadline, writeDeadline time.Time
}

var _ net.Conn = (*Conn)(nil)

func newConn(stream *C.farcall_stream, local Addr) (*Conn, error) {
	conn := &Conn{stream: stream, local: local}
	conn.waiter.ready = conn.ready
	var fd C.int
	remote, err := text(func(room *C.char, roomBytes C.size_t) C.int {
		return C.farcall_stream_peer_address(stream, room, roomBytes)
	})
	if err == nil {
		err = outcome(func() C.int { return C.farcall_stream_fd(stream, &fd) })
	}
	if err == nil {
		err = conn.waiter.watch(int(fd))
	}
	if err != nil {
		C.farcall_stream_reset(stream)
		return nil, err
	}
	conn.remote = Addr(remote)
	return conn, nil
}

// ready returns whether a read and a write could proceed, or fail, without waiting.
func (c *Conn) ready() [2]bool {
	var readable, writable C.int
	err := outcome(func() C.int { return C.farcall_stream_ready(c.stream, &readable, &writable) })
	return [2]bool{err != nil || readable != 0, err != nil || writable != 0}
}

// named converts an error to the form of package net, except io.EOF.
func (c *Conn) named(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errors.Is(err, os.ErrClosed) {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "farcall", Source: c.local, Addr: c.remote, Err: err}
}

// Read waits for bytes and reads the available ones.
func (c *Conn) Read(into []byte) (int, error) {
	var read C.size_t
	err := c.waiter.run(reading, &c.readDeadline, func() error {
		if len(into) == 0 {
			return nil
		}
		err := outcome(func() C.int {
			return C.farcall_stream_read(c.stream, unsafe.Pointer(&into[0]), C.size_t(len(into)), &read)
		})
		if err == nil && read == 0 {
			return io.EOF
		}
		return err
	})
	return int(read), c.named("read", err)
}

// Write writes all bytes, and waits for space if necessary. They arrive at the peer without further calls.
func (c *Conn) Write(from []byte) (int, error) {
	done := 0
	for done < len(from) {
		var written C.size_t
		err := c.waiter.run(writing, &c.writeDeadline, func() error {
			rest := from[done:]
			return outcome(func() C.int {
				return C.farcall_stream_write(c.stream, unsafe.Pointer(&rest[0]), C.size_t(len(rest)), &written)
			})
		})
		if err != nil {
			return done, c.named("write", err)
		}
		done += int(written)
	}
	return done, nil
}

// CloseWrite ends the outgoing direction. This end can still read.
func (c *Conn) CloseWrite() error {
	never := time.Time{}
	err := c.waiter.run(writing, &never, func() error {
		return outcome(func() C.int { return C.farcall_stream_shutdown(c.stream) })
	})
	return c.named("close", err)
}

// Close closes the stream and waits, at most one second, until the written bytes have arrived. Reads and writes that
// are waiting fail with net.ErrClosed.
func (c *Conn) Close() error {
	if !c.waiter.close() {
		return c.named("close", net.ErrClosed)
	}
	err := outcome(func() C.int { return C.farcall_stream_close(c.stream, C.uint64_t(closeMax.Microseconds())) })
	return c.named("close", err)
}

// LocalAddr returns the address of the listener at the accepting end, and an empty address at the connecting end.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the peer.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the deadlines of reading and writing; the zero time means none.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline sets the deadline of reading; the zero time means none.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readDeadline) }

// SetWriteDeadline sets the deadline of writing; the zero time means none.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeDeadline) }

func (c *Conn) setDeadlines(t time.Time, deadlines ...*time.Time) error {
	c.waiter.mu.Lock()
	defer c.waiter.mu.Unlock()
	if c.waiter.closed {
		return c.named("set", net.ErrClosed)
	}
	for _, deadline := range deadlines {
		*deadline = t
	}
	c.waiter.lookAgain()
	return nil
}
