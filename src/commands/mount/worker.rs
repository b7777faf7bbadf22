//! The process that serves the files of `farcall mount`: this program, started again by the supervisor.

use super::{MountArgs, background, whole_blocks};
use crate::commands::memory::node_list::etcd_failure;
use crate::commands::memory::size;
use crate::commands::volume_args::VolumeArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::open_files;
use clap::Args;
use farcall::Nic;
use farcall::memory::{ClientConfig, OpenError, RemoteMemory, Takeover};
use farcall_files::{
    BLOCK_BYTES, Caller, Journal, Lineage, Log, Mount as Mounted, MountEnd, State, Time, Tree, Volume,
};
use farcall_memory::membership::NodeDiscovery;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Interval between two claims of a volume that programs wait for.
const CLAIM_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of characters of the host name that are sent to nodes.
const HOST_CHARS_MAX: usize = 12;

/// Serves the files of a mount: its standard input is /dev/fuse, its standard output a pipe to its supervisor.
#[derive(Debug, Args)]
pub struct Worker {
    #[command(flatten)]
    mount: MountArgs,
    /// Memory nodes that the supervisor found.
    #[arg(long, value_delimiter = ',', required = true)]
    known: Vec<SocketAddr>,
    /// State of the last process: the descriptors of three files.
    #[arg(long, value_delimiter = ',', required = true)]
    state: Vec<i32>,
}

impl Worker {
    /// Serves until the file system is unmounted, or the process loses the volume.
    ///
    /// # Errors
    /// If no node can be used, or the snapshot cannot be read or written.
    pub fn run(self, _console: Console) -> Result<Exit, Failure> {
        open_files::raise_limit();
        let given = farcall_files::Worker::from_standard_streams().map_err(cannot_take_over)?;
        let selected = self.mount.nic.open()?;
        let nic = selected.nic;
        let Opened { volume, discovery, description, is_first } = self.open_in_time(&nic, &given)?;
        let line = selected.explanation.replace('\n', "; ") + &description + &self.serve_metrics(is_first)?;
        let (device, dir) = (given.device().map_err(cannot_take_over)?, self.mount.dir.clone());
        let serve = if is_first { Mounted::serve } else { Mounted::take_over };
        let mut mounted = serve(device, dir.clone(), Arc::clone(&volume)).map_err(cannot_take_over)?;
        given.report_ready(&line, dir).map_err(cannot_take_over)?;
        if self.mount.detached {
            background::log_to_journal().map_err(cannot_take_over)?;
        }
        let end = mounted.wait();
        if end == MountEnd::Lost {
            tracing::warn!("this process has lost the volume; the next one claims it");
            // Threads with pending requests would never end, and no resources remain to be released.
            std::process::exit(farcall_files::Worker::LOST);
        }
        drop(discovery);
        volume
            .sync()
            .map_err(|error| Failure::because("the last changes did not reach the memory nodes", &error))?;
        self.mount.save(&volume)
    }
}

fn cannot_take_over(error: io::Error) -> Failure {
    Failure::because("cannot take over the files", &error)
}

/// The file system that is served.
struct Opened {
    volume: Arc<Volume>,
    discovery: Option<NodeDiscovery>,
    /// Description printed for the user.
    description: String,
    /// `true` if no process has served it before.
    is_first: bool,
}

/// Reason for which the file system is not served yet.
struct NotOpened {
    failure: Failure,
    /// `true` if the cause may be temporary: other nodes may reply later, or another mount may end.
    may_pass: bool,
}

impl NotOpened {
    fn of(error: &OpenError) -> Self {
        let may_pass = matches!(
            error,
            OpenError::NoNode(_)
                | OpenError::Held(_)
                | OpenError::Volume { .. }
                | OpenError::Incomplete { .. }
        );
        Self { failure: cannot_open(error), may_pass }
    }
}

impl From<Failure> for NotOpened {
    fn from(failure: Failure) -> Self {
        Self { failure, may_pass: false }
    }
}

impl From<io::Error> for NotOpened {
    fn from(error: io::Error) -> Self {
        cannot_take_over(error).into()
    }
}

impl Worker {
    /// Opens the file system. If programs are already waiting, retries until the file system is unmounted, and records
    /// the reason for the wait.
    fn open_in_time(&self, nic: &Nic, given: &farcall_files::Worker) -> Result<Opened, Failure> {
        let mut reported = String::new();
        loop {
            let (is_first, opened) = self.open(nic)?;
            let failure = match opened {
                Ok(opened) => return Ok(opened),
                Err(NotOpened { failure, may_pass: true }) if !is_first => failure,
                Err(not_opened) => return Err(not_opened.failure),
            };
            let why = failure.reason().to_owned();
            if why != reported {
                tracing::warn!("programs wait: {why}");
            }
            if !given.report_wait(&why, &self.mount.dir, CLAIM_INTERVAL).map_err(cannot_take_over)? {
                let what =
                    "unmounted before the volume was available again; changes that were not synced are lost";
                return Err(Failure::new(what).why(why));
            }
            reported = why;
        }
    }

    /// Opens the state that the previous process stored, which may be empty. Also returns whether it is empty.
    fn open(&self, nic: &Nic) -> Result<(bool, Result<Opened, NotOpened>), Failure> {
        let numbers = self.state.clone().try_into();
        let numbers = numbers.map_err(|_| cannot_take_over(io::ErrorKind::InvalidInput.into()))?;
        let State { memory, journal } = State::inherited(numbers).map_err(cannot_take_over)?;
        let Some(args) = self.mount.volume() else {
            let (journal, earlier) = Journal::open(journal).map_err(cannot_take_over)?;
            return Ok((earlier.is_none(), self.resume(nic, memory, journal, earlier)));
        };
        let lineage = Arc::new(Lineage::open(memory).map_err(cannot_take_over)?);
        let (journal, earlier) = Journal::open_in_era(journal, lineage.era()).map_err(cannot_take_over)?;
        Ok((earlier.is_none(), self.claim(nic, &args, &lineage, journal, earlier)))
    }

    fn resume(
        &self,
        nic: &Nic,
        kept: File,
        journal: Journal,
        earlier: Option<Tree>,
    ) -> Result<Opened, NotOpened> {
        let memory = RemoteMemory::resume(nic, self.config(), kept);
        let memory = Arc::new(memory.map_err(|error| NotOpened::of(&error))?);
        let discovery = self.mount.nodes.join(&memory, None)?;
        let is_first = earlier.is_none();
        let tree = earlier.map_or_else(|| self.mount.tree(&memory), Ok)?;
        let volume = Arc::new(Volume::with_journal(tree, Box::new(memory), journal));
        Ok(Opened { volume, discovery, description: String::new(), is_first })
    }

    /// Claims the volume.
    fn claim(
        &self,
        nic: &Nic,
        args: &VolumeArgs,
        lineage: &Arc<Lineage>,
        journal: Journal,
        earlier: Option<Tree>,
    ) -> Result<Opened, NotOpened> {
        let size_bytes = whole_blocks(self.mount.size);
        let mut config = args.read(lineage.holder(), Log::metadata_bytes(size_bytes))?;
        config = config.with_history(Arc::clone(lineage) as _);
        if self.mount.read_only {
            config = config.read_only();
        }
        // The option applies to the state before this mount; later processes continue from the state of this mount.
        if let Some(survivor) = self.mount.survivor.filter(|_| !lineage.has_claimed()) {
            config = config.survivor(survivor.to_string());
        }
        let claimed = RemoteMemory::claim(nic, self.config(), &config);
        let (memory, takeover) = claimed.map_err(|error| NotOpened::of(&error))?;
        let is_first = earlier.is_none();
        self.record_nodes(&args.volume, &takeover, is_first)?;
        let memory = Arc::new(memory);
        let (log, tree) = if self.mount.read_only {
            (None, Log::read(size_bytes, &takeover.metadata)?)
        } else {
            let (log, tree) = Log::open(Arc::clone(&memory) as _, size_bytes, &takeover.metadata)?;
            (Some(log), tree)
        };
        // The tree stored on this machine is newer, unless another mount has changed the volume since.
        let is_current = lineage.is_tree_current();
        if !is_current && !is_first {
            tracing::warn!("another mount has changed the volume; changes that were not synced are lost");
        }
        let (tree, journal) = match earlier {
            Some(earlier) if is_current => (Some(earlier), journal),
            _ => (tree, journal.restarted(lineage.era())),
        };
        let journal = log.into_iter().fold(journal, Journal::with_log);
        let discovery = self.mount.nodes.join(&memory, Some(&args.volume))?;
        let tree = tree.map_or_else(|| self.mount.tree(&memory), Ok)?;
        let volume = Arc::new(Volume::with_journal(tree, Box::new(memory), journal));
        volume
            .sync()
            .map_err(|error| NotOpened { failure: cannot_take_over(error.into()), may_pass: true })?;
        lineage.tree_is_current()?;
        Ok(Opened { volume, discovery, description: text(args, &takeover), is_first })
    }

    /// Serves metrics, if requested, and returns the address as text. A process that takes over does not fail because
    /// of metrics.
    fn serve_metrics(&self, is_first: bool) -> Result<String, Failure> {
        match self.mount.metrics.start() {
            Ok(address) => {
                Ok(address.map_or_else(String::new, |address| format!("; http://{address}/metrics")))
            }
            Err(failure) if is_first => Err(failure),
            Err(failure) => {
                tracing::warn!("the files are served, but metrics are not: {failure}");
                Ok(String::new())
            }
        }
    }

    fn config(&self) -> ClientConfig {
        let mount = &self.mount;
        ClientConfig {
            name: format!("mount {} at {}", std::process::id(), host_name()),
            nodes: self.known.iter().map(ToString::to_string).collect(),
            nodes_max: mount.nodes.nodes_max(),
            size_bytes: whole_blocks(mount.size),
            replicas: mount.replicas.into(),
            slab_bytes: mount.slab,
            ..ClientConfig::default()
        }
    }

    /// Records in etcd which nodes have the volume, before it is written to, so that the next mount queries them.
    fn record_nodes(&self, volume: &str, takeover: &Takeover, is_first: bool) -> Result<(), Failure> {
        let Some(directory) = self.mount.nodes.directory() else { return Ok(()) };
        let has_it = |node: &&SocketAddr| takeover.nodes.contains(&node.to_string());
        let nodes = self.known.iter().filter(has_it).copied().collect();
        match directory.record_volume(volume, nodes) {
            // Every node that has it now had it when the first process recorded the nodes.
            Err(error) if !is_first => {
                tracing::warn!(%directory, "the nodes of the volume were not recorded in etcd: {error}");
                Ok(())
            }
            recorded => recorded.map_err(|error| etcd_failure(directory, &error)),
        }
    }
}

impl MountArgs {
    fn tree(&self, memory: &RemoteMemory) -> Result<Tree, Failure> {
        if let Some(path) = self.snapshot.as_ref().filter(|path| path.exists()) {
            return farcall_files::restore(path, memory).map_err(|error| {
                Failure::because("cannot restore the snapshot", &error)
                    .at(path.display())
                    .remedy("name another file with --snapshot, or use its original --size")
            });
        }
        let owner =
            Caller { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        // A clock before 1970 counts as 1970.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Time { seconds: since.as_secs().cast_signed(), nanos: since.subsec_nanos() };
        Ok(Tree::new(self.size / BLOCK_BYTES, owner, now))
    }

    fn save(&self, volume: &Volume) -> Result<Exit, Failure> {
        let Some(path) = &self.snapshot else { return Ok(Exit::Success) };
        farcall_files::save(volume, path).map(|()| Exit::Success).map_err(|error| {
            Failure::because("the snapshot was not written; an earlier one is unchanged", &error)
                .at(path.display())
        })
    }
}

/// Returns the text that is printed about a volume when it is mounted.
fn text(args: &VolumeArgs, takeover: &Takeover) -> String {
    let age = if takeover.is_new { "new" } else { "taken over" };
    let missing: u64 = takeover.missing.iter().map(|range| range.end - range.start).sum();
    let missing = match missing {
        0 => String::new(),
        missing => format!("; no reachable node has {} of it", size::text(missing)),
    };
    format!("; volume {:?}: {age}, epoch {}{missing}", args.volume, takeover.epoch)
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().chars().take(HOST_CHARS_MAX).collect()
}

fn cannot_open(error: &OpenError) -> Failure {
    let failure = Failure::because("cannot use the memory nodes", error);
    match error {
        OpenError::NoNode(_) => failure
            .remedy("start memory nodes: farcall memory serve; or name others with --nodes")
            .exit(Exit::Unreachable),
        OpenError::Held(_) => failure.remedy("find the mount that holds it: farcall memory status"),
        OpenError::Volume { .. } => failure.remedy(
            "list the volumes of the nodes: farcall memory status; if some nodes are lost: farcall mount --survivor HOST:PORT",
        ),
        OpenError::Incomplete { .. } => {
            failure.remedy("start the nodes that have these bytes, or mount the rest: farcall mount --read-only")
        }
        OpenError::Range { .. } | OpenError::NotPages { .. } => {
            failure.remedy("change --size or --slab").exit(Exit::Usage)
        }
        _ => failure.remedy("find out what is missing: farcall doctor"),
    }
}
