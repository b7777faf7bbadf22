//! Where everything of one run is: names that follow from the keeper's process alone, so that whoever undoes it needs
//! nothing else. The record there holds what pager and status want to know; both processes hold a lock on it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farcall_files::ONE_FILE_NAME;
use farcall_memory::SpaceStatus;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Root's own, and gone after a restart of the machine, as all the rest is.
const DIRECTORY: &str = "/run/farcall-page";
const VERSION: u32 = 2;
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// What is paged, and where to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Of this format.
    pub version: u32,
    /// Memory nodes; without one the pager keeps pages itself, to measure beside.
    pub nodes: Vec<SocketAddr>,
    /// Where others register (`farcall_memory::membership::Directory`).
    pub directory: Option<String>,
    /// How many keep each page.
    pub replicas: u8,
    /// Bytes of the swap area.
    pub size_bytes: u64,
    /// What is asked of a node at once.
    pub slab_bytes: u64,
    /// Memory that the program may have resident.
    pub resident_bytes: u64,
    /// Whether it may begin where the kernel does not let the pager's own requests for memory go first.
    pub may_stall: bool,
    /// The program, for people.
    pub program: String,
}

impl Config {
    /// The version that this build writes.
    pub const VERSION: u32 = VERSION;
}

/// What the pager reports when it serves pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Slabs of the swap area.
    pub slabs: usize,
    /// Slabs with fewer replicas than the configuration says: the memory nodes have no room for more.
    pub degraded: usize,
}

impl Ready {
    pub(crate) const fn of(status: &SpaceStatus) -> Self {
        Self { slabs: status.extents, degraded: status.degraded }
    }
}

/// The names of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    keeper: u32,
}

impl Place {
    /// That of a keeper.
    pub const fn of(keeper: u32) -> Self {
        Self { keeper }
    }

    /// The process of the keeper.
    pub const fn keeper(self) -> u32 {
        self.keeper
    }

    fn record(self) -> PathBuf {
        Path::new(DIRECTORY).join(self.keeper.to_string())
    }

    /// Where the file system is mounted.
    pub fn mount(self) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{}.mount", self.keeper))
    }

    /// The file that the loop device is over.
    pub fn file(self) -> PathBuf {
        self.mount().join(ONE_FILE_NAME)
    }

    /// The name of the cgroup.
    pub fn cgroup(self) -> String {
        format!("farcall-page-{}", self.keeper)
    }

    /// Takes it: the record is written and locked, the directory to mount at is there.
    pub fn take(self, config: &Config) -> io::Result<Held> {
        make_directory()?;
        // Under another name first: nobody meets a record that is not locked yet.
        let fresh = Path::new(DIRECTORY).join(format!(".{}", self.keeper));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        file.write_all(&serde_json::to_vec(config)?)?;
        fs::rename(&fresh, self.record())?;
        DirBuilder::new().mode(0o700).create(self.mount())?;
        Ok(Held { _record: file })
    }

    /// Holds it together with who took it, and reads what is paged.
    pub fn join(self) -> io::Result<(Held, Config)> {
        let file = File::open(self.record())?;
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        let config = read(&file)?;
        Ok((Held { _record: file }, config))
    }

    /// What is paged there.
    pub fn config(self) -> io::Result<Config> {
        read(&File::open(self.record())?)
    }

    /// Holds it if nobody else does.
    pub fn inherit(self) -> io::Result<Option<Held>> {
        let file = match File::open(self.record()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Held { _record: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the directory and the record: the last that is undone.
    pub fn give_up(self) -> io::Result<()> {
        for gone in [fs::remove_dir(self.mount()), fs::remove_file(self.record())] {
            match gone {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A place that is held: nobody cleans up there meanwhile.
#[derive(Debug)]
pub struct Held {
    _record: File,
}

/// A place whose processes are gone.
#[derive(Debug)]
pub struct Leftover {
    /// Which.
    pub place: Place,
    /// Nobody else cleans up there.
    _held: Held,
}

fn read(file: &File) -> io::Result<Config> {
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes)?;
    let config: Config = serde_json::from_slice(&bytes)?;
    if config.version != VERSION {
        let why = format!("its record has version {}; this build knows {VERSION}", config.version);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(config)
}

fn make_directory() -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(DIRECTORY)?;
    let owner = fs::metadata(DIRECTORY)?;
    if owner.uid() != rustix::process::geteuid().as_raw() || owner.mode() & 0o077 != 0 {
        let why = format!("{DIRECTORY} is another's, or others may go there");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// All places, in use or left.
pub fn places() -> io::Result<Vec<Place>> {
    let directory = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        directory => directory?,
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(directory.filter_map(name).map(Place::of).collect())
}

/// Those whose processes are gone.
pub fn leftovers() -> io::Result<Vec<Leftover>> {
    let held = |place: Place| {
        let held = place.inherit().transpose()?;
        Some(held.map(|held| Leftover { place, _held: held }))
    };
    places()?.into_iter().filter_map(held).collect()
}
