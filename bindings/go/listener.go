package farcall

/*
#include <farcall.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"net"
	"os"
	"time"
	"unsafe"
)

// Listener accepts byte streams.
type Listener struct {
	waiter   waiter
	listener *C.farcall_listener
	address  Addr
}

var _ net.Listener = (*Listener)(nil)

// Listen listens at an address, "host:port". For port 0 the system chooses a port.
func Listen(address string) (*Listener, error) {
	options, err := options(0)
	if err != nil {
		return nil, err
	}
	name := C.CString(address)
	defer C.free(unsafe.Pointer(name))
	l := &Listener{}
	if err := outcome(func() C.int { return C.farcall_listen(name, &options, &l.listener) }); err != nil {
		return nil, &net.OpError{Op: "listen", Net: "farcall", Addr: Addr(address), Err: err}
	}
	var fd C.int
	at, err := text(func(room *C.char, roomBytes C.size_t) C.int {
		return C.farcall_listener_address(l.listener, room, roomBytes)
	})
	if err == nil {
		err = outcome(func() C.int { return C.farcall_listener_fd(l.listener, &fd) })
	}
	if err == nil {
		err = l.waiter.watch(int(fd))
	}
	if err != nil {
		C.farcall_listener_close(l.listener)
		return nil, err
	}
	l.address = Addr(at)
	return l, nil
}

// Accept waits for a stream and accepts it.
func (l *Listener) Accept() (net.Conn, error) {
	never := time.Time{}
	var stream *C.farcall_stream
	err := l.waiter.run(reading, &never, func() error {
		return outcome(func() C.int { return C.farcall_listener_accept(l.listener, &stream) })
	})
	if errors.Is(err, os.ErrClosed) {
		err = net.ErrClosed
	}
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: "farcall", Addr: l.address, Err: err}
	}
	return newConn(stream, l.address)
}

// Close closes the listener. Accepted streams remain open. Calls of Accept that are waiting fail with net.ErrClosed.
func (l *Listener) Close() error {
	if !l.waiter.close() {
		return &net.OpError{Op: "close", Net: "farcall", Addr: l.address, Err: net.ErrClosed}
	}
	C.farcall_listener_close(l.listener)
	return nil
}

// Addr returns the address at which the listener listens.
func (l *Listener) Addr() net.Addr { return l.address }
