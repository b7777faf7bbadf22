//! Counts the system calls of a running process during a period, by ptrace(2).
//!
//! Counted is every entry of any thread of the process into the kernel by a system call, from the time when all
//! threads are attached until the period ends. Calls served by the vDSO (`clock_gettime`) are not system calls. A call
//! in which a thread was blocked when it was attached is restarted by the kernel and counts once; page faults and
//! interrupts do not count. Each call is delayed by two stops, so measurements of speed during the period are invalid;
//! a process that makes no calls runs at full speed.
//!
//! The following may count: an ancestor its descendants, a process that the counted process named with
//! `PR_SET_PTRACER`, and root.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use std::{fs, io, mem, ptr, thread};

/// Sleep of the tracer when no thread has stopped.
const NAP: Duration = Duration::from_micros(50);
/// Timeout of attaching and of detaching.
const PATIENCE: Duration = Duration::from_secs(2);

/// Error of counting system calls.
#[derive(Debug, thiserror::Error)]
pub enum SyscallError {
    /// The process does not exist or its threads cannot be listed.
    #[error("cannot list the threads of process {pid} (it may have ended)")]
    Threads {
        /// Process id.
        pid: u32,
        /// Error of listing them.
        source: io::Error,
    },
    /// Tracing is not permitted.
    #[error(
        "cannot trace thread {tid} (only a parent, a tracer named with PR_SET_PTRACER or root may, and containers \
         often forbid it: docker run --cap-add SYS_PTRACE)"
    )]
    Attach {
        /// Kernel thread id.
        tid: i32,
        /// Error of ptrace(2).
        source: io::Error,
    },
    /// The traced process or thread has exited.
    #[error("{0:?} has ended")]
    Gone(Traced),
    /// The threads did not stop before the timeout.
    #[error("the threads to be traced did not stop within {PATIENCE:?}")]
    Stuck,
    /// The tracing thread panicked.
    #[error("the tracing thread ended early; this is a defect of farcall")]
    Tracer,
}

/// Threads whose system calls are counted.
#[derive(Debug, Clone, Copy)]
pub enum Traced {
    /// All threads of a process, including those that it starts during the period.
    Process(u32),
    /// One thread of another process, by its kernel id.
    Thread(i32),
}

/// Counts system calls for `window`. `mark` is called when all threads are attached, and again when the period ends,
/// so that the caller can count its operations between the two.
///
/// # Errors
/// Returns an error if the process has exited, may not be traced, or does not stop.
pub fn count_syscalls(
    traced: Traced,
    window: Duration,
    mut mark: impl FnMut() + Send,
) -> Result<u64, SyscallError> {
    // The tracer has a thread of its own. Tracees belong to the thread that attached them, and __WNOTHREAD keeps its
    // waits separate from the caller's children.
    thread::scope(|scope| {
        let tracer = scope.spawn(move || {
            let mut tracer = Tracer::attach(traced)?;
            mark();
            let count = tracer.watch(window);
            mark();
            tracer.detach();
            Ok(count)
        });
        tracer.join().map_err(|_| SyscallError::Tracer)?
    })
}

/// Traced threads, and whether each is currently stopped.
#[derive(Default)]
struct Tracer {
    stopped: HashMap<i32, bool>,
}

/// A change of state that `waitpid` reported.
enum Event {
    /// The thread entered a system call.
    Entry,
    /// The thread left a system call, or stopped only because of tracing.
    Stop,
    /// The thread is about to receive a signal, which must be passed on.
    Signal(i32),
    /// The thread was stopped by job control and must remain stopped.
    GroupStop,
    /// The thread has exited.
    Gone,
}

impl Tracer {
    fn attach(traced: Traced) -> Result<Self, SyscallError> {
        let options = match traced {
            Traced::Process(_) => libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE,
            Traced::Thread(_) => libc::PTRACE_O_TRACESYSGOOD,
        };
        let mut tracer = Self::default();
        // A thread may be started while others are attached, so list until there is no new one. A thread that exits
        // between listing and attaching is not attached and not listed again.
        loop {
            let listed = match traced {
                Traced::Process(pid) => threads_of(pid)?,
                Traced::Thread(tid) => vec![tid],
            };
            let fresh: Vec<i32> =
                listed.into_iter().filter(|tid| !tracer.stopped.contains_key(tid)).collect();
            let mut any = false;
            for tid in fresh {
                any |= tracer.seize(tid, options)?;
            }
            if !any {
                break;
            }
        }
        if tracer.stopped.is_empty() {
            return Err(SyscallError::Gone(traced));
        }
        tracer.wait_until_stopped()
    }

    fn wait_until_stopped(mut self) -> Result<Self, SyscallError> {
        let tracer = &mut self;
        let deadline = Instant::now() + PATIENCE;
        while tracer.stopped.values().any(|stopped| !stopped) {
            if Instant::now() > deadline {
                self.detach();
                return Err(SyscallError::Stuck);
            }
            if let Some((tid, event)) = tracer.next_event() {
                match event {
                    Event::Gone => drop(tracer.stopped.remove(&tid)),
                    // The signal is delivered when the thread resumes.
                    Event::Signal(signal) => tracer.resume(tid, signal),
                    _ => drop(tracer.stopped.insert(tid, true)),
                }
            }
        }
        Ok(self)
    }

    /// Attaches a thread. Returns false if it has exited.
    fn seize(&mut self, tid: i32, options: i32) -> Result<bool, SyscallError> {
        match ptrace(libc::PTRACE_SEIZE, tid, options as usize) {
            Ok(()) => {
                self.stopped.insert(tid, false);
                // Fails only if the thread has exited, which waitpid(2) reports.
                let _ = ptrace(libc::PTRACE_INTERRUPT, tid, 0);
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(source) => {
                mem::take(self).detach();
                Err(SyscallError::Attach { tid, source })
            }
        }
    }

    fn watch(&mut self, window: Duration) -> u64 {
        let tids: Vec<i32> = self.stopped.keys().copied().collect();
        tids.into_iter().for_each(|tid| self.resume(tid, 0));
        let mut count = 0;
        let deadline = Instant::now() + window;
        while Instant::now() < deadline && !self.stopped.is_empty() {
            let Some((tid, event)) = self.next_event() else {
                thread::sleep(NAP);
                continue;
            };
            match event {
                Event::Gone => drop(self.stopped.remove(&tid)),
                Event::Entry => {
                    count += 1;
                    self.resume(tid, 0);
                }
                Event::Stop => self.resume(tid, 0),
                Event::Signal(signal) => self.resume(tid, signal),
                Event::GroupStop => self.listen(tid),
            }
        }
        count
    }

    /// Detaches every thread. A thread must be stopped for that, so running ones are stopped first.
    fn detach(mut self) {
        for (tid, stopped) in &self.stopped {
            if !stopped {
                let _ = ptrace(libc::PTRACE_INTERRUPT, *tid, 0);
            }
        }
        let standing: Vec<i32> = self.stopped.iter().filter(|entry| *entry.1).map(|entry| *entry.0).collect();
        for tid in standing {
            self.release(tid, 0);
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.stopped.is_empty() && Instant::now() < deadline {
            match self.next_event() {
                None => thread::sleep(NAP),
                Some((tid, Event::Gone)) => drop(self.stopped.remove(&tid)),
                Some((tid, Event::Signal(signal))) => self.release(tid, signal),
                Some((tid, _)) => self.release(tid, 0),
            }
        }
        // Remaining threads run untraced once this thread exits: the kernel then detaches seized threads.
    }

    fn release(&mut self, tid: i32, signal: i32) {
        let _ = ptrace(libc::PTRACE_DETACH, tid, signal as usize);
        self.stopped.remove(&tid);
    }

    fn resume(&mut self, tid: i32, signal: i32) {
        // Fails only if the thread was killed in the meantime, which waitpid(2) reports.
        let _ = ptrace(libc::PTRACE_SYSCALL, tid, signal as usize);
        self.stopped.insert(tid, false);
    }

    fn listen(&mut self, tid: i32) {
        let _ = ptrace(libc::PTRACE_LISTEN, tid, 0);
        self.stopped.insert(tid, false);
    }

    fn next_event(&mut self) -> Option<(i32, Event)> {
        let mut status = 0;
        let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
        // SAFETY: `status` is a live local variable that the call writes.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, flags) };
        (tid > 0).then(|| (tid, classify(tid, status)))
    }
}

fn classify(tid: i32, status: i32) -> Event {
    if !libc::WIFSTOPPED(status) {
        return Event::Gone;
    }
    let (signal, ptrace_event) = (libc::WSTOPSIG(status), status >> 16);
    if signal == libc::SIGTRAP | 0x80 {
        return if is_entering_syscall(tid) { Event::Entry } else { Event::Stop };
    }
    if ptrace_event == libc::PTRACE_EVENT_STOP {
        // A stop by job control carries its signal; a stop by PTRACE_INTERRUPT, or of a new thread, carries SIGTRAP.
        return if signal == libc::SIGTRAP { Event::Stop } else { Event::GroupStop };
    }
    if ptrace_event != 0 {
        return Event::Stop;
    }
    Event::Signal(signal)
}

/// Returns whether a stopped thread is entering a system call rather than leaving one.
fn is_entering_syscall(tid: i32) -> bool {
    // SAFETY: the structure consists of integers and a union of integers, for which zero is valid.
    let mut info: libc::ptrace_syscall_info = unsafe { mem::zeroed() };
    let (size, place) = (size_of_val(&info), (&raw mut info).cast::<libc::c_void>());
    // SAFETY: the kernel writes at most `size` bytes to `info`, a live local variable of exactly that size.
    let filled = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size, place) };
    filled > 0 && info.op == libc::PTRACE_SYSCALL_INFO_ENTRY
}

fn ptrace(request: libc::c_uint, tid: i32, data: usize) -> io::Result<()> {
    // SAFETY: the requests that callers pass here access no memory of this process: address and data are integers.
    let result = unsafe { libc::ptrace(request, tid, ptr::null_mut::<libc::c_void>(), data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn threads_of(pid: u32) -> Result<Vec<i32>, SyscallError> {
    let entries =
        fs::read_dir(format!("/proc/{pid}/task")).map_err(|source| SyscallError::Threads { pid, source })?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A child that is killed at the end of its test, even if the test fails.
    struct Script(Child);

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn shell(script: &str) -> Script {
        let mut command = Command::new("sh");
        Script(command.args(["-c", script]).stdout(Stdio::null()).stdin(Stdio::null()).spawn().unwrap())
    }

    fn end(mut child: Script) {
        // The child must have survived the tracing.
        assert!(child.0.try_wait().unwrap().is_none(), "the traced process ended");
    }

    fn count(child: &Child, window_ms: u64) -> Result<u64, SyscallError> {
        count_syscalls(Traced::Process(child.id()), Duration::from_millis(window_ms), || {})
    }

    /// Sandboxes may forbid tracing. The result must then be an error with a remedy, and does not indicate a fault of
    /// the counter.
    fn permitted(result: Result<u64, SyscallError>) -> Option<u64> {
        match result {
            Err(error @ SyscallError::Attach { .. }) => {
                assert!(error.to_string().contains("SYS_PTRACE"));
                None
            }
            other => Some(other.unwrap()),
        }
    }

    #[test]
    fn a_writer_is_seen_and_survives() {
        let child = shell("while :; do echo x; done");
        // On a busy machine a period may pass in which the scheduler does not run the writer.
        assert!((0..100).any(|_| permitted(count(&child.0, 100)) != Some(0)));
        end(child);
    }

    #[test]
    fn a_spinner_makes_none_even_when_signalled() {
        let child = shell("trap '' USR1; while :; do :; done");
        // A process that has computed this long has finished its start-up calls.
        let stat = format!("/proc/{}/stat", child.0.id());
        let user_ticks =
            || -> u64 { fs::read_to_string(&stat).unwrap().split(' ').nth(13).unwrap().parse().unwrap() };
        while user_ticks() < 5 {
            thread::yield_now();
        }
        let signal = || {
            let pid = rustix::process::Pid::from_child(&child.0);
            rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
        };
        let seen = count_syscalls(Traced::Process(child.0.id()), Duration::from_millis(50), signal);
        assert_eq!(permitted(seen).unwrap_or(0), 0);
        end(child);
    }

    #[test]
    fn a_sleeper_is_let_go_and_ends_by_itself() {
        // Sleeps until its input is closed, however long that takes here.
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        permitted(count(&child, 30));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_ended_is_an_error() {
        let mut child = shell("exit 0");
        child.0.wait().unwrap();
        assert!(matches!(count(&child.0, 10), Err(SyscallError::Threads { .. })));
    }
}
