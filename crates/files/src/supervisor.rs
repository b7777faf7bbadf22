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
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use thiserror::Error;

use crate::fuse::{MountError, detach, mount_volume, unmount};

/// Workers that may end, one after another, before they serve.
const ATTEMPTS_MAX: u32 = 16;
const PAUSE: Duration = Duration::from_millis(100);
/// The longest line that a worker says.
const SAID_BYTES_MAX: u64 = 64 << 10;

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
}

impl Supervisor {
    /// Mounts, and waits until a first worker serves. `worker` makes the command of one; it is told where the file system
    /// is mounted and the numbers of what it inherits. Its standard input is /dev/fuse, its standard output leads here
    /// ([`Worker`]).
    ///
    /// # Errors
    /// If nothing can be mounted, or no worker serves.
    pub fn start(
        dir: &Path,
        mut worker: impl FnMut(&Path, [i32; 3]) -> Command + Send + 'static,
    ) -> Result<Self, SupervisorError> {
        let (device, dir) = mount_volume(dir)?;
        let mut mounted = Self { dir: dir.clone(), said: String::new(), thread: None };
        let state = State::create()?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let run = move || {
            let numbers = [&state[0], &state[1], &state[2]].map(AsRawFd::as_raw_fd);
            let ended =
                serve_by_workers(&device, || Some(worker(&dir, numbers)), &sender, &Present::default());
            if ended.is_err() {
                // What is in use has only errors then. It may be off already.
                let _ = detach(&dir);
            }
            ended
        };
        mounted.thread = Some(std::thread::Builder::new().name("mount-watch".into()).spawn(run)?);
        match receiver.recv() {
            Ok(said) => mounted.said = said,
            Err(_) => mounted.wait()?,
        }
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
        if self.is_serving() {
            // What is in use is served on until this process ends.
            let _ = self.detach();
        }
    }
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
        let mut said = String::new();
        let heard = BufReader::new((&supervisor).take(SAID_BYTES_MAX)).read_line(&mut said);
        if heard.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            // It is not waited for: it may wait for what only a worker brings.
            present.end();
            return Err(SupervisorError::Late);
        }
        if heard.is_ok() && said.ends_with('\n') {
            failed = 0;
            // Only the first one is waited for.
            let _ = first.try_send(said.trim_end().to_owned());
        }
        // It waits in the kernel, by nothing that has to be looked at again and again.
        let ended = child.wait()?;
        match ended.code() {
            Some(0) => return Ok(()),
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
            if let Err(error) = detach(&dir) {
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
    use std::sync::Arc;

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
