//! Counts the system calls of a thread of this process. A process cannot trace itself, so a peer process does it.

use crate::measure::{Traced, count_syscalls};
use crate::peer::{self, PeerError, PeerLauncher, PeerPlace, PeerTask};
use farcall_verbs::with_sources;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Messages of the peer.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// The window begins, or ends.
    Mark,
    /// Number of system calls, or the reason why they cannot be counted.
    Counted(Result<u64, String>),
}

/// Counts the system calls of thread `tid` of this process for `window`, by a peer pinned to `core`. Blocks, so the
/// caller must be another thread than the counted one. `mark` is called when the window begins, and again when it
/// ends.
///
/// # Errors
/// Returns an error if the system calls cannot be counted.
pub fn count_own_thread(
    launcher: &PeerLauncher,
    core: usize,
    tid: i32,
    window: Duration,
    mut mark: impl FnMut(),
) -> Result<u64, PeerError> {
    let peer = launcher.start(&TraceParent { tid, window }, core, &[])?;
    peer.pid().into_iter().for_each(permit_tracing_by);
    peer::send(peer.control(), &())?;
    loop {
        match peer::receive(peer.control())? {
            Said::Mark => mark(),
            Said::Counted(count) => return count.map_err(PeerError::Part),
        }
    }
}

/// Permits `pid` to trace this process. Under Yama's default setting only ancestors may trace, unless the traced
/// process names another process.
fn permit_tracing_by(pid: u32) {
    // SAFETY: `prctl` with `PR_SET_PTRACER` takes only integers and accesses no memory. It fails where Yama is absent,
    // and tracing is then permitted anyway.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid), 0, 0, 0) };
}

/// Task of the peer: waits for a start message, counts the system calls of a thread of its parent, and reports the
/// count.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct TraceParent {
    /// Kernel thread id.
    tid: i32,
    /// Duration of the count.
    window: Duration,
}

impl PeerTask for TraceParent {
    const KIND: &'static str = "trace-parent";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        place.ready()?;
        peer::receive::<()>(place.control())?;
        // A mark that cannot be sent is ignored: the parent has exited.
        let mark = || drop(peer::send(place.control(), &Said::Mark));
        let counted = count_syscalls(Traced::Thread(self.tid), self.window, mark);
        peer::send(place.control(), &Said::Counted(counted.map_err(|error| with_sources(&error))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Cores;
    use crate::peer::tests::launcher as tests_launcher;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn calls_of_one_thread_are_counted_and_those_of_others_are_not() {
        let core = Cores::allowed().unwrap().as_slice()[0];
        let stop = AtomicBool::new(false);
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            for is_caller in [true, false] {
                let (sender, stop) = (sender.clone(), &stop);
                scope.spawn(move || {
                    sender.send((is_caller, rustix::thread::gettid().as_raw_nonzero().get())).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        if is_caller {
                            std::hint::black_box(rustix::process::getppid());
                        }
                        std::hint::spin_loop();
                    }
                });
            }
            let tids: Vec<(bool, i32)> = receiver.iter().take(2).collect();
            for (is_caller, tid) in tids {
                let count = || {
                    let (mut marks, window) = (0, Duration::from_millis(30));
                    count_own_thread(&tests_launcher(), core, tid, window, || marks += 1)
                        .map(|count| (count, marks))
                };
                // On a busy machine a window may pass in which the scheduler does not run the counted thread.
                let is_looked_for = |counted: &Result<_, _>| !is_caller || !matches!(counted, Ok((0, _)));
                let counted = (0..100).map(|_| count()).find(is_looked_for).expect("no call was counted");
                // Sandboxes may forbid tracing.
                match counted {
                    Ok((count, marks)) => assert_eq!((count > 0, marks), (is_caller, 2), "{count}"),
                    Err(why) => assert!(why.to_string().contains("SYS_PTRACE"), "{why}"),
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
