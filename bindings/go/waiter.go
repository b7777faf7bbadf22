package farcall

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// waiter lets goroutines share an object of the library, which one at a time may use, and wait until what would have
// blocked may go on.
type waiter struct {
	mu sync.Mutex
	// file is a copy of the object's descriptor: the runtime's poller tells when it becomes readable.
	file *os.File
	// turn is closed when whoever waits should look again.
	turn chan struct{}
	// waiting counts who waits, by direction.
	waiting [2]int
	closed  bool
	// ready says of reading and of writing whether it would go on now.
	ready func() [2]bool
}

const (
	reading = iota
	writing
)

// watch begins to wait on a descriptor.
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
		// Ends when the file is closed. Each edge is told; nothing is read.
		_ = raw.Read(func(uintptr) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lookAgain()
			return w.closed
		})
	}()
	return nil
}

// lookAgain wakes who waits; the lock is held.
func (w *waiter) lookAgain() {
	if w.waiting[reading]+w.waiting[writing] > 0 {
		close(w.turn)
		w.turn = make(chan struct{})
	}
}

// run calls until the object does not say that it would block, it is closed, or the deadline has passed, which may move
// meanwhile. A call that went on may have taken what another one waits for, so that one looks again.
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
		// So may one that would block: then the descriptor has nothing to tell any more.
		if other := 1 - direction; w.waiting[other] > 0 && w.ready()[other] {
			w.lookAgain()
		}
		w.wait(direction, *deadline)
	}
}

// wait lets the lock go until there is something to look at.
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

// close ends all waiting. It tells whether this was the first time.
func (w *waiter) close() bool {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.lookAgain()
	w.mu.Unlock()
	if first {
		// Waits for the goroutine of watch, which wants the lock.
		_ = w.file.Close()
	}
	return first
}
