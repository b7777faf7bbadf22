//! `farcall mount`: a file system over memory nodes.

mod background;
mod helper;
mod list;
mod record;
mod umount;
mod worker;

use super::command_group::command_group;
use super::kv::resolve;
use super::memory::node_list::{NodeList, VALUE_NAME, joined};
use super::memory::size;
use super::metrics::MetricsArgs;
use super::nic_args::NicArgs;
use super::volume_args::VolumeArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::open_files;
use crate::signals::StopFlag;
use clap::{ArgMatches, Args, FromArgMatches, Subcommand};
use farcall_files::{BLOCK_BYTES, MountError, MountOptions, Supervisor, SupervisorError};
pub use helper::Helper;
pub use list::{List, mounts_here};
use record::Record;
use serde_json::json;
use std::cell::RefCell;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
pub use umount::Umount;
pub use worker::Worker;

/// Source of a mount without a volume, as displayed by findmnt.
const NO_VOLUME: &str = "farcall";

/// `farcall mount DIR`, or one of its subcommands. Implemented without the derive of clap, which has no enum of arguments
/// and subcommands.
#[derive(Debug)]
pub enum Mount {
    /// Mounts.
    Mount(Box<MountArgs>),
    /// Runs a subcommand.
    Query(MountQuery),
}

command_group! {
    pub enum MountQuery {
        always {
            List(list::List),
        }
    }
}

impl FromArgMatches for Mount {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand_name() {
            Some(_) => MountQuery::from_arg_matches(matches).map(Self::Query),
            None => MountArgs::from_arg_matches(matches).map(Box::new).map(Self::Mount),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Mount {
    fn augment_args(command: clap::Command) -> clap::Command {
        MountQuery::augment_subcommands(MountArgs::augment_args(command))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl Mount {
    /// Mounts, or runs the subcommand.
    ///
    /// # Errors
    /// Returns its failure.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self {
            Self::Mount(mount) => mount.run(console),
            Self::Query(query) => query.run(console),
        }
    }
}

/// Mount a file system in the memory of other machines.
///
/// Several memory nodes (farcall memory serve) store each block. The file system is mounted until umount or Ctrl-C. Its
/// files are lost then, unless --snapshot names a file for them, or --volume a volume that the nodes keep. A second
/// process serves the files: if it is killed, another one takes over, and programs only wait (Linux 6.9). If this process
/// is killed, the file system is unmounted and its files are lost; if both processes are killed at the same time,
/// programs get errors until umount DIR. A volume can be mounted again, here or on another machine, when the lease of
/// its last mount has expired, with all files that were synced or closed. Requires root and /dev/fuse.
///
/// The file system appears at the directory when it is served; until then, the directory shows its own contents. At that
/// time, READY=1 is sent to systemd (Type=notify), and with --background the command returns. With the package, mount(8)
/// and /etc/fstab support the type fuse.farcall: the source is the name of the volume, and the options are the options
/// of this command without dashes.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:\n  farcall memory serve --size 8G        on two machines\n  \
                  farcall mount /mnt --nodes a:11500,b:11500 --replicas 2 --size 8G\n  \
                  farcall mount /mnt --nodes a:11500,b:11500 --size 8G --snapshot /var/lib/files.farcall\n  \
                  farcall mount /mnt --nodes a:11500,b:11500 --size 8G \
                  --volume files --volume-key /etc/farcall/files.key\n  \
                  farcall mount /mnt --nodes etcd://etcd:2379/files --size 8G\n  \
                  mount -t fuse.farcall files /mnt -o 'nodes=\"a:11500,b:11500\",size=8G,volume-key=/etc/farcall/files.key'\n  \
                  files  /mnt  fuse.farcall  nodes=\"a:11500,b:11500\",size=8G,volume-key=/etc/farcall/files.key,_netdev  0  0\n  \
                  farcall mount list\n  \
                  farcall umount /mnt                   returns when the volume is free")]
pub struct MountArgs {
    /// The directory to mount at; write a directory with the name of a subcommand as ./list.
    dir: PathBuf,
    /// Addresses of memory nodes (farcall memory serve), separated by commas, or all that are registered in etcd,
    /// including later ones.
    #[arg(long, value_name = VALUE_NAME, value_parser = NodeList::parse)]
    nodes: NodeList,
    /// Number of nodes that store each block.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// Size of the file system. Memory is requested from nodes as it is written to.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::bytes)]
    size: u64,
    /// Unit in which memory is requested from nodes; at most the size of their slabs.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::bytes)]
    slab: u64,
    /// Restore the file system from this file, if it exists, and save it there after it is unmounted.
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Name of the volume to mount. Nodes keep it until farcall memory forget.
    #[arg(long, value_name = "NAME", requires = "volume_key")]
    volume: Option<String>,
    /// File with the key of the volume. Created if it does not exist. Every process with the key can mount the volume.
    /// The nodes know half of the key; it hides no contents from them, or from a listener on the network.
    #[arg(long, value_name = "FILE", requires = "volume")]
    volume_key: Option<PathBuf>,
    /// Mount a volume read-only, even if none of the reachable nodes has some of its bytes. Reading these returns EIO;
    /// the others are as they were synced. The volume and its placement are not changed, so that nodes that start later
    /// still have their contents.
    #[arg(long, requires = "volume", conflicts_with = "snapshot")]
    read_only: bool,
    /// Mount the state of the reachable nodes, if this one is among them, although other nodes may have a newer state:
    /// for a volume whose other nodes are lost. Files may be older than the last sync. No other mount may use the volume
    /// at the same time. Takes effect once, when this mount claims the volume.
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve, requires = "volume")]
    survivor: Option<SocketAddr>,
    /// Return when the file system is served, and serve it in the background. Messages are sent to the journal then.
    #[arg(long)]
    background: bool,
    /// Set for the process in the background, whose standard input is connected to the process that waits for it.
    #[arg(long, hide = true, conflicts_with = "background")]
    detached: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    nic: NicArgs,
}

impl MountArgs {
    /// Mounts, and serves until the file system is unmounted.
    ///
    /// # Errors
    /// If no node can be used, or mounting fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if self.background {
            return background::start(self.in_background(console)?);
        }
        if self.detached {
            background::detach()?;
        }
        let stop = StopFlag::install()?;
        open_files::raise_limit();
        let nodes = self.nodes.find(self.volume.as_deref())?;
        self.nodes.check_replicas(&nodes, self.replicas)?;
        self.check_survivor(&nodes)?;
        if let Some(volume) = self.volume()
            && volume.make_key()?
        {
            let path = volume.volume_key.display();
            eprintln!(
                "created a key for the volume: {path}; keep a copy, because the volume cannot be mounted without it"
            );
        }
        let worker = self.worker(&nodes)?;
        let source = self.volume.as_deref().unwrap_or(NO_VOLUME);
        let options = MountOptions { source, is_read_only: self.read_only };
        let supervisor = Supervisor::start(&self.dir, options, worker).map_err(|error| cannot(&error))?;
        // Kept until this process exits.
        let record = Record::create(supervisor.dir(), self.volume.clone());
        let record = record
            .inspect_err(|error| tracing::warn!("farcall umount will not wait for this mount: {error}"));
        let record = RefCell::new(record.ok());
        let (size_bytes, replicas, dir) = (whole_blocks(self.size), self.replicas, supervisor.dir());
        console.print_line(
            &format!(
                "{} at {} in the memory of {} nodes, {replicas} replicas (pid {})\n{}",
                size::text(size_bytes),
                dir.display(),
                nodes.len(),
                std::process::id(),
                supervisor.ready_line(),
            ),
            &json!({ "serving": "files", "mounted": dir, "pid": std::process::id(), "size_bytes": size_bytes, "replicas": replicas,
                    "read_only": self.read_only, "explanation": supervisor.ready_line() }),
        )?;
        if self.detached {
            background::ready()?;
        }
        stop.wait_while(|| {
            if let Some(record) = &mut *record.borrow_mut()
                && let Err(error) = record.waits_for(supervisor.waits_for())
            {
                tracing::warn!("farcall mount list will not show the reason of waits: {error}");
            }
            supervisor.is_serving()
        });
        let ended = self.end(supervisor);
        drop(record);
        ended
    }

    /// Returns the command of this program as the process that serves in the background.
    fn in_background(&self, console: Console) -> Result<Command, Failure> {
        let mut command = Command::new(this_program()?);
        // After an option, a directory with the name of a subcommand is not taken for one.
        command.args(["mount", "--detached"]).arg(&self.dir).args(self.options());
        command.args(console.is_json().then_some("--json"));
        Ok(command)
    }

    /// Returns the options of a mount for another process of this program.
    fn options(&self) -> Vec<OsString> {
        let numbers = [
            format!("--nodes={}", self.nodes),
            format!("--replicas={}", self.replicas),
            format!("--size={}", self.size),
            format!("--slab={}", self.slab),
        ];
        let mut options: Vec<OsString> = numbers
            .into_iter()
            .chain(self.metrics.to_argument())
            .chain(self.nic.to_arguments())
            .map(Into::into)
            .collect();
        let mut with_path = |name: &str, path: &Option<PathBuf>| {
            if let Some(path) = path {
                options.extend([name.into(), path.into()]);
            }
        };
        with_path("--snapshot", &self.snapshot);
        with_path("--volume-key", &self.volume_key);
        options.extend(self.volume.as_ref().map(|volume| format!("--volume={volume}").into()));
        options.extend(self.read_only.then(|| "--read-only".into()));
        options.extend(self.survivor.map(|survivor| format!("--survivor={survivor}").into()));
        options
    }

    fn end(&self, mut supervisor: Supervisor) -> Result<Exit, Failure> {
        if supervisor.is_serving() {
            unmount(&supervisor)?;
        }
        supervisor.wait().map(|()| Exit::Success).map_err(|error| cannot(&error))
    }

    fn check_survivor(&self, nodes: &[SocketAddr]) -> Result<(), Failure> {
        match self.survivor.filter(|survivor| !nodes.contains(survivor)) {
            None => Ok(()),
            Some(survivor) => Err(Failure::new("the survivor is not one of the memory nodes")
                .at(survivor)
                .why(format!("the nodes are {}", joined(nodes)))
                .remedy("name one of them with --survivor, written as in --nodes")
                .exit(Exit::Usage)),
        }
    }

    fn volume(&self) -> Option<VolumeArgs> {
        let (volume, volume_key) = (self.volume.clone()?, self.volume_key.clone()?);
        Some(VolumeArgs { volume, volume_key })
    }

    /// Returns the command of this program as the process that serves files.
    fn worker(
        &self,
        nodes: &[SocketAddr],
    ) -> Result<impl FnMut(&Path, [i32; 3]) -> Command + Send + use<>, Failure> {
        let this = this_program()?;
        let list = |items: Vec<String>| items.join(",");
        let mut options = self.options();
        options.push(format!("--known={}", joined(nodes)).into());
        options.extend(self.detached.then(|| "--detached".into()));
        Ok(move |dir: &Path, state: [i32; 3]| {
            let mut command = Command::new(&this);
            command.arg("__mount-worker").arg(dir).args(&options);
            command.arg(format!("--state={}", list(state.iter().map(ToString::to_string).collect())));
            command
        })
    }
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::because("cannot find the program that serves files", &error))
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
        "{dir}: {busy}: detached; it is served until none of its files is in use. Repeat the signal to end at once."
    );
    mounted.detach().map_err(|error| Failure::because("cannot unmount", &error).at(mounted.dir().display()))
}

fn cannot(error: &SupervisorError) -> Failure {
    let failure = Failure::because("cannot serve files", error);
    match error {
        SupervisorError::Worker(4) => failure.exit(Exit::Unreachable),
        SupervisorError::Worker(2) => failure.exit(Exit::Usage),
        SupervisorError::Mount(MountError::Occupied(dir) | MountError::Ended(dir)) => failure.remedy(format!(
            "unmount it, even if programs get \"Transport endpoint is not connected\" there: farcall umount {}",
            dir.display()
        )),
        SupervisorError::Mount(_) => failure.remedy("read farcall mount --help"),
        _ => failure.remedy("find out what is missing: farcall doctor"),
    }
}
