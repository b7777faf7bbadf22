//! `farcall memory serve`: a memory node.

use super::node_list::etcd_failure;
use super::size;
use crate::commands::config_arg::ConfigArg;
use crate::commands::kv::resolve;
use crate::commands::metrics::MetricsArgs;
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::open_files::{self, Serves};
use crate::signals::StopFlag;
use clap::Args;
use farcall::memory::{MemoryServer, NodeConfig, ServeError};
use farcall_memory::membership::{Directory, Registration};
use rustix::mm::{MlockAllFlags, mlockall};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;

/// Provide memory in which other processes store pages, by one-sided READ and WRITE.
///
/// Memory is allocated when a client requests a slab, and freed when the client returns the slab or its lease expires.
/// Volumes of farcall mount --volume remain until they are removed (farcall memory forget). Their pages count as part of
/// --size, their metadata does not. All pages are lost when this process exits: use two replicas on two nodes, or move
/// the pages first (farcall memory drain). Any client that can connect may use all of the memory: bind only to an
/// address that you trust.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall memory serve --size 4G\n  \
                  farcall memory serve --listen 127.0.0.1:0 --size 512M --slab 16M --json\n  \
                  farcall memory serve --witness               on a third machine, for volumes on two\n  \
                  farcall memory serve --listen 10.0.0.1:11500 --size 8G --register etcd://10.0.0.9:2379/files")]
pub struct Serve {
    /// Listen for handshakes on this TCP address; port 0 lets the system choose. Pages are not sent over TCP.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11500", value_parser = resolve)]
    listen: SocketAddr,
    /// Register in etcd under this name of a cluster. Clients with the same --nodes find the node, including those that
    /// already run. While etcd cannot be reached, the node continues to serve.
    #[arg(long, value_name = "etcd://HOST:PORT,.../CLUSTER")]
    register: Option<Directory>,
    /// Address that is registered, at which clients reach the node [default: that of --listen].
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve, requires = "register")]
    advertise: Option<SocketAddr>,
    /// Run as a witness: store the metadata of volumes, 1 to 2 % of their size (--notes), and no pages. A witness counts
    /// as a node: with two nodes and a witness, a volume remains available if one of the three fails together with the
    /// mount. Name it in the --nodes of each mount.
    #[arg(long, conflicts_with_all = ["size", "slab", "slabs_per_client"])]
    witness: bool,
    /// Maximum memory for pages of clients.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::bytes)]
    size: u64,
    /// Size of a slab, the unit of a grant. Clients use as much of each slab as their option --slab allows, 64M by
    /// default.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::bytes)]
    slab: u64,
    /// Term of a lease in milliseconds. A client that does not renew its lease loses its slabs after this time.
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    lease_ms: u64,
    /// Maximum number of clients.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4_096))]
    clients_max: u16,
    /// Maximum number of slabs of one client [default: all].
    #[arg(long, value_name = "COUNT")]
    slabs_per_client: Option<u32>,
    /// Lock the memory of this process, so that it is not swapped. Needed on the machine of a program whose pages this
    /// node stores, because the node could be swapped to itself. Requires CAP_IPC_LOCK, or a large enough `ulimit -l`.
    #[arg(long)]
    lock: bool,
    /// Maximum number of volumes, mounted or not.
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u16).range(0..=4_096))]
    volumes_max: u16,
    /// Maximum memory for metadata of volumes, in addition to --size.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::bytes)]
    notes: u64,
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    nic: NicArgs,
}

impl Serve {
    /// Serves until a stop is requested.
    ///
    /// # Errors
    /// If the node cannot start, or fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        open_files::raise_limit_for(Serves { memcached: false, rpc: true })?;
        let slabs = if self.witness { 0 } else { self.size.checked_div(self.slab).unwrap_or(0) };
        if slabs == 0 && !self.witness {
            return Err(Failure::new("cannot provide less than one slab")
                .why(format!("--size is {}, --slab is {}", size::text(self.size), size::text(self.slab)))
                .remedy("raise --size or lower --slab")
                .exit(Exit::Usage));
        }
        let donated = if self.witness { 0 } else { self.size };
        for (option, bytes) in [("--size", donated), ("--notes", self.notes)] {
            require_machine_memory(option, bytes)?;
        }
        if self.register.is_some() && self.advertise.is_none() && self.listen.ip().is_unspecified() {
            return Err(Failure::new("cannot register an unspecified address")
                .at(self.listen)
                .remedy("name the address at which clients reach the node: --advertise HOST:PORT")
                .exit(Exit::Usage));
        }
        let selected = self.nic.open()?;
        if self.lock {
            lock()?;
        }
        let config = NodeConfig {
            slab_bytes: usize::try_from(self.slab).unwrap_or(usize::MAX),
            slabs: u32::try_from(slabs).unwrap_or(u32::MAX),
            term: Duration::from_millis(self.lease_ms),
            leases_max: self.clients_max.into(),
            slabs_per_lease_max: self.slabs_per_client.unwrap_or(u32::MAX),
            volumes_max: self.volumes_max.into(),
            metadata_bytes_max: self.notes,
            ..NodeConfig::default()
        };
        let config = if self.witness { config.witness() } else { config };
        let server =
            MemoryServer::start(&selected.nic, self.listen.to_string(), config).map_err(|error| {
                let failure = Failure::because("cannot start the memory node", &error);
                match error {
                    ServeError::Range { .. } => failure.remedy("change --size or --slab").exit(Exit::Usage),
                    _ => failure.remedy(
                        "choose another address with --listen; find out what else is missing: farcall doctor",
                    ),
                }
            })?;
        let metrics = self.metrics.start()?.map(|address| address.to_string());
        let registration = self.register(server.address())?;
        let (address, pid) = (server.address().to_string(), std::process::id());
        console.print_line(
            &format!(
                "{} on {address} (pid {pid}){}\n{}",
                self.offer(slabs),
                metrics.as_ref().map_or_else(String::new, |metrics| format!(", http://{metrics}/metrics")),
                selected.explanation
            ),
            &json!({ "serving": "memory", "pid": pid, "rpc": address, "slabs": slabs, "slab_bytes": self.slab, "witness": self.witness, "metrics": metrics }),
        )?;
        let exit = stop.wait_while(|| server.is_serving());
        // Deregistered first, so that no further client connects.
        drop(registration);
        if server.is_serving() {
            Ok(exit)
        } else {
            Err(Failure::new("the memory node failed; its message is on standard error"))
        }
    }
}

impl Serve {
    fn offer(&self, slabs: u64) -> String {
        match slabs {
            0 => format!("a witness for volumes, with at most {} of metadata", size::text(self.notes)),
            slabs => {
                format!(
                    "providing {} in {slabs} slabs of {}",
                    size::text(slabs * self.slab),
                    size::text(self.slab)
                )
            }
        }
    }

    fn register(&self, address: SocketAddr) -> Result<Option<Registration>, Failure> {
        let Some(directory) = &self.register else { return Ok(None) };
        let registration = Registration::start(directory, self.advertise.unwrap_or(address));
        registration.map(Some).map_err(|error| etcd_failure(directory, &error))
    }
}

/// Checks that the machine has enough memory for `wanted_bytes`. Memory is allocated slab by slab, so a node that
/// offers more than the machine has would fail its clients later, and lose their pages.
fn require_machine_memory(option: &str, wanted_bytes: u64) -> Result<(), Failure> {
    match farcall_shm::total_memory_bytes() {
        Some(total_bytes) if wanted_bytes > total_bytes => {
            Err(Failure::new("cannot provide more memory than the machine has")
                .why(format!(
                    "{option} is {}; this machine, or the control group of this process, has {}",
                    size::text(wanted_bytes),
                    size::text(total_bytes)
                ))
                .remedy(format!("lower {option}"))
                .exit(Exit::Usage))
        }
        _ => Ok(()),
    }
}

/// Locks all pages of this process in memory from their first access on.
fn lock() -> Result<(), Failure> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).map_err(|error| {
        Failure::because("cannot lock memory", &error)
            .remedy("run it as root (CAP_IPC_LOCK), raise `ulimit -l`, or omit --lock")
    })
}
