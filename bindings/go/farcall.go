// Package farcall has byte streams over RDMA verbs as net.Conn and net.Listener, for net/http, gRPC and whatever else
// takes them. It is a translation of the C library of Farcall (farcall.h), which pkg-config must find.
//
// A stream is reliable, ordered bytes in both directions between two processes. Several goroutines may read, write, set
// deadlines and close at once. No thread of the system waits with them: the runtime's poller does.
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
	// Message says what failed, where, why, and what to do.
	Message string
}

func (e *Error) Error() string { return e.Message }

// Timeout tells whether the time was over: a part of net.Error.
func (e *Error) Timeout() bool { return e.Code == C.FARCALL_TIMED_OUT }

// Temporary is a part of net.Error.
func (e *Error) Temporary() bool { return e.Timeout() }

// outcome calls a function of the library. The words of a failure belong to the thread that it happened in.
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

// Addr is where an end of a stream is: "host:port" of the handshake.
type Addr string

// Network is the name of this kind of connection.
func (Addr) Network() string { return "farcall" }

func (a Addr) String() string { return string(a) }

// options are those of everything here: nothing waits in the library but connecting.
func options(connectTimeout time.Duration) (C.farcall_options, error) {
	var options C.farcall_options
	err := outcome(func() C.int { return C.farcall_options_init(&options, C.size_t(unsafe.Sizeof(options))) })
	options.nonblocking = 1
	options.connect_timeout_us = C.uint64_t(connectTimeout.Microseconds())
	return options, err
}

// text asks the library for a text.
func text(ask func(room *C.char, roomBytes C.size_t) C.int) (string, error) {
	var room [64]C.char
	err := outcome(func() C.int { return ask(&room[0], C.size_t(len(room))) })
	return C.GoString(&room[0]), err
}

// Dial connects to a listener.
func Dial(address string) (net.Conn, error) {
	return DialContext(context.Background(), "farcall", address)
}

// DialContext connects to a listener before the context's deadline; cancelling it otherwise is of no account. It is of
// the form that http.Transport takes. The network is of no account.
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
