//! Supervisor of the worker processes that serve a mounted file system.
//!
//! The supervisor holds /dev/fuse and the state from which a worker resumes: a file of the memory client and two of
//! the journal. It does nothing else, so that it has few reasons to fail. When a worker exits unexpectedly, the next
//! one takes over: programs wait, and the kernel resends unanswered requests (FUSE_NOTIFY_RESEND, Linux 6.9).

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use thiserror::Error;

use crate::fuse::{
    MountError, MountOptions, create_volume_mount, detach, detach_own, request_resend, unmount,
};

/// Maximum number of consecutive workers that exit before they serve.
const ATTEMPTS_MAX: u32 = 16;
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum length in bytes of a line of status that a worker sends.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Prefix of a worker's line before it serves; the text after it names what the worker waits for.
const WAITS: &str = "waits: ";
/// Reported as the reason for waiting after a worker has exited.
const REPLACED: &str = "another process takes the files over";

/// State that outlives workers.
pub struct State {
    /// File of the memory client.
    pub memory: File,
    /// Files of the tree's journal.
    pub journal: [File; 2],
}

impl State {
    /// Creates empty files, which children inherit.
    fn create() -> io::Result<[OwnedFd; 3]> {
        let memfd = |name| memfd_create(name, MemfdFlags::empty());
        Ok([memfd("farcall memory")?, memfd("farcall tree")?, memfd("farcall tree")?])
    }

    /// Opens the files that a worker inherited, by their descriptor numbers.
    ///
    /// # Errors
    /// Returns an error if a descriptor does not exist.
    pub fn inherited([memory, first, second]: [i32; 3]) -> io::Result<Self> {
        let open = |number| File::options().read(true).write(true).open(format!("/proc/self/fd/{number}"));
        Ok(Self { memory: open(memory)?, journal: [open(first)?, open(second)?] })
    }
}

/// Error of serving a file system.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SupervisorError {
    /// Mounting failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A worker exited after reporting an error. Contains its exit code.
    #[error("the process that serves the files ended; its message above states why")]
    Worker(i32),
    /// Workers exit before they serve.
    #[error(
        "{ATTEMPTS_MAX} processes that were to serve the files ended, one after another, the last by {0}"
    )]
    Workers(ExitStatus),
    /// A worker was killed and cannot be replaced.
    #[error("the process that serves the files ended ({0}), and none can take over")]
    Last(ExitStatus),
    /// A worker does not begin to serve in time.
    #[error("the process that is to serve the files does not begin")]
    Late,
    /// A system call failed.
    #[error("cannot supervise the process that serves the files")]
    System(#[from] io::Error),
}

/// A mounted file system and the process that serves it. Dropping it unmounts the directory.
pub struct Supervisor {
    dir: PathBuf,
    ready_line: String,
    thread: Option<JoinHandle<Result<(), SupervisorError>>>,
    state: Arc<Mutex<MountState>>,
    current: Arc<CurrentWorker>,
}

/// Progress of a mount.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MountState {
    /// No worker has served yet: the directory shows its original contents.
    Unattached,
    Attached,
    /// No worker serves any more. The file system is detached, or was never attached.
    Ended,
}

impl Supervisor {
    /// Creates a file system, waits until a first worker serves it, and attaches it to the directory. `worker` returns
    /// the command of a worker, given the directory of the file system and the numbers of the descriptors that the
    /// worker inherits. The standard input of a worker is /dev/fuse, and its standard output is a connection to this
    /// supervisor ([`Worker`]).
    ///
    /// # Errors
    /// Returns an error if the file system cannot be mounted or no worker serves it.
    pub fn start(
        dir: &Path,
        options: MountOptions<'_>,
        mut worker: impl FnMut(&Path, [i32; 3]) -> Command + Send + 'static,
    ) -> Result<Self, SupervisorError> {
        let mount = create_volume_mount(dir, options)?;
        let (device, dir) = (mount.device()?, mount.dir().to_owned());
        let state = Arc::new(Mutex::new(MountState::Unattached));
        let current = Arc::new(CurrentWorker::default());
        let mut mounted = Self {
            dir: dir.clone(),
            ready_line: String::new(),
            thread: None,
            state: Arc::clone(&state),
            current: Arc::clone(&current),
        };
        let files = State::create()?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let run = move || {
            let numbers = [&files[0], &files[1], &files[2]].map(AsRawFd::as_raw_fd);
            let ended = serve_by_workers(&device, || Some(worker(&dir, numbers)), &sender, &current);
            let before = std::mem::replace(&mut *lock(&state), MountState::Ended);
            if ended.is_err() && before == MountState::Attached {
                // Open files return errors then. The file system may already be unmounted.
                let _ = detach_own(&dir);
            }
            ended
        };
        mounted.thread = Some(std::thread::Builder::new().name("mount-watch".into()).spawn(run)?);
        match receiver.recv() {
            Ok(ready_line) => mounted.ready_line = ready_line,
            Err(_) => mounted.wait()?,
        }
        let mut state = lock(&mounted.state);
        if *state == MountState::Unattached {
            mount.attach()?;
            *state = MountState::Attached;
        }
        drop(state);
        Ok(mounted)
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the status line of the first worker.
    pub fn ready_line(&self) -> &str {
        &self.ready_line
    }

    /// Returns whether it is mounted; `false` after `umount`.
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns what programs wait for, if no worker serves at present.
    pub fn waits_for(&self) -> Option<String> {
        self.current.waits_for()
    }

    /// Unmounts the file system.
    ///
    /// # Errors
    /// Returns `EBUSY` if a file there is in use.
    pub fn unmount(&self) -> io::Result<()> {
        unmount(&self.dir)
    }

    /// Detaches the file system from its directory even if files are in use. It is served until none is.
    ///
    /// # Errors
    /// Returns the error of umount(2).
    pub fn detach(&self) -> io::Result<()> {
        detach(&self.dir)
    }

    /// Waits until the file system is unmounted and the last worker has exited.
    ///
    /// # Errors
    /// Returns an error if a worker exited before that, or could not complete its remaining work.
    pub fn wait(&mut self) -> Result<(), SupervisorError> {
        // A panic of the thread was printed by the panic hook.
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Ok(())))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.is_serving() && *lock(&self.state) == MountState::Attached {
            // Files in use are served until this process exits.
            let _ = self.detach();
        }
    }
}

fn lock(state: &Mutex<MountState>) -> MutexGuard<'_, MountState> {
    // After a panic the value is a valid state.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The current worker, and the means to make it the last one.
#[derive(Default)]
pub struct CurrentWorker {
    serving: Mutex<Serving>,
    /// Maximum time until a worker serves.
    patience: Option<Duration>,
}

#[derive(Default)]
struct Serving {
    /// Its process. The descriptor stays valid after the process has exited and its number is reused.
    process: Option<OwnedFd>,
    is_last: bool,
    /// Reason why it waits; `None` while it serves.
    waits_for: Option<String>,
}

impl CurrentWorker {
    /// Limits the time until a worker serves. A worker that exceeds it is killed and is the last one.
    pub fn with_patience(patience: Duration) -> Self {
        Self { patience: Some(patience), ..Self::default() }
    }

    /// Kills the current worker; no other takes over.
    pub fn end(&self) {
        let mut serving = self.lock();
        serving.is_last = true;
        if let Some(process) = &serving.process {
            // The process may already have exited.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// Returns what the worker waits for, if it does not serve at present.
    pub fn waits_for(&self) -> Option<String> {
        self.lock().waits_for.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Serving> {
        // The state is consistent even after a panic.
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a worker, unless the last one was ended.
    fn start(&self, command: Command, device: &OwnedFd) -> io::Result<Option<(Child, UnixStream)>> {
        let mut serving = self.lock();
        if serving.is_last {
            return Ok(None);
        }
        let (child, supervisor) = start(command, device)?;
        supervisor.set_read_timeout(self.patience)?;
        serving.process = Some(pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?);
        Ok(Some((child, supervisor)))
    }
}

/// Runs one worker after another, until one exits because all work is done, or there is no command for another one.
/// The status line of the first worker that serves is sent to `first`.
///
/// # Errors
/// Returns the reason why no worker serves any more.
pub fn serve_by_workers(
    device: &OwnedFd,
    mut command: impl FnMut() -> Option<Command>,
    first: &mpsc::SyncSender<String>,
    worker: &CurrentWorker,
) -> Result<(), SupervisorError> {
    let mut failed = 0;
    let mut last = None;
    loop {
        let Some(command) = command() else {
            return last.map_or(Ok(()), |ended| Err(SupervisorError::Last(ended)));
        };
        let Some((mut child, supervisor)) = worker.start(command, device)? else { return Ok(()) };
        let (ready_line, received) = read_lines(&supervisor, |waits_for| {
            // Waiting for an external condition is not a failure of the worker.
            failed = 0;
            worker.lock().waits_for = Some(waits_for);
        });
        if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            // The child is not reaped: it may wait for a request that only a worker would serve.
            worker.end();
            return Err(SupervisorError::Late);
        }
        if received.is_ok() && ready_line.ends_with('\n') {
            failed = 0;
            worker.lock().waits_for = None;
            // Only the first line is received.
            let _ = first.try_send(ready_line.trim_end().to_owned());
        }
        // Blocks in the kernel without polling.
        let ended = child.wait()?;
        worker.lock().waits_for = Some(REPLACED.to_owned());
        if last.is_some() || !ready_line.is_empty() {
            // A program whose request was read by the exited worker, and is not resent, could not be killed. The next
            // worker reports an error if the kernel cannot resend.
            let _ = request_resend(device);
        }
        match ended.code() {
            Some(0) => return Ok(()),
            Some(Worker::LOST) => {}
            // 101 is the exit code of a panic, which was printed. The next worker may not encounter it.
            Some(code) if code != 101 => return Err(SupervisorError::Worker(code)),
            _ => {}
        }
        tracing::warn!(pid = child.id(), "the process that answers the kernel ended ({ended})");
        last = Some(ended);
        failed += 1;
        if failed >= ATTEMPTS_MAX {
            return Err(SupervisorError::Workers(ended));
        }
        if failed > 1 {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Reads lines of a worker until it serves or exits. Returns the last line.
fn read_lines(supervisor: &UnixStream, mut waits: impl FnMut(String)) -> (String, io::Result<()>) {
    let mut lines = BufReader::new(supervisor);
    loop {
        let mut ready_line = String::new();
        let received = lines.by_ref().take(LINE_BYTES_MAX).read_line(&mut ready_line);
        match ready_line.strip_prefix(WAITS).filter(|_| received.is_ok()) {
            Some(waits_for) => waits(waits_for.trim_end().to_owned()),
            None => return (ready_line, received.map(drop)),
        }
    }
}

fn start(mut command: Command, device: &OwnedFd) -> io::Result<(Child, UnixStream)> {
    let (supervisor, of_worker) = UnixStream::pair()?;
    // In its own process group: Ctrl-C is handled by the supervisor.
    let child = command
        .stdin(device.try_clone()?)
        .stdout(Stdio::from(OwnedFd::from(of_worker)))
        .process_group(0)
        .spawn()?;
    Ok((child, supervisor))
}

/// A worker's end: the objects passed by its supervisor.
pub struct Worker {
    device: OwnedFd,
    supervisor: UnixStream,
}

impl Worker {
    /// Duplicates the standard input and output.
    ///
    /// # Errors
    /// Returns an error if they are closed.
    pub fn from_standard_streams() -> io::Result<Self> {
        let device = io::stdin().as_fd().try_clone_to_owned()?;
        let supervisor = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { device, supervisor })
    }

    /// Exit code of a worker that has lost its volume and must be replaced.
    pub const LOST: i32 = 75;

    /// Reports what the worker waits for before it serves, and pauses. Returns `false` if further waiting is useless:
    /// the file system was unmounted, or the supervisor has exited (the file system is then detached).
    ///
    /// # Errors
    /// Returns an error if the line cannot be sent or poll(2) fails.
    pub fn report_wait(&self, waits_for: &str, dir: &Path, pause: Duration) -> io::Result<bool> {
        let mut supervisor = &self.supervisor;
        if let Err(error) = writeln!(supervisor, "{WAITS}{}", waits_for.replace('\n', "; ")) {
            detach_own(dir)?;
            return Err(error);
        }
        // Errors and hang-ups are reported for every event mask.
        let mut ends = [self.device.as_fd(), self.supervisor.as_fd()]
            .map(|end| PollFd::from_borrowed_fd(end, PollFlags::empty()));
        let timeout = Timespec::try_from(pause).unwrap_or_default();
        poll(&mut ends, Some(&timeout))?;
        let [is_unmounted, is_alone] = ends.map(|end| !end.revents().is_empty());
        if is_alone {
            detach_own(dir)?;
        }
        Ok(!is_unmounted && !is_alone)
    }

    /// Reports that files are served, with a status line. From now on the file system is detached when the supervisor
    /// exits: no process would replace this one, and later requests would fail.
    ///
    /// # Errors
    /// Returns an error if the supervisor has exited or no thread can be started.
    pub fn report_ready(&self, line: &str, dir: PathBuf) -> io::Result<()> {
        let mut supervisor = self.supervisor.try_clone()?;
        writeln!(supervisor, "{line}")?;
        std::thread::Builder::new().name("mount-supervisor".into()).spawn(move || {
            // The supervisor sends no data: the read returns when it exits.
            let _ = supervisor.read(&mut [0]);
            tracing::error!("the supervisor of {} is gone: it is taken off", dir.display());
            if let Err(error) = detach_own(&dir) {
                tracing::error!("cannot take it off: {error}; try: umount {}", dir.display());
            }
        })?;
        Ok(())
    }

    /// Returns a duplicate of the /dev/fuse descriptor.
    ///
    /// # Errors
    /// Returns an error if the descriptor cannot be duplicated.
    pub fn device(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs shell scripts as workers, one after another.
    fn serve(scripts: &[&str], worker: &CurrentWorker) -> (Result<(), SupervisorError>, Option<String>) {
        let device = File::open("/dev/null").unwrap().into();
        let (first, ready_line) = mpsc::sync_channel(1);
        let mut scripts = scripts.iter();
        let command = || {
            let mut command = Command::new("sh");
            command.args(["-c", scripts.next()?]);
            Some(command)
        };
        let ended = serve_by_workers(&device, command, &first, worker);
        (ended, ready_line.try_recv().ok())
    }

    #[test]
    fn starts_the_next_worker_after_a_kill_until_one_completes() {
        let worker = CurrentWorker::default();
        let (ended, ready_line) = serve(&["echo one; kill -9 $$", "echo two", "echo three"], &worker);
        assert!(ended.is_ok() && ready_line.as_deref() == Some("one"), "{ended:?} {ready_line:?}");
        let (ended, ready_line) = serve(&["kill -9 $$", "echo two; exit 4", "echo three"], &worker);
        assert!(matches!(ended, Err(SupervisorError::Worker(4))) && ready_line.as_deref() == Some("two"));
        let (ended, _) = serve(&["echo one; kill -9 $$"], &worker);
        assert!(matches!(ended, Err(SupervisorError::Last(_))), "{ended:?}");
    }

    #[test]
    fn kills_a_worker_that_is_not_ready_in_time_and_starts_no_other() {
        let worker = CurrentWorker::with_patience(Duration::from_millis(20));
        let (ended, ready_line) = serve(&["exec sleep 600", "echo two"], &worker);
        assert!(matches!(ended, Err(SupervisorError::Late)) && ready_line.is_none(), "{ended:?}");
        let (ended, ready_line) = serve(&["echo one"], &worker);
        assert!(ended.is_ok() && ready_line.is_none(), "none is started any more: {ended:?}");
    }

    #[test]
    fn starts_no_worker_after_the_last() {
        let current = Arc::new(CurrentWorker::default());
        let (first, ready_line) = mpsc::sync_channel(1);
        let ending = Arc::clone(&current);
        let serving = std::thread::spawn(move || {
            let device = File::open("/dev/null").unwrap().into();
            let command = || {
                let mut command = Command::new("sh");
                command.args(["-c", "echo served; exec sleep 600"]);
                Some(command)
            };
            serve_by_workers(&device, command, &first, &ending)
        });
        assert_eq!(ready_line.recv().unwrap(), "served");
        current.end();
        serving.join().unwrap().unwrap();
    }
}
