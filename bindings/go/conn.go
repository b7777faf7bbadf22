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

// closeMax is how long Close waits until what was written has arrived.
const closeMax = time.Second

// Conn is an end of a byte stream.
type Conn struct {
	waiter        waiter
	stream        *C.farcall_stream
	local, remote Addr
	// Moved with the waiter's lock held.
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

// ready says of reading and of writing whether it would go on now, or fail.
func (c *Conn) ready() [2]bool {
	var readable, writable C.int
	err := outcome(func() C.int { return C.farcall_stream_ready(c.stream, &readable, &writable) })
	return [2]bool{err != nil || readable != 0, err != nil || writable != 0}
}

// named is an error as package net gives it: io.EOF as it is.
func (c *Conn) named(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errors.Is(err, os.ErrClosed) {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "farcall", Source: c.local, Addr: c.remote, Err: err}
}

// Read waits for bytes and reads what is there.
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

// Write writes all of it, as soon as there is room. What is written arrives without further calls.
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

// CloseWrite ends what this end writes; reading goes on.
func (c *Conn) CloseWrite() error {
	never := time.Time{}
	err := c.waiter.run(writing, &never, func() error {
		return outcome(func() C.int { return C.farcall_stream_shutdown(c.stream) })
	})
	return c.named("close", err)
}

// Close ends the stream, and waits for a second at most until what was written has arrived. Who reads or writes gets
// net.ErrClosed.
func (c *Conn) Close() error {
	if !c.waiter.close() {
		return c.named("close", net.ErrClosed)
	}
	err := outcome(func() C.int { return C.farcall_stream_close(c.stream, C.uint64_t(closeMax.Microseconds())) })
	return c.named("close", err)
}

// LocalAddr is the listener's address at the accepting end, and empty at the other one.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is where the other end is.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline bounds how long reading and writing may wait; the zero time is for ever.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline bounds how long reading may wait.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readDeadline) }

// SetWriteDeadline bounds how long writing may wait.
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
