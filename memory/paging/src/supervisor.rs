//! The supervisor: creates the chain from the program to the pager, runs the program, and undoes everything at the
//! end. It replaces a pager that was killed.

use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farcall_files::{CurrentWorker, MountError, SupervisorError, mount_one_file, serve_by_workers};
use farcall_verbs::with_sources;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Pid, Signal, configure_io_flusher_behavior, kill_process};
use thiserror::Error;

use crate::cgroup::{Cgroup, Hierarchy};
use crate::loop_device::LoopDevice;
use crate::preflight::priority_now;
use crate::program;
use crate::resume_file;
use crate::run_paths::{Config, Ready, RunLock, RunPaths};
use crate::swap::swap_on;
use crate::undo::{abort, undo};

/// Maximum time until the pager serves: memory nodes must grant all slabs.
const READY_MAX: Duration = Duration::from_secs(60);
/// Maximum time that the pager takes to release the slabs.
const END_MAX: Duration = Duration::from_secs(15);
/// Maximum time between the request to exit and the exit of the program.
const GRACE: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Error of a run: the program was not started, or was ended before its exit.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PagingError {
    /// The file system cannot be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The pager did not start; it has reported the reason. Contains its exit code.
    #[error("the pager did not start; its message above states why")]
    Pager(Option<i32>),
    /// The pager crashed and could not be replaced. The program was killed before it could observe that.
    #[error(
        "the pager crashed, and no other could take over: the program was killed before it accessed a page that is lost"
    )]
    PagerCrashed,
    /// An operation of the system failed.
    #[error("cannot {what}: {why}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error of the operation.
        why: io::Error,
    },
    /// Some resources could not be released.
    #[error("{} left behind: {}", .0.len(), .0.join("; "))]
    Leftovers(Vec<String>),
}

fn cannot(what: &'static str) -> impl Fn(io::Error) -> PagingError {
    move |why| PagingError::System { what, why }
}

/// Outcome of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// It exited with this code, or was ended by a signal: 128 plus its number.
    Program(u8),
    /// It exited with this code, and the kernel killed it or some of its children for lack of memory: the swap area
    /// was full.
    OutOfMemory {
        /// The code, as in [`RunOutcome::Program`].
        code: u8,
        /// Number of processes killed.
        killed: u64,
    },
    /// It was requested to exit.
    Requested,
}

/// All resources for paging of one program. They are released at the end of the run, or when this is dropped.
pub struct PagingRun {
    paths: RunPaths,
    _lock: RunLock,
    cgroup: Cgroup,
    pager: Arc<CurrentWorker>,
    watch: Option<JoinHandle<Result<(), SupervisorError>>>,
    pager_has_ended: Arc<AtomicBool>,
    swap: Option<PathBuf>,
    ready: Ready,
    is_undone: bool,
}

impl PagingRun {
    /// Creates the chain. `pager` creates a command that calls [`crate::serve`] with its standard input as the device,
    /// its standard output as the connection to the supervisor, and the number passed to `pager`, if there is one.
    ///
    /// # Errors
    /// Returns an error that names the resource that could not be created; all others have been released.
    pub fn start(
        config: &Config,
        pager: impl FnMut(Option<i32>) -> Command + Send + 'static,
    ) -> Result<Self, PagingError> {
        let paths = RunPaths::of(std::process::id());
        // Locked memory: otherwise this process could wait for its own swapped pages while it undoes the run. Children
        // do not inherit this.
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
            .map_err(|error| cannot("lock memory (CAP_IPC_LOCK)")(error.into()))?;
        let lock = paths.create(config).map_err(cannot("keep a record of the run"))?;
        let made = Self::make(paths, lock, config, pager);
        made.map_err(|error| match undo(paths) {
            Ok(()) => error,
            Err(left) => PagingError::Leftovers([vec![with_sources(&error)], left].concat()),
        })
    }

    fn make(
        paths: RunPaths,
        lock: RunLock,
        config: &Config,
        pager: impl FnMut(Option<i32>) -> Command + Send + 'static,
    ) -> Result<Self, PagingError> {
        let hierarchy = Hierarchy::find().map_err(cannot("find the memory cgroup"))?;
        let hierarchy =
            hierarchy.ok_or_else(|| cannot("find the memory cgroup")(io::ErrorKind::NotFound.into()))?;
        let cgroup = hierarchy.cgroup(&paths.cgroup());
        cgroup.create(config.resident_bytes).map_err(cannot("make a cgroup with a limit"))?;
        let device = mount_one_file(&paths.mount())?;
        let mut paging = Self {
            paths,
            _lock: lock,
            cgroup,
            pager: Arc::new(CurrentWorker::with_patience(READY_MAX)),
            watch: None,
            pager_has_ended: Arc::default(),
            swap: None,
            ready: Ready::default(),
            is_undone: false,
        };
        let ready = paging.watch(device, pager);
        let made = ready.and_then(|ready| paging.wait_until_ready(&ready)).and_then(|()| paging.make_swap());
        match made {
            Ok(()) => Ok(paging),
            Err(error) => {
                let undone = paging.undo();
                undone.and(Err(error))
            }
        }
    }

    /// Starts a thread that runs pagers one after another. When no further pager can be started, it first kills the
    /// program, and then fails the outstanding requests.
    fn watch(
        &mut self,
        device: OwnedFd,
        pager: impl FnMut(Option<i32>) -> Command + Send + 'static,
    ) -> Result<mpsc::Receiver<String>, PagingError> {
        let (first, ready) = mpsc::sync_channel(1);
        let mut commands = Commands { resume_file: create_resume_file(), has_started: false, pager };
        let (worker, has_exited) = (Arc::clone(&self.pager), Arc::clone(&self.pager_has_ended));
        let (cgroup, paths) = (self.cgroup.clone(), self.paths);
        let run = move || {
            // Allocating memory for the next pager must not wait for pages that only that pager can write. Without the
            // privilege for this the pager has reported that it may stall.
            let _ = configure_io_flusher_behavior(true);
            let ended = serve_by_workers(&device, || commands.next(), &first, &worker);
            has_exited.store(true, Ordering::SeqCst);
            // If the thread ends after everything else was undone, these have no effect.
            cgroup.kill_all();
            abort(paths);
            // The device was open until now, so outstanding requests have waited.
            ended
        };
        let thread = std::thread::Builder::new().name("page-watch".into()).spawn(run);
        self.watch = Some(thread.map_err(cannot("start a thread"))?);
        Ok(ready)
    }

    fn wait_until_ready(&mut self, ready: &mpsc::Receiver<String>) -> Result<(), PagingError> {
        // `recv` fails if the pager takes too long, because the thread then ends.
        if let Ok(line) = ready.recv() {
            self.ready = serde_json::from_str(&line)
                .map_err(|error| cannot("read what the pager reports")(error.into()))?;
            return Ok(());
        }
        // A panic of the thread was printed by the panic hook.
        let ended = self.watch.take().and_then(|watch| watch.join().ok());
        Err(match ended {
            Some(Err(SupervisorError::Worker(code))) => PagingError::Pager(Some(code)),
            Some(Err(SupervisorError::System(why))) => cannot("start the pager")(why),
            _ => PagingError::Pager(None),
        })
    }

    fn make_swap(&mut self) -> Result<(), PagingError> {
        let file = OpenOptions::new().read(true).write(true).open(self.paths.file());
        let file = file.map_err(cannot("open the file of pages"))?;
        let device = LoopDevice::attach(&file).map_err(cannot("set up a loop device"))?;
        let priority = priority_now().map_err(cannot("choose a priority"))?;
        swap_on(device.path(), priority).map_err(cannot("use the swap area"))?;
        self.swap = Some(device.path().to_owned());
        Ok(())
    }

    /// Returns the state of the swap area when the pager began to serve it.
    pub const fn ready(&self) -> Ready {
        self.ready
    }

    /// Returns the device of the swap area.
    pub fn swap(&self) -> Option<&PathBuf> {
        self.swap.as_ref()
    }

    /// Runs a program until it exits. If `exit_requested` returns `true`, the program is requested to exit, and
    /// killed after a grace period. Processes that it leaves behind are killed. Then all resources are released.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started, the pager crashed without a replacement, or resources could
    /// not be released.
    pub fn run(
        mut self,
        command: Command,
        mut exit_requested: impl FnMut() -> bool,
    ) -> Result<RunOutcome, PagingError> {
        let mut program = program::start(command, &self.cgroup).map_err(cannot("start the program"))?;
        let mut requested_at = None::<Instant>;
        let status = loop {
            match program.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => break Ok(Some(code(status))),
                Err(error) => break Err(cannot("wait for the program")(error)),
            }
            if self.pager_has_ended() {
                // Repeated, because the program may have been started after the pager's crash was detected.
                self.cgroup.kill_all();
            } else if requested_at.is_some_and(|requested_at| requested_at.elapsed() > GRACE) {
                // The program may wait for a page that does not arrive, and exit only when that request fails: `undo`
                // aborts the requests.
                break Ok(None);
            } else if requested_at.is_none() && exit_requested() {
                requested_at = Some(Instant::now());
                request_exit(&program);
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        let pager_has_ended = self.pager_has_ended();
        // Read before `undo` removes the cgroup, which counts them.
        let killed = self.cgroup.oom_kills().unwrap_or(0);
        self.undo()?;
        match (status?, requested_at) {
            (_, Some(_)) => Ok(RunOutcome::Requested),
            (Some(code), None) if !pager_has_ended && killed > 0 => {
                Ok(RunOutcome::OutOfMemory { code, killed })
            }
            (Some(code), None) if !pager_has_ended => Ok(RunOutcome::Program(code)),
            _ => Err(PagingError::PagerCrashed),
        }
    }

    fn pager_has_ended(&self) -> bool {
        self.pager_has_ended.load(Ordering::SeqCst)
    }

    fn undo(&mut self) -> Result<(), PagingError> {
        self.is_undone = true;
        let undone = undo(self.paths);
        self.end_pager();
        undone.map_err(PagingError::Leftovers)
    }

    /// Waits for the pager to exit, at most for [`END_MAX`]; then kills it.
    fn end_pager(&mut self) {
        let Some(watch) = self.watch.take() else { return };
        let begun = Instant::now();
        while !watch.is_finished() && begun.elapsed() < END_MAX {
            std::thread::sleep(POLL_INTERVAL);
        }
        self.pager.end();
        // A panic of the thread was printed by the panic hook.
        let _ = watch.join();
    }
}

impl Drop for PagingRun {
    fn drop(&mut self) {
        if !self.is_undone
            && let Err(error) = self.undo()
        {
            tracing::error!("{}", with_sources(&error));
        }
    }
}

/// Creates the commands of the pagers.
struct Commands<P> {
    resume_file: Option<File>,
    has_started: bool,
    pager: P,
}

impl<P: FnMut(Option<i32>) -> Command> Commands<P> {
    /// Returns the command of the next pager. Without a resume file a second pager could not restore the pages, so
    /// there is none.
    fn next(&mut self) -> Option<Command> {
        if self.resume_file.is_none() && self.has_started {
            return None;
        }
        self.has_started = true;
        Some((self.pager)(self.resume_file.as_ref().map(resume_file::number)))
    }
}

fn create_resume_file() -> Option<File> {
    let created = resume_file::create();
    created
        .inspect_err(|error| tracing::info!("a pager that crashes is not replaced here (Linux 6.9): {error}"))
        .ok()
}

fn request_exit(program: &Child) {
    if let Some(pid) = i32::try_from(program.id()).ok().and_then(Pid::from_raw) {
        // The child has not been reaped, so its process id is still valid.
        let _ = kill_process(pid, Signal::TERM);
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}
