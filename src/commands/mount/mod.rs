//! `farcall mount`: a file system over memory nodes.

mod worker;

use super::memory::node_list::{NodeList, VALUE_NAME, joined};
use super::memory::size;
use super::nic_args::NicArgs;
use super::volume_args::VolumeArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::open_files;
use crate::signals::StopFlag;
use clap::Args;
use farcall_files::{BLOCK_BYTES, Supervisor, SupervisorError};
use serde_json::json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
pub use worker::Worker;

/// Mount a file system whose bytes are in the memory of other machines.
///
/// Files are kept by memory nodes (farcall memory serve), each block by several. It is mounted until umount or Ctrl-C;
/// then everything is gone, unless --snapshot names a file for it, or --volume a volume that nodes keep. Another
/// process serves the files: if it is killed, the next one takes over, and programs only wait (Linux 6.9). If this one
/// is killed the file system is taken off, and its files are gone; if both are at once, programs get errors until:
/// umount DIR. A volume is mounted again, here or on another machine, when the lease of the mount that died has ended:
/// all that was synced or closed is there. Needs root and /dev/fuse.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall memory serve --size 8G        on two machines\n  \
                  farcall mount /mnt --nodes a:11500,b:11500 --replicas 2 --size 8G\n  \
                  farcall mount /mnt --nodes a:11500,b:11500 --size 8G --snapshot /var/lib/files.farcall\n  \
                  farcall mount /mnt --nodes a:11500,b:11500 --size 8G \
                  --volume files --volume-key /etc/farcall/files.key\n  \
                  farcall mount /mnt --nodes etcd://etcd:2379/files --size 8G")]
pub struct Mount {
    /// The directory to mount at.
    dir: PathBuf,
    /// The memory nodes: where each farcall memory serve listens, separated by commas; or all that are registered in
    /// etcd, also later.
    #[arg(long, value_name = VALUE_NAME, value_parser = NodeList::parse)]
    nodes: NodeList,
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
    /// The volume to mount; nodes keep it under this name until: farcall memory forget.
    #[arg(long, value_name = "NAME", requires = "volume_key")]
    volume: Option<String>,
    /// The file with the volume's key, which is made if it is not there. Who has it can mount the volume. Nodes see
    /// half of it: it hides nothing from them, nor from who listens on the way.
    #[arg(long, value_name = "FILE", requires = "volume")]
    volume_key: Option<PathBuf>,
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
        let nodes = self.nodes.find(self.volume.as_deref())?;
        self.nodes.check_replicas(&nodes, self.replicas)?;
        if let Some(volume) = self.volume()
            && volume.make_key()?
        {
            let path = volume.volume_key.display();
            eprintln!("made a key for the volume: {path}; keep a copy: without it nobody mounts the volume");
        }
        let worker = self.worker(&nodes)?;
        let supervisor = Supervisor::start(&self.dir, worker).map_err(|error| cannot(&error))?;
        let (size_bytes, replicas, dir) = (whole_blocks(self.size), self.replicas, supervisor.dir());
        console.say_line(
            &format!(
                "{} at {} in the memory of {} nodes, {replicas} replicas (pid {})\n{}",
                size::text(size_bytes),
                dir.display(),
                nodes.len(),
                std::process::id(),
                supervisor.said(),
            ),
            &json!({ "serving": "files", "mounted": dir, "pid": std::process::id(), "size_bytes": size_bytes, "replicas": replicas }),
        )?;
        stop.wait_while(|| supervisor.is_serving());
        self.end(supervisor)
    }

    fn end(&self, mut supervisor: Supervisor) -> Result<Exit, Failure> {
        if supervisor.is_serving() {
            unmount(&supervisor)?;
        }
        supervisor.wait().map(|()| Exit::Success).map_err(|error| cannot(&error))
    }

    fn volume(&self) -> Option<VolumeArgs> {
        let (volume, volume_key) = (self.volume.clone()?, self.volume_key.clone()?);
        Some(VolumeArgs { volume, volume_key })
    }

    /// This program again, as the process that serves.
    fn worker(
        &self,
        nodes: &[SocketAddr],
    ) -> Result<impl FnMut(&Path, [i32; 3]) -> Command + Send + use<>, Failure> {
        let this = std::env::current_exe()
            .map_err(|error| Failure::because("cannot find the program that serves files", &error))?;
        let list = |items: Vec<String>| items.join(",");
        let mut options = vec![
            format!("--nodes={}", self.nodes),
            format!("--known={}", joined(nodes)),
            format!("--replicas={}", self.replicas),
            format!("--size={}", self.size),
            format!("--slab={}", self.slab),
        ];
        options.extend(self.nic.to_arguments());
        let (snapshot, volume) = (self.snapshot.clone(), self.volume());
        Ok(move |dir: &Path, state: [i32; 3]| {
            let mut command = Command::new(&this);
            command.arg("__mount-worker").arg(dir).args(&options);
            command.arg(format!("--state={}", list(state.iter().map(ToString::to_string).collect())));
            if let Some(snapshot) = &snapshot {
                command.arg("--snapshot").arg(snapshot);
            }
            if let Some(VolumeArgs { volume, volume_key }) = &volume {
                command.arg("--volume").arg(volume).arg("--volume-key").arg(volume_key);
            }
            command
        })
    }
}

const fn whole_blocks(bytes: u64) -> u64 {
    bytes / BLOCK_BYTES * BLOCK_BYTES
}

fn unmount(mounted: &Supervisor) -> Result<(), Failure> {
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

fn cannot(error: &SupervisorError) -> Failure {
    let failure = Failure::because("cannot serve files", error);
    match error {
        SupervisorError::Worker(4) => failure.exit(Exit::Unreachable),
        SupervisorError::Worker(2) => failure.exit(Exit::Usage),
        SupervisorError::Mount(_) => failure.remedy("see: farcall mount --help"),
        _ => failure.remedy("see what is missing: farcall doctor"),
    }
}
