//! The keeper: makes the chain from the program to the pager, runs the program, and undoes everything. A pager that is
//! killed is replaced.

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

use farcall_files::{MountError, Present, SupervisorError, mount_one_file, serve_by_workers};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Pid, Signal, configure_io_flusher_behavior, kill_process};
use thiserror::Error;

use crate::cgroup::{Cgroup, Hierarchy};
use crate::kept;
use crate::loop_device::LoopDevice;
use crate::place::{Config, Held, Place, Ready};
use crate::preflight::priority_now;
use crate::program;
use crate::swap::swap_on;
use crate::undo::{abort, undo};

/// How long the pager may take until it serves: memory nodes have to grant all slabs.
const READY_MAX: Duration = Duration::from_secs(60);
/// How long it may take to give them back.
const END_MAX: Duration = Duration::from_secs(15);
/// How long a program may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Why a program was not run, or did not end by itself.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PagingError {
    /// The file system cannot be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The pager did not begin; it has said why. With its exit code.
    #[error("the pager did not begin; it says why above")]
    Pager(Option<i32>),
    /// The pager died, and no other could take over. The program was ended before it could see that.
    #[error(
        "the pager died, and no other could take over: the program was killed before it met a page that is gone"
    )]
    PagerDied,
    /// The system refuses something.
    #[error("cannot {what}: {why}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        why: io::Error,
    },
    /// Not everything could be undone.
    #[error("{} left behind: {}", .0.len(), .0.join("; "))]
    Left(Vec<String>),
}

fn cannot(what: &'static str) -> impl Fn(io::Error) -> PagingError {
    move |why| PagingError::System { what, why }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code, or by this signal: 128 and its number.
    Program(u8),
    /// By this code, and of it or its children the kernel killed some for lack of memory: its swap was full.
    OutOfMemory {
        /// As of [`Ended::Program`].
        code: u8,
        /// How many processes were killed.
        killed: u64,
    },
    /// It was asked to.
    Asked,
}

/// Everything that a program is paged by. All of it is undone at the end, or when this is dropped.
pub struct Paging {
    place: Place,
    _held: Held,
    cgroup: Cgroup,
    pager: Arc<Present>,
    watch: Option<JoinHandle<Result<(), SupervisorError>>>,
    is_pager_gone: Arc<AtomicBool>,
    swap: Option<PathBuf>,
    ready: Ready,
    is_undone: bool,
}

impl Paging {
    /// Makes the chain. `pager` makes a command that calls [`crate::serve`] with its standard input as the device, its
    /// standard output as the keeper, and the number that it was told, if there is one.
    ///
    /// # Errors
    /// What could not be made. Everything else was undone.
    pub fn start(
        config: &Config,
        pager: impl FnMut(Option<i32>) -> Command + Send + 'static,
    ) -> Result<Self, PagingError> {
        let place = Place::of(std::process::id());
        // Not to wait for its own pages when it has to undo. Children do not inherit it.
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
            .map_err(|error| cannot("lock memory (CAP_IPC_LOCK)")(error.into()))?;
        let held = place.take(config).map_err(cannot("keep a record of the run"))?;
        let made = Self::make(place, held, config, pager);
        made.map_err(|error| match undo(place) {
            Ok(()) => error,
            Err(left) => PagingError::Left([vec![error.to_string()], left].concat()),
        })
    }

    fn make(
        place: Place,
        held: Held,
        config: &Config,
        pager: impl FnMut(Option<i32>) -> Command + Send + 'static,
    ) -> Result<Self, PagingError> {
        let hierarchy = Hierarchy::find().map_err(cannot("find the memory cgroup"))?;
        let hierarchy =
            hierarchy.ok_or_else(|| cannot("find the memory cgroup")(io::ErrorKind::NotFound.into()))?;
        let cgroup = hierarchy.cgroup(&place.cgroup());
        cgroup.create(config.resident_bytes).map_err(cannot("make a cgroup with a limit"))?;
        let device = mount_one_file(&place.mount())?;
        let mut paging = Self {
            place,
            _held: held,
            cgroup,
            pager: Arc::new(Present::with_patience(READY_MAX)),
            watch: None,
            is_pager_gone: Arc::default(),
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

    /// Has pages served by one pager after another, on a thread of its own. When there is none any more the program is
    /// ended first, and then the requests fail that wait for it.
    fn watch(
        &mut self,
        device: OwnedFd,
        pager: impl FnMut(Option<i32>) -> Command + Send + 'static,
    ) -> Result<mpsc::Receiver<String>, PagingError> {
        let (first, ready) = mpsc::sync_channel(1);
        let mut commands = Commands { kept: kept(), has_begun: false, pager };
        let (present, is_gone) = (Arc::clone(&self.pager), Arc::clone(&self.is_pager_gone));
        let (cgroup, place) = (self.cgroup.clone(), self.place);
        let run = move || {
            // Memory for the next pager must not wait for pages that only that one will write. Without the right to say
            // so the pager has said that it may stall.
            let _ = configure_io_flusher_behavior(true);
            let ended = serve_by_workers(&device, || commands.next(), &first, &present);
            is_gone.store(true, Ordering::SeqCst);
            // Nothing of this is there any more when it ends after all else.
            cgroup.kill_all();
            abort(place);
            // The device was held until now: requests have waited.
            ended
        };
        let thread = std::thread::Builder::new().name("page-watch".into()).spawn(run);
        self.watch = Some(thread.map_err(cannot("start a thread"))?);
        Ok(ready)
    }

    fn wait_until_ready(&mut self, ready: &mpsc::Receiver<String>) -> Result<(), PagingError> {
        // The thread ends if the pager takes too long.
        if let Ok(line) = ready.recv() {
            self.ready = serde_json::from_str(&line)
                .map_err(|error| cannot("read what the pager reports")(error.into()))?;
            return Ok(());
        }
        // A panic was printed by its thread.
        let ended = self.watch.take().and_then(|watch| watch.join().ok());
        Err(match ended {
            Some(Err(SupervisorError::Worker(code))) => PagingError::Pager(Some(code)),
            Some(Err(SupervisorError::System(why))) => cannot("start the pager")(why),
            _ => PagingError::Pager(None),
        })
    }

    fn make_swap(&mut self) -> Result<(), PagingError> {
        let file = OpenOptions::new().read(true).write(true).open(self.place.file());
        let file = file.map_err(cannot("open the file of pages"))?;
        let device = LoopDevice::over(&file).map_err(cannot("set up a loop device"))?;
        let priority = priority_now().map_err(cannot("choose a priority"))?;
        swap_on(device.path(), priority).map_err(cannot("use the swap area"))?;
        self.swap = Some(device.path().to_owned());
        Ok(())
    }

    /// How the swap area was when the pager began to serve it.
    pub const fn ready(&self) -> Ready {
        self.ready
    }

    /// The swap area's device.
    pub fn swap(&self) -> Option<&PathBuf> {
        self.swap.as_ref()
    }

    /// Runs a program until it ends; when `is_asked_to_end` says so it is asked to, and killed after a while. Whatever
    /// it leaves running is killed. Then everything is undone.
    ///
    /// # Errors
    /// If it cannot be started, the pager died, or something is left behind.
    pub fn run(
        mut self,
        command: Command,
        mut is_asked_to_end: impl FnMut() -> bool,
    ) -> Result<Ended, PagingError> {
        let mut program = program::start(command, &self.cgroup).map_err(cannot("start the program"))?;
        let mut asked = None::<Instant>;
        let status = loop {
            match program.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => break Ok(Some(code(status))),
                Err(error) => break Err(cannot("wait for the program")(error)),
            }
            if self.is_pager_gone() {
                // Again and again: the program may have begun after the pager's death was seen.
                self.cgroup.kill_all();
            } else if asked.is_some_and(|asked| asked.elapsed() > GRACE) {
                // It may wait for a page that does not come, and go only when that has failed: undoing sees to it.
                break Ok(None);
            } else if asked.is_none() && is_asked_to_end() {
                asked = Some(Instant::now());
                ask_to_end(&program);
            }
            std::thread::sleep(LOOK_AGAIN);
        };
        let is_pager_gone = self.is_pager_gone();
        // The cgroup, which counts them, is undone as well.
        let killed = self.cgroup.oom_kills().unwrap_or(0);
        self.undo()?;
        match (status?, asked) {
            (_, Some(_)) => Ok(Ended::Asked),
            (Some(code), None) if !is_pager_gone && killed > 0 => Ok(Ended::OutOfMemory { code, killed }),
            (Some(code), None) if !is_pager_gone => Ok(Ended::Program(code)),
            _ => Err(PagingError::PagerDied),
        }
    }

    fn is_pager_gone(&self) -> bool {
        self.is_pager_gone.load(Ordering::SeqCst)
    }

    fn undo(&mut self) -> Result<(), PagingError> {
        self.is_undone = true;
        let undone = undo(self.place);
        self.end_pager();
        undone.map_err(PagingError::Left)
    }

    /// Waits for the pager, not for ever.
    fn end_pager(&mut self) {
        let Some(watch) = self.watch.take() else { return };
        let begun = Instant::now();
        while !watch.is_finished() && begun.elapsed() < END_MAX {
            std::thread::sleep(LOOK_AGAIN);
        }
        self.pager.end();
        // A panic was printed by its thread.
        let _ = watch.join();
    }
}

impl Drop for Paging {
    fn drop(&mut self) {
        if !self.is_undone
            && let Err(error) = self.undo()
        {
            tracing::error!("{error}");
        }
    }
}

/// The commands of pagers.
struct Commands<P> {
    kept: Option<File>,
    has_begun: bool,
    pager: P,
}

impl<P: FnMut(Option<i32>) -> Command> Commands<P> {
    /// Of the next one. Without what the last one has kept it would not have its pages.
    fn next(&mut self) -> Option<Command> {
        if self.kept.is_none() && self.has_begun {
            return None;
        }
        self.has_begun = true;
        Some((self.pager)(self.kept.as_ref().map(kept::number)))
    }
}

fn kept() -> Option<File> {
    let kept = kept::create();
    kept.inspect_err(|error| tracing::info!("a pager that dies is not replaced here (Linux 6.9): {error}"))
        .ok()
}

fn ask_to_end(program: &Child) {
    if let Some(pid) = i32::try_from(program.id()).ok().and_then(Pid::from_raw) {
        // It is not waited for yet: the number is its own.
        let _ = kill_process(pid, Signal::TERM);
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}
