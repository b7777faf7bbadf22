package farcall

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// waiter shares an object of the library, which one goroutine at a time may use, between goroutines. They wait until a
// call that would have blocked may continue.
type waiter struct {
	mu sync.Mutex
	// file is a duplicate of the object's descriptor. The runtime's poller reports when it becomes readable.
	file *os.File
	// turn is closed, and replaced, to make all waiting goroutines repeat their calls.
	turn chan struct{}
	// waiting is the number of waiting goroutines in each direction.
	waiting [2]int
	closed  bool
	// ready returns whether a read and a write could proceed without waiting.
	ready func() [2]bool
}

const (
	reading = iota
	writing
)

// watch duplicates a descriptor and starts to wait for it.
func (w *waiter) watch(fd int) error {
	copied, err := syscall.Dup(fd)
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	syscall.CloseOnExec(copied)
	if err := syscall.SetNonblock(copied, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	w.file, w.turn = os.NewFile(uintptr(copied), "farcall"), make(chan struct{})
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	go func() {
		// Read calls the function for each event and reads nothing. It returns when the file is closed.
		_ = raw.Read(func(uintptr) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lookAgain()
			return w.closed
		})
	}()
	return nil
}

// lookAgain makes all waiting goroutines repeat their calls. The caller holds the lock.
func (w *waiter) lookAgain() {
	if w.waiting[reading]+w.waiting[writing] > 0 {
		close(w.turn)
		w.turn = make(chan struct{})
	}
}

// run repeats call until it does not fail with errWouldBlock, the object is closed, or the deadline has passed. The
// deadline may change in the meantime. A call that returns may have consumed the event for which other goroutines wait,
// so they repeat their calls.
func (w *waiter) run(direction int, deadline *time.Time, call func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if w.closed {
			return os.ErrClosed
		}
		if !deadline.IsZero() && !time.Now().Before(*deadline) {
			return os.ErrDeadlineExceeded
		}
		if err := call(); err != errWouldBlock {
			w.lookAgain()
			return err
		}
		// A call that would have blocked may also have consumed the event for which the other direction waits. The
		// descriptor does not report it again.
		if other := 1 - direction; w.waiting[other] > 0 && w.ready()[other] {
			w.lookAgain()
		}
		w.wait(direction, *deadline)
	}
}

// wait releases the lock until lookAgain is called or the deadline has passed.
func (w *waiter) wait(direction int, deadline time.Time) {
	var late <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		late = timer.C
	}
	turn := w.turn
	w.waiting[direction]++
	w.mu.Unlock()
	select {
	case <-turn:
	case <-late:
	}
	w.mu.Lock()
	w.waiting[direction]--
}

// close ends all waiting. It returns whether this is the first call.
func (w *waiter) close() bool {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.lookAgain()
	w.mu.Unlock()
	if first {
		// This waits for the goroutine of watch, which needs the lock; hence the lock was released.
		_ = w.file.Close()
	}
	return first
}
