//! Who holds a mounted file system while the process that serves it comes and goes.
//!
//! The supervisor holds /dev/fuse and what a worker needs to go on: a file of the memory's client, two of the journal. It
//! does nothing else, so it has little to die of. When a worker ends that was not told to, the next one takes over:
//! programs wait, and requests that were not answered are made again (FUSE_NOTIFY_RESEND, Linux 6.9).

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

use crate::fuse::{MountError, MountOptions, ask_again, create_volume_mount, detach, detach_ours, unmount};

/// Workers that may end, one after another, before they serve.
const ATTEMPTS_MAX: u32 = 16;
const PAUSE: Duration = Duration::from_millis(100);
/// The longest line that a worker says.
const SAID_BYTES_MAX: u64 = 64 << 10;
/// What a line of a worker begins with that does not serve yet: behind it is what it waits for.
const WAITS: &str = "waits: ";
/// What is waited for when a worker has ended.
const REPLACED: &str = "another process takes the files over";

/// What outlives workers.
pub struct State {
    /// Of the memory's client.
    pub memory: File,
    /// Of the tree.
    pub journal: [File; 2],
}

impl State {
    /// Empty files, which children inherit.
    fn create() -> io::Result<[OwnedFd; 3]> {
        let memfd = |name| memfd_create(name, MemfdFlags::empty());
        Ok([memfd("farcall memory")?, memfd("farcall tree")?, memfd("farcall tree")?])
    }

    /// Those that a worker inherited, by their numbers.
    ///
    /// # Errors
    /// If they are not there.
    pub fn inherited([memory, first, second]: [i32; 3]) -> io::Result<Self> {
        let open = |number| File::options().read(true).write(true).open(format!("/proc/self/fd/{number}"));
        Ok(Self { memory: open(memory)?, journal: [open(first)?, open(second)?] })
    }
}

/// Why a file system is not served, or is no more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SupervisorError {
    /// Nothing was mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A worker ended by itself; it has said why. With its exit code.
    #[error("the process that serves the files ended; it says why above")]
    Worker(i32),
    /// Workers end before they serve.
    #[error(
        "{ATTEMPTS_MAX} processes that were to serve the files ended, one after another, the last by {0}"
    )]
    Workers(ExitStatus),
    /// A worker was killed, and none can take over.
    #[error("the process that serves the files ended ({0}), and none can take over")]
    Last(ExitStatus),
    /// A worker does not begin to serve.
    #[error("the process that is to serve the files does not begin")]
    Late,
    /// The system refuses something.
    #[error("cannot supervise: {0}")]
    System(#[from] io::Error),
}

/// A mounted file system, and the process that serves it. Dropping it takes it off.
pub struct Supervisor {
    dir: PathBuf,
    said: String,
    thread: Option<JoinHandle<Result<(), SupervisorError>>>,
    stage: Arc<Mutex<Stage>>,
    present: Arc<Present>,
}

/// How far a mount is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No worker has served: the directory shows what it contained.
    Unattached,
    Attached,
    /// No worker serves any more. It is attached no longer, or was never.
    Ended,
}

impl Supervisor {
    /// Creates a file system, waits until a first worker serves it, and attaches it to the directory. `worker` returns the command of a worker, given the directory of the
    /// file system and the numbers of the descriptors that the worker inherits. The standard input of a worker is
    /// /dev/fuse, its standard output leads here ([`Worker`]).
    ///
    /// # Errors
    /// If nothing can be mounted, or no worker serves.
    pub fn start(
        dir: &Path,
        options: MountOptions<'_>,
        mut worker: impl FnMut(&Path, [i32; 3]) -> Command + Send + 'static,
    ) -> Result<Self, SupervisorError> {
        let mount = create_volume_mount(dir, options)?;
        let (device, dir) = (mount.device()?, mount.dir().to_owned());
        let stage = Arc::new(Mutex::new(Stage::Unattached));
        let present = Arc::new(Present::default());
        let mut mounted = Self {
            dir: dir.clone(),
            said: String::new(),
            thread: None,
            stage: Arc::clone(&stage),
            present: Arc::clone(&present),
        };
        let state = State::create()?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let run = move || {
            let numbers = [&state[0], &state[1], &state[2]].map(AsRawFd::as_raw_fd);
            let ended = serve_by_workers(&device, || Some(worker(&dir, numbers)), &sender, &present);
            let before = std::mem::replace(&mut *lock(&stage), Stage::Ended);
            if ended.is_err() && before == Stage::Attached {
                // What is in use has only errors then. It may be off already.
                let _ = detach_ours(&dir);
            }
            ended
        };
        mounted.thread = Some(std::thread::Builder::new().name("mount-watch".into()).spawn(run)?);
        match receiver.recv() {
            Ok(said) => mounted.said = said,
            Err(_) => mounted.wait()?,
        }
        let mut stage = lock(&mounted.stage);
        if *stage == Stage::Unattached {
            mount.attach()?;
            *stage = Stage::Attached;
        }
        drop(stage);
        Ok(mounted)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the first worker said of itself.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// Whether it is mounted. Not, after `umount`.
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// What programs wait for, if no worker serves now.
    pub fn waits_for(&self) -> Option<String> {
        self.present.waits_for()
    }

    /// Unmounts.
    ///
    /// # Errors
    /// `EBUSY` if something there is in use.
    pub fn unmount(&self) -> io::Result<()> {
        unmount(&self.dir)
    }

    /// Takes it off its directory although something is in use. It is served on until nothing is.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn detach(&self) -> io::Result<()> {
        detach(&self.dir)
    }

    /// Waits until it is unmounted and the last worker has ended.
    ///
    /// # Errors
    /// If a worker ended by itself before, or could not do what was left to be done.
    pub fn wait(&mut self) -> Result<(), SupervisorError> {
        // A panic was printed by its thread.
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Ok(())))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.is_serving() && *lock(&self.stage) == Stage::Attached {
            // What is in use is served on until this process ends.
            let _ = self.detach();
        }
    }
}

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    // A panic leaves a stage that the mount had.
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The worker of the present, for who wants it to be the last.
#[derive(Default)]
pub struct Present {
    serving: Mutex<Serving>,
    /// How long one may take until it serves.
    patience: Option<Duration>,
}

#[derive(Default)]
struct Serving {
    /// Its process: also when that has ended, and its number is another's.
    process: Option<OwnedFd>,
    is_last: bool,
    /// What it waits for, if it does not serve.
    waits_for: Option<String>,
}

impl Present {
    /// One that does not serve within so long is the last.
    pub fn with_patience(patience: Duration) -> Self {
        Self { patience: Some(patience), ..Self::default() }
    }

    /// Kills it, and none takes over.
    pub fn end(&self) {
        let mut serving = self.lock();
        serving.is_last = true;
        if let Some(process) = &serving.process {
            // It may have ended by itself.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// What the worker waits for, if it does not serve now.
    pub fn waits_for(&self) -> Option<String> {
        self.lock().waits_for.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Serving> {
        // What a panic left is whole.
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one, unless there was a last one.
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

/// One worker after another, until one ends because all is done, or there is no command for another one. What the first
/// one says when it serves is sent to `first`.
///
/// # Errors
/// Why no worker serves any more.
pub fn serve_by_workers(
    device: &OwnedFd,
    mut command: impl FnMut() -> Option<Command>,
    first: &mpsc::SyncSender<String>,
    present: &Present,
) -> Result<(), SupervisorError> {
    let mut failed = 0;
    let mut last = None;
    loop {
        let Some(command) = command() else {
            return last.map_or(Ok(()), |ended| Err(SupervisorError::Last(ended)));
        };
        let Some((mut child, supervisor)) = present.start(command, device)? else { return Ok(()) };
        let (said, heard) = hear(&supervisor, |waits_for| {
            // It waits for what is not ours to be mended: that is no failure.
            failed = 0;
            present.lock().waits_for = Some(waits_for);
        });
        if heard.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            // It is not waited for: it may wait for what only a worker brings.
            present.end();
            return Err(SupervisorError::Late);
        }
        if heard.is_ok() && said.ends_with('\n') {
            failed = 0;
            present.lock().waits_for = None;
            // Only the first one is waited for.
            let _ = first.try_send(said.trim_end().to_owned());
        }
        // It waits in the kernel, by nothing that has to be looked at again and again.
        let ended = child.wait()?;
        present.lock().waits_for = Some(REPLACED.to_owned());
        if last.is_some() || !said.is_empty() {
            // A program whose request was taken, and is not made again, could not be killed. The next worker says if the
            // kernel cannot.
            let _ = ask_again(device);
        }
        match ended.code() {
            Some(0) => return Ok(()),
            Some(Worker::LOST) => {}
            // A panic is a bug of ours that was printed; the next one may not meet it.
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

/// Reads what a worker says until it serves, or ends. Returns its last line.
fn hear(supervisor: &UnixStream, mut waits: impl FnMut(String)) -> (String, io::Result<()>) {
    let mut lines = BufReader::new(supervisor);
    loop {
        let mut said = String::new();
        let heard = lines.by_ref().take(SAID_BYTES_MAX).read_line(&mut said);
        match said.strip_prefix(WAITS).filter(|_| heard.is_ok()) {
            Some(waits_for) => waits(waits_for.trim_end().to_owned()),
            None => return (said, heard.map(drop)),
        }
    }
}

fn start(mut command: Command, device: &OwnedFd) -> io::Result<(Child, UnixStream)> {
    let (supervisor, of_worker) = UnixStream::pair()?;
    // A group of its own: Ctrl-C is for the supervisor.
    let child = command
        .stdin(device.try_clone()?)
        .stdout(Stdio::from(OwnedFd::from(of_worker)))
        .process_group(0)
        .spawn()?;
    Ok((child, supervisor))
}

/// A worker's end: what it was given by its supervisor.
pub struct Worker {
    device: OwnedFd,
    supervisor: UnixStream,
}

impl Worker {
    /// Takes over the standard input and output.
    ///
    /// # Errors
    /// If they are not there.
    pub fn of_standard_streams() -> io::Result<Self> {
        let device = io::stdin().as_fd().try_clone_to_owned()?;
        let supervisor = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { device, supervisor })
    }

    /// The exit code of a worker to which its volume is lost, and that another one is to follow.
    pub const LOST: i32 = 75;

    /// Says what is waited for before files are served, and pauses. Returns whether there is any use in waiting: not if the
    /// file system was unmounted, or the supervisor has ended, in which case it is taken off.
    ///
    /// # Errors
    /// If the supervisor does not hear it, or the system does not wait.
    pub fn waits(&self, waits_for: &str, dir: &Path, pause: Duration) -> io::Result<bool> {
        let mut supervisor = &self.supervisor;
        if let Err(error) = writeln!(supervisor, "{WAITS}{}", waits_for.replace('\n', "; ")) {
            detach_ours(dir)?;
            return Err(error);
        }
        // Errors and hang-ups are told whatever is asked for.
        let mut ends = [self.device.as_fd(), self.supervisor.as_fd()]
            .map(|end| PollFd::from_borrowed_fd(end, PollFlags::empty()));
        let timeout = Timespec::try_from(pause).unwrap_or_default();
        poll(&mut ends, Some(&timeout))?;
        let [is_unmounted, is_alone] = ends.map(|end| !end.revents().is_empty());
        if is_alone {
            detach_ours(dir)?;
        }
        Ok(!is_unmounted && !is_alone)
    }

    /// Tells that files are served, with a line of one's own. From now on the file system is taken off when the
    /// supervisor ends: nobody would replace this process, and nothing be left but errors.
    ///
    /// # Errors
    /// If the supervisor is gone.
    pub fn serves(&self, line: &str, dir: PathBuf) -> io::Result<()> {
        let mut supervisor = self.supervisor.try_clone()?;
        writeln!(supervisor, "{line}")?;
        std::thread::Builder::new().name("mount-supervisor".into()).spawn(move || {
            // It says nothing: what comes is its end.
            let _ = supervisor.read(&mut [0]);
            tracing::error!("the supervisor of {} is gone: it is taken off", dir.display());
            if let Err(error) = detach_ours(&dir) {
                tracing::error!("cannot take it off: {error}; try: umount {}", dir.display());
            }
        })?;
        Ok(())
    }

    /// /dev/fuse.
    ///
    /// # Errors
    /// If the system gives no descriptor.
    pub fn device(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves nothing by shells, one after another.
    fn serve(scripts: &[&str], present: &Present) -> (Result<(), SupervisorError>, Option<String>) {
        let device = File::open("/dev/null").unwrap().into();
        let (first, said) = mpsc::sync_channel(1);
        let mut scripts = scripts.iter();
        let command = || {
            let mut command = Command::new("sh");
            command.args(["-c", scripts.next()?]);
            Some(command)
        };
        let ended = serve_by_workers(&device, command, &first, present);
        (ended, said.try_recv().ok())
    }

    #[test]
    fn a_worker_that_is_killed_is_followed_by_the_next_until_one_has_done_all() {
        let present = Present::default();
        let (ended, said) = serve(&["echo one; kill -9 $$", "echo two", "echo three"], &present);
        assert!(ended.is_ok() && said.as_deref() == Some("one"), "{ended:?} {said:?}");
        let (ended, said) = serve(&["kill -9 $$", "echo two; exit 4", "echo three"], &present);
        assert!(matches!(ended, Err(SupervisorError::Worker(4))) && said.as_deref() == Some("two"));
        let (ended, _) = serve(&["echo one; kill -9 $$"], &present);
        assert!(matches!(ended, Err(SupervisorError::Last(_))), "{ended:?}");
    }

    #[test]
    fn a_worker_that_does_not_serve_in_time_is_killed_and_is_the_last() {
        let present = Present::with_patience(Duration::from_millis(20));
        let (ended, said) = serve(&["exec sleep 600", "echo two"], &present);
        assert!(matches!(ended, Err(SupervisorError::Late)) && said.is_none(), "{ended:?}");
        let (ended, said) = serve(&["echo one"], &present);
        assert!(ended.is_ok() && said.is_none(), "none is started any more: {ended:?}");
    }

    #[test]
    fn the_last_worker_is_followed_by_none() {
        let present = Arc::new(Present::default());
        let (first, said) = mpsc::sync_channel(1);
        let ending = Arc::clone(&present);
        let serving = std::thread::spawn(move || {
            let device = File::open("/dev/null").unwrap().into();
            let command = || {
                let mut command = Command::new("sh");
                command.args(["-c", "echo served; exec sleep 600"]);
                Some(command)
            };
            serve_by_workers(&device, command, &first, &ending)
        });
        assert_eq!(said.recv().unwrap(), "served");
        present.end();
        serving.join().unwrap().unwrap();
    }
}
