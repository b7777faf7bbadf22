// Package farcall provides byte streams over RDMA verbs as net.Conn and net.Listener, for net/http, gRPC and other
// packages that use these interfaces. It is a translation of the C library of Farcall (farcall.h), which pkg-config
// must find.
//
// A stream carries reliable, ordered bytes in both directions between two processes. Several goroutines may read,
// write, set deadlines and close concurrently. A goroutine that waits occupies no thread of the operating system: the
// runtime's poller waits for it.
package farcall

/*
#cgo pkg-config: farcall
#include <farcall.h>
#include <stdlib.h>
*/
import "C"

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"
	"unsafe"
)

// Error is a failure of the library.
type Error struct {
	// Code is a farcall_code of farcall.h.
	Code int
	// Message names the operation, the object, the cause and the remedy.
	Message string
}

func (e *Error) Error() string { return e.Message }

// Timeout returns whether a timeout expired. It implements net.Error.
func (e *Error) Timeout() bool { return e.Code == C.FARCALL_TIMED_OUT }

// Temporary returns the same as Timeout. It implements net.Error.
func (e *Error) Temporary() bool { return e.Timeout() }

// outcome calls a function of the library and returns its failure. It locks the goroutine to its
// thread, because the library stores the message of a failure per thread.
func outcome(call func() C.int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	switch code := call(); code {
	case C.FARCALL_OK:
		return nil
	case C.FARCALL_WOULD_BLOCK:
		return errWouldBlock
	default:
		return &Error{Code: int(code), Message: C.GoString(C.farcall_error_message())}
	}
}

var errWouldBlock = fmt.Errorf("farcall: it would have to wait")

// Addr is the address of an end of a stream: "host:port" of the handshake.
type Addr string

// Network returns the name of the network, "farcall".
func (Addr) Network() string { return "farcall" }

func (a Addr) String() string { return string(a) }

// options returns the options of all streams and listeners of this package: only connecting waits in the library.
func options(connectTimeout time.Duration) (C.farcall_options, error) {
	var options C.farcall_options
	err := outcome(func() C.int { return C.farcall_options_init(&options, C.size_t(unsafe.Sizeof(options))) })
	options.nonblocking = 1
	options.connect_timeout_us = C.uint64_t(connectTimeout.Microseconds())
	return options, err
}

// text calls a function of the library that writes a text of at most 64 bytes, and returns the text.
func text(ask func(room *C.char, roomBytes C.size_t) C.int) (string, error) {
	var room [64]C.char
	err := outcome(func() C.int { return ask(&room[0], C.size_t(len(room))) })
	return C.GoString(&room[0]), err
}

// Dial connects to the listener at an address, "host:port".
func Dial(address string) (net.Conn, error) {
	return DialContext(context.Background(), "farcall", address)
}

// DialContext connects to the listener at an address before the deadline of the context, which is 5 seconds if the
// context has none. Cancelling the context later has no effect. The network is ignored: the function has the signature
// that http.Transport requires.
func DialContext(ctx context.Context, _ string, address string) (net.Conn, error) {
	timeout := 5 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
		if timeout < time.Microsecond {
			return nil, context.DeadlineExceeded
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	options, err := options(timeout)
	if err != nil {
		return nil, err
	}
	name := C.CString(address)
	defer C.free(unsafe.Pointer(name))
	var stream *C.farcall_stream
	err = outcome(func() C.int { return C.farcall_stream_connect(name, &options, &stream) })
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "farcall", Addr: Addr(address), Err: err}
	}
	return newConn(stream, "")
}
