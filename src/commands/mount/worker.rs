//! The process that serves the files of `farcall mount`: this program again, started by its supervisor.

use super::{Mount, whole_blocks};
use crate::commands::memory::node_list::no_help;
use crate::failure::{Exit, Failure};
use crate::open_files;
use clap::Args;
use farcall::memory::{ClientConfig, OpenError, RemoteMemory, Takeover};
use farcall::verbs::Provider;
use farcall_files::{BLOCK_BYTES, Caller, Journal, Log, Mount as Mounted, State, Time, Tree, Volume};
use farcall_link::Entropy;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Of a machine's name, so much is told to nodes.
const HOST_CHARS_MAX: usize = 12;

/// Serves the files of a mount: its standard input is /dev/fuse, its standard output who started it.
#[derive(Debug, Args)]
pub struct Worker {
    #[command(flatten)]
    mount: Mount,
    /// The memory nodes that who started it found.
    #[arg(long, value_delimiter = ',', required = true)]
    known: Vec<SocketAddr>,
    /// What the last process kept: the numbers of three files.
    #[arg(long, value_delimiter = ',', required = true)]
    state: Vec<i32>,
}

impl Worker {
    /// Serves until it is unmounted.
    ///
    /// # Errors
    /// When no node can be used, or the snapshot cannot be read or written.
    pub fn run(self) -> Result<Exit, Failure> {
        let cannot = |error: io::Error| Failure::because("cannot take over the files", &error);
        open_files::raise_limit();
        let numbers =
            self.state.clone().try_into().map_err(|_| cannot(io::ErrorKind::InvalidInput.into()))?;
        let State { memory, journal } = State::inherited(numbers).map_err(cannot)?;
        let given = farcall_files::Worker::of_standard_streams().map_err(cannot)?;
        let chosen = self.mount.nic.choose()?;
        let (journal, earlier) = Journal::open(journal).map_err(cannot)?;
        let is_first = earlier.is_none();
        let Opened { memory, tree, journal, said } =
            self.open(chosen.provider.into(), memory, journal, earlier)?;
        let line = chosen.explanation.to_string().replace('\n', "; ") + &said;
        let joining = self.mount.nodes.join(&memory, self.mount.volume.as_deref())?;
        let tree = tree.map_or_else(|| self.mount.tree(&memory), Ok)?;
        let volume = Arc::new(Volume::kept(tree, Box::new(memory), journal));
        volume.sync().map_err(|error| cannot(error.into()))?;
        let (device, dir) = (given.device().map_err(cannot)?, self.mount.dir.clone());
        let serve = if is_first { Mounted::serve } else { Mounted::take_over };
        let mut mounted = serve(device, dir.clone(), Arc::clone(&volume)).map_err(cannot)?;
        given.serves(&line, dir).map_err(cannot)?;
        mounted.wait();
        drop(joining);
        volume
            .sync()
            .map_err(|error| Failure::because("the last changes are not at the memory nodes", &error))?;
        self.mount.save(&volume)
    }
}

/// What the files are made of.
struct Opened {
    memory: Arc<RemoteMemory>,
    tree: Option<Tree>,
    journal: Journal,
    /// What the user is told of it.
    said: String,
}

/// What this mount proves to nodes that it is the same by, whichever process serves it.
fn holder(kept: &File) -> io::Result<[u8; 16]> {
    let mut holder = [0; 16];
    if kept.read_at(&mut holder, 0)? < holder.len() {
        holder = Entropy::System.bytes()?;
        kept.write_all_at(&holder, 0)?;
    }
    Ok(holder)
}

impl Worker {
    /// Opens what the last process kept, which may be nothing, or claims the volume.
    fn open(
        &self,
        provider: Arc<dyn Provider>,
        kept: File,
        journal: Journal,
        earlier: Option<Tree>,
    ) -> Result<Opened, Failure> {
        let cannot = |error: io::Error| Failure::because("cannot take over the files", &error);
        let Some(args) = self.mount.volume() else {
            let memory = RemoteMemory::resume(provider, self.config(), kept);
            let memory = Arc::new(memory.map_err(|error| cannot_open(&error))?);
            return Ok(Opened { memory, tree: earlier, journal, said: String::new() });
        };
        let size_bytes = whole_blocks(self.mount.size);
        let volume = args.read(holder(&kept).map_err(cannot)?, Log::notes_bytes(size_bytes))?;
        let claimed = RemoteMemory::claim(provider, self.config(), &volume);
        let (memory, takeover) = claimed.map_err(|error| cannot_open(&error))?;
        self.note_nodes(&args.volume, &takeover, earlier.is_none())?;
        let age = if takeover.is_new { "new" } else { "taken over" };
        let said = format!("; volume {:?}: {age}, epoch {}", args.volume, takeover.epoch);
        let memory = Arc::new(memory);
        let log = Log::open(Arc::clone(&memory) as _, size_bytes, &takeover.notes);
        let (log, tree) = log.map_err(cannot)?;
        // What this machine has kept is newer.
        Ok(Opened { memory, tree: earlier.or(tree), journal: journal.with_log(log), said })
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

    /// Notes in etcd which nodes have the volume: before anything is written to it, so that the next mount asks them.
    fn note_nodes(&self, volume: &str, takeover: &Takeover, is_first: bool) -> Result<(), Failure> {
        let Some(directory) = self.mount.nodes.directory() else { return Ok(()) };
        let has_it = |node: &&SocketAddr| takeover.nodes.contains(&node.to_string());
        let nodes = self.known.iter().filter(has_it).copied().collect();
        match directory.note_volume(volume, nodes) {
            // No node has it now that had not when the first process noted them.
            Err(error) if !is_first => {
                tracing::warn!(%directory, "it is not noted which nodes have the volume now: {error}");
                Ok(())
            }
            noted => noted.map_err(|error| no_help(directory, &error)),
        }
    }
}

impl Mount {
    fn tree(&self, memory: &RemoteMemory) -> Result<Tree, Failure> {
        if let Some(path) = self.snapshot.as_ref().filter(|path| path.exists()) {
            return farcall_files::restore(path, memory).map_err(|error| {
                Failure::because("cannot restore the snapshot", &error)
                    .at(path.display())
                    .remedy("name another file with --snapshot, or give it the --size that it had")
            });
        }
        let owner =
            Caller { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        // Before 1970 there was no FUSE.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Time { seconds: since.as_secs().cast_signed(), nanos: since.subsec_nanos() };
        Ok(Tree::new(self.size / BLOCK_BYTES, owner, now))
    }

    fn save(&self, volume: &Volume) -> Result<Exit, Failure> {
        let Some(path) = &self.snapshot else { return Ok(Exit::Success) };
        farcall_files::save(volume, path).map(|()| Exit::Success).map_err(|error| {
            Failure::because("the snapshot was not written; what was there before is", &error)
                .at(path.display())
        })
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().chars().take(HOST_CHARS_MAX).collect()
}

fn cannot_open(error: &OpenError) -> Failure {
    let failure = Failure::because("cannot use the memory nodes", error);
    match error {
        OpenError::NoNode(_) => failure
            .remedy("start them: farcall memory serve; or name others with --nodes")
            .exit(Exit::Unreachable),
        OpenError::Held(_) => failure.remedy("see who has it: farcall memory status"),
        OpenError::Volume { .. } => failure.remedy("see what nodes keep: farcall memory status"),
        OpenError::Range { .. } | OpenError::NotPages { .. } => {
            failure.remedy("change --size or --slab").exit(Exit::Usage)
        }
        _ => failure.remedy("see what is missing: farcall doctor"),
    }
}
