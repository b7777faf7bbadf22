//! Files on `farcall mount`, and on file systems compared with it: rate of sequential records, as IOzone measures it.

mod empty;
mod mounted;
mod passes;

pub(crate) use empty::EmptyFiles;
pub(crate) use passes::Pass;

use crate::experiments::server::ServerError;
use crate::experiments::{ExperimentEnv, ExperimentError};
use crate::peer::PeerError;
use crate::report::Report;
use farcall::select::Selection;
use farcall_verbs::with_sources;
use mounted::Mounted;
use passes::{Contents, PassState};
use rustix::mount::{UnmountFlags, unmount};
use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// File system of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// `farcall mount`, with the bytes in the memory of one node.
    Remote,
    /// A file system with the same loop that stores nothing.
    Empty,
    /// Memory of this host, without FUSE.
    Tmpfs,
}

names! { Place { Remote => "farcall mount", Empty => "an empty FUSE daemon", Tmpfs => "tmpfs" } }

/// A pass over a file, record by record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilesTask {
    pub(crate) place: Place,
    pub(crate) pass: Pass,
    pub(crate) record_bytes: usize,
}

/// Reason why a file system could not be mounted, as a sentence.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotMounted(String);

impl fmt::Display for FilesTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, records of {} B", self.place, self.pass, self.record_bytes)
    }
}

/// One file for each [`Place`], created when it is first needed. Dropping this unmounts the mounted file systems.
#[derive(Default)]
pub(crate) struct Files {
    /// Indexed by the order of [`Place::ALL`]; an error holds the reason why there is no file.
    files: [Option<Result<Opened, NotMounted>>; Place::ALL.len()],
}

/// The file is dropped before the file system that contains it.
struct Opened {
    file: PassState,
    _on: On,
}

/// The file system that contains the file, retained until its end.
enum On {
    Remote { _mounted: Mounted },
    Empty { _empty: MountedEmpty },
    Tmpfs { _dir: TempDir },
}

impl Files {
    /// Returns the bytes a second of a pass. If the file system cannot be mounted here, that is a note.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written or read, or if its bytes are not those that were written.
    pub(crate) fn measure(
        &mut self,
        task: &FilesTask,
        nic: &Selection,
        env: &ExperimentEnv,
        report: &mut Report,
    ) -> Result<Option<f64>, ExperimentError> {
        let at = Place::ALL.iter().position(|place| *place == task.place).unwrap_or(0);
        let opened = match &mut self.files[at] {
            Some(opened) => opened,
            None => self.files[at].insert(open(task.place, nic, env)),
        };
        match opened {
            Ok(opened) => Ok(Some(opened.file.pass(task.pass, task.record_bytes)?)),
            Err(why) => {
                report.note(format!("{} is not measured: {why}.", task.place));
                Ok(None)
            }
        }
    }
}

/// Returns the length of a file in bytes: far more than caches hold, less if measurements are shorter than the
/// default.
fn file_bytes(env: &ExperimentEnv) -> u64 {
    let part = env.scaled(Duration::from_secs(1)).as_secs_f64();
    ((256.0 * part) as u64).max(1) << 20
}

fn open(place: Place, nic: &Selection, env: &ExperimentEnv) -> Result<Opened, NotMounted> {
    let len_bytes = file_bytes(env);
    let (dir, name, contents, on) = match place {
        Place::Remote => {
            let mounted = Mounted::start(nic, env, 2 * len_bytes)?;
            (mounted.dir().to_owned(), "file", Contents::Kept, On::Remote { _mounted: mounted })
        }
        Place::Empty => {
            let empty = MountedEmpty::start(env, len_bytes)?;
            (
                empty.dir().to_owned(),
                farcall_files::ONE_FILE_NAME,
                Contents::None,
                On::Empty { _empty: empty },
            )
        }
        Place::Tmpfs => {
            let dir =
                TempDir::new_in("/dev/shm").map_err(|error| NotMounted(format!("/dev/shm: {error}")))?;
            (dir.path().to_owned(), "file", Contents::Kept, On::Tmpfs { _dir: dir })
        }
    };
    Ok(Opened { file: PassState::new(dir.join(name), len_bytes, contents), _on: on })
}

impl From<ServerError> for NotMounted {
    fn from(error: ServerError) -> Self {
        Self(with_sources(&error))
    }
}

impl From<PeerError> for NotMounted {
    fn from(error: PeerError) -> Self {
        Self(with_sources(&error))
    }
}

/// Creates a directory to mount at, if this process can mount.
fn directory() -> Result<TempDir, NotMounted> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| NotMounted(format!("/dev/fuse cannot be opened: {error} (run it as root)")))?;
    tempfile::Builder::new()
        .prefix("farcall-files")
        .tempdir()
        .map_err(|error| NotMounted(format!("there is no directory to mount at: {error}")))
}

/// Unmounts the file system even if it is in use, because no process serves it any more.
fn take_off(dir: &Path) {
    // It may already be unmounted.
    let _ = unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
}

/// The empty file system, and the peer that serves it.
struct MountedEmpty {
    dir: TempDir,
    _peer: crate::peer::Peer,
}

impl MountedEmpty {
    fn start(env: &ExperimentEnv, len_bytes: u64) -> Result<Self, NotMounted> {
        let dir = directory()?;
        let task = EmptyFiles { dir: dir.path().to_owned(), len_bytes };
        let peer = env.launcher.start(&task, env.server_core, &[])?;
        Ok(Self { dir, _peer: peer })
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for MountedEmpty {
    fn drop(&mut self) {
        take_off(self.dir.path());
    }
}
