//! Counting the system calls of a thread of this process, which cannot trace itself: a peer process does it.

use crate::baseline::{PeerLauncher, PeerTask};
use crate::measure::{SyscallCount, Traced, count_syscalls};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What the peer says when the window begins and when it ends.
const ATTACHED: u8 = b'a';
const DETACHING: u8 = b'd';

/// Counts the system calls of thread `tid` of this process for `window`, by a peer pinned to `core`. Blocks; call it from
/// another thread than the one counted. `on_attached` and `on_detaching` mark the window.
///
/// # Errors
/// Why it cannot be counted, in a sentence.
pub fn count_own_thread(
    launcher: &PeerLauncher,
    core: usize,
    tid: i32,
    window: Duration,
    on_attached: impl FnOnce(),
    on_detaching: impl FnOnce(),
) -> Result<SyscallCount, String> {
    let task = PeerTask::Tracer { tid, window_ms: window.as_millis() as u64 };
    let peer = launcher.start(task, core, &[]).map_err(|error| error.to_string())?;
    permit_tracing_by(peer.pid());
    let mut control = BufReader::new(peer.control());
    let talk = |error: io::Error| format!("the tracing process ended: {error}");
    let mut stream = peer.control();
    stream.write_all(b"g").map_err(talk)?;
    let mut mark = [0];
    control.read_exact(&mut mark).map_err(talk)?;
    if mark[0] == ATTACHED {
        on_attached();
        control.read_exact(&mut mark).map_err(talk)?;
        on_detaching();
    }
    let mut line = String::new();
    control.read_line(&mut line).map_err(talk)?;
    serde_json::from_str::<Result<SyscallCount, String>>(&line).map_err(|error| error.to_string())?
}

/// Under Yama's usual setting only ancestors may trace, unless the traced process names another.
fn permit_tracing_by(pid: u32) {
    // SAFETY: the call takes plain numbers. It fails where Yama is absent, and tracing is permitted then.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid), 0, 0, 0) };
}

/// The peer's part: waits for the go-ahead, counts, reports.
///
/// # Errors
/// When the parent is gone.
pub(crate) fn trace_parent(control: UnixStream, tid: i32, window: Duration) -> io::Result<()> {
    (&control).read_exact(&mut [0])?;
    // Marks that cannot be sent are missed by nobody: the parent is gone then.
    let say = |mark: u8| drop((&control).write_all(&[mark]));
    let counted = count_syscalls(Traced::Thread(tid), window, || say(ATTACHED), || say(DETACHING));
    let result = counted.map_err(|error| error.to_string());
    if result.is_err() {
        // Any other mark: there was no window.
        say(b'x');
    }
    writeln!(&control, "{}", serde_json::to_string(&result)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::tests_launcher;
    use crate::measure::Cores;
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
                let mut marks = 0;
                let window = Duration::from_millis(30);
                let counted = count_own_thread(&tests_launcher(), core, tid, window, || {}, || marks += 1);
                // Sandboxes may forbid tracing.
                match counted {
                    Ok(count) => assert_eq!((count.total > 0, marks), (is_caller, 1), "{count:?}"),
                    Err(why) => assert!(why.contains("SYS_PTRACE"), "{why}"),
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
