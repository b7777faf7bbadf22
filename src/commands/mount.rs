//! `farcall mount`: a file system over memory nodes.

use super::kv::resolve;
use super::memory::size;
use super::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::open_files;
use crate::signals::StopFlag;
use clap::Args;
use farcall::memory::{ClientConfig, OpenError, RemoteMemory};
use farcall_files::{BLOCK_BYTES, Caller, Mount as Mounted, Time, Tree, Volume};
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Mount a file system whose bytes are in the memory of other machines.
///
/// Files are kept by memory nodes (farcall memory serve), each block by several. It is mounted until umount or Ctrl-C;
/// then everything is gone, unless --snapshot names a file for it. Names and permissions are kept by this process: if it
/// is killed, the files are gone, too, and programs get errors until: umount DIR. Needs root and /dev/fuse.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall memory serve --size 8G        on two machines\n  \
                  farcall mount /mnt --nodes a:11500,b:11500 --replicas 2 --size 8G\n  \
                  farcall mount /mnt --nodes a:11500,b:11500 --size 8G --snapshot /var/lib/files.farcall")]
pub struct Mount {
    /// The directory to mount at.
    dir: PathBuf,
    /// The memory nodes: where each farcall memory serve listens, separated by commas.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', required = true, value_parser = resolve)]
    nodes: Vec<SocketAddr>,
    /// How many nodes keep each block.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// The size of the file system. Memory is taken from nodes as it is written to.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::bytes)]
    size: u64,
    /// What is asked of a node at once: no more than its slabs have.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::bytes)]
    slab: u64,
    /// Begin with what this file holds, if it exists, and write it when the file system was unmounted.
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    #[command(flatten)]
    nic: NicArgs,
}

impl Mount {
    /// Mounts, and serves until it is unmounted.
    ///
    /// # Errors
    /// When no node can be used, or the system does not mount.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        open_files::raise_limit();
        let (provider, explanation) = {
            let chosen = self.nic.choose()?;
            (chosen.provider, chosen.explanation.to_string())
        };
        if usize::from(self.replicas) > self.nodes.len() {
            return Err(Failure::new("cannot keep so many replicas")
                .why(format!("--replicas is {}, and --nodes names {}", self.replicas, self.nodes.len()))
                .remedy("name more nodes, or lower --replicas")
                .exit(Exit::Usage));
        }
        let size_bytes = self.size / BLOCK_BYTES * BLOCK_BYTES;
        let config = ClientConfig {
            name: format!("mount {}", std::process::id()),
            nodes: self.nodes.iter().map(ToString::to_string).collect(),
            size_bytes,
            replicas: self.replicas.into(),
            slab_bytes: self.slab,
            ..ClientConfig::default()
        };
        let memory =
            Arc::new(RemoteMemory::open(provider.into(), config).map_err(|error| cannot_open(&error))?);
        let tree = self.tree(&memory, size_bytes)?;
        let volume = Arc::new(Volume::new(tree, Box::new(Arc::clone(&memory))));
        let mut mounted = Mounted::start(&self.dir, Arc::clone(&volume))
            .map_err(|error| Failure::because("cannot mount", &error).remedy("see: farcall mount --help"))?;
        let replicas = self.replicas;
        console.say_line(
            &format!(
                "{} at {} in the memory of {} nodes, {replicas} replicas (pid {})\n{explanation}",
                size::text(size_bytes),
                mounted.dir().display(),
                self.nodes.len(),
                std::process::id(),
            ),
            &json!({ "mounted": mounted.dir(), "pid": std::process::id(), "size_bytes": size_bytes, "replicas": replicas }),
        )?;
        stop.wait_while(|| mounted.is_serving());
        if mounted.is_serving() {
            unmount(&mounted)?;
        }
        mounted.wait();
        self.save(&volume)
    }

    fn tree(&self, memory: &RemoteMemory, size_bytes: u64) -> Result<Tree, Failure> {
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
        Ok(Tree::new(size_bytes / BLOCK_BYTES, owner, now))
    }

    fn save(&self, volume: &Volume) -> Result<Exit, Failure> {
        let Some(path) = &self.snapshot else { return Ok(Exit::Success) };
        farcall_files::save(volume, path).map(|()| Exit::Success).map_err(|error| {
            Failure::because("the snapshot was not written; what was there before is", &error)
                .at(path.display())
        })
    }
}

fn unmount(mounted: &Mounted) -> Result<(), Failure> {
    let Err(busy) = mounted.unmount() else { return Ok(()) };
    if !mounted.is_serving() {
        return Ok(());
    }
    let dir = mounted.dir().display();
    eprintln!(
        "{dir}: {busy}: taken off; it serves on until nothing is in use there. Once more to end at once."
    );
    mounted.detach().map_err(|error| Failure::because("cannot unmount", &error).at(mounted.dir().display()))
}

fn cannot_open(error: &OpenError) -> Failure {
    let failure = Failure::because("cannot use the memory nodes", error);
    match error {
        OpenError::NoNode(_) => failure
            .remedy("start them: farcall memory serve; or name others with --nodes")
            .exit(Exit::Unreachable),
        OpenError::Range { .. } | OpenError::NotPages { .. } => {
            failure.remedy("change --size or --slab").exit(Exit::Usage)
        }
        _ => failure.remedy("see what is missing: farcall doctor"),
    }
}
