//! `farcall kv serve`: the key-value service.

use super::address::{MEMCACHED_PORT, RPC_PORT, resolve};
use crate::commands::config_arg::ConfigArg;
use crate::commands::metrics::MetricsArgs;
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::open_files::{self, Serves};
use crate::signals::StopFlag;
use crate::systemd;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use farcall::kv::{KvServer, KvServerBuilder, KvServerError, VALUE_MAX_BYTES_DEFAULT};
use farcall::rpc::ServerError;
use farcall::select::SelectedNic;
use farcall_bench::experiments::ready::Ready;
use farcall_bench::experiments::server::count_allocations_for_parent;
use farcall_bench::rivals::{Rival, Room};
use farcall_drive::limit_retained_memory;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Serve a key-value store for any memcached client, and for RPC clients.
///
/// Runs until SIGINT or SIGTERM, then replies to the requests that it received, and exits. Without an address it listens
/// on the sockets that systemd opened for it, or else on 127.0.0.1:11211 for memcached clients and on 127.0.0.1:11212 for
/// RPC clients. The memcached front ends have no authentication: bind them only to addresses that you trust.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall kv serve\n  farcall kv serve --tcp 127.0.0.1:0 --unix /run/kv.sock --memory-mib 1024\n  farcall kv serve --config /etc/farcall/kv.toml\n  \
                        farcall kv serve --partitions 4 --json      prints its addresses in one line of JSON\n  \
                        farcall kv serve --preset pilaf --rpc 127.0.0.1:0 --records 1000000"
)]
pub struct Serve {
    /// Listen for memcached clients on this TCP address; port 0 lets the system choose. May be given several times.
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve)]
    tcp: Vec<SocketAddr>,
    /// Listen for memcached clients of this user on a Unix socket. May be given several times.
    #[arg(long, value_name = "PATH")]
    unix: Vec<PathBuf>,
    /// Listen for RPC clients on this TCP address, which is used only for the handshake.
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve)]
    rpc: Option<SocketAddr>,
    /// Number of server threads, each with its own part of the keys.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    partitions: u32,
    /// Memory of the store in MiB, including the index.
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory_mib: u64,
    /// Maximum length of a value in bytes.
    #[arg(long, default_value_t = VALUE_MAX_BYTES_DEFAULT as u32, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    value_max: u32,
    /// Refuse writes when the memory is full, instead of evicting old records.
    #[arg(long)]
    no_evict: bool,
    /// Maximum number of open connections of all memcached front ends.
    #[arg(long, default_value_t = 4096, value_name = "COUNT")]
    connections_max: u64,
    /// Memory in MiB for the buffers of memcached connections, in addition to that of the store. Above this limit, the
    /// connection with the largest buffers is closed [default: 64; more for large stores and values].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    buffers_mib: Option<u64>,
    /// Serve another store for comparison, whose clients use RDMA READ. It has one thread and serves RPC only.
    #[arg(long, value_name = "NAME", value_parser = rival_names(), requires = "rpc")]
    #[arg(conflicts_with_all = ["tcp", "unix", "partitions", "no_evict", "connections_max", "buffers_mib"])]
    preset: Option<String>,
    /// With --preset: capacity of the index in records.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT", requires = "preset")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    records: u32,
    /// With --preset farm: records shorter than this length in bytes are stored in the index.
    #[arg(long, default_value_t = 64, value_name = "BYTES", requires = "preset")]
    inline_bytes: u32,
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    nic: NicArgs,
}

fn rival_names() -> PossibleValuesParser {
    let names = Rival::ALL.map(|rival| PossibleValue::new(rival.name()).help(rival.summary()));
    names.to_vec().into()
}

impl Serve {
    /// Serves until a stop is requested.
    ///
    /// # Errors
    /// If the service cannot start, or a thread fails.
    pub fn run(mut self, console: Console) -> Result<Exit, Failure> {
        count_allocations_for_parent()
            .map_err(|error| Failure::because("cannot count heap operations for the benchmark", &error))?;
        let stop = StopFlag::install()?;
        limit_retained_memory();
        let sockets = systemd::take_sockets()?;
        if self.tcp.is_empty() && self.unix.is_empty() && self.rpc.is_none() && sockets.is_empty() {
            self.tcp.push(SocketAddr::from((Ipv4Addr::LOCALHOST, MEMCACHED_PORT)));
            self.rpc = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, RPC_PORT)));
        }
        // The configuration may name an address that a socket unit opens; it is served only once.
        self.tcp.retain(|address| !sockets.iter().any(|socket| systemd::listens_on(socket, *address)));
        let serves = Serves {
            memcached: !(self.tcp.is_empty() && self.unix.is_empty() && sockets.is_empty()),
            rpc: self.rpc.is_some(),
        };
        let capacity = open_files::raise_limit_for(serves)?;
        if self.rpc.is_none() && self.nic.is_given() {
            return Err(Failure::new("--provider, --device and --gid-index require --rpc")
                .remedy(
                    "add an address for RPC clients, such as --rpc 127.0.0.1:11212, or omit these options",
                )
                .exit(Exit::Usage));
        }
        // Only RPC needs a provider.
        let selected = self.rpc.map(|_| self.nic.open()).transpose()?;
        if let (Some(rival), Some(selected)) = (self.preset.as_deref().and_then(Rival::named), &selected) {
            return self.serve_rival(rival, selected, console, &stop);
        }
        let server = self.start(selected.as_ref(), sockets).map_err(|error| cannot_start(&error))?;
        let metrics = self.metrics.start()?;
        let explanation = selected.as_ref().map(|selected| selected.explanation.as_str());
        let ready = Ready {
            serving: "kv".to_owned(),
            pid: std::process::id(),
            tcp: server.tcp_addresses().iter().map(SocketAddr::to_string).collect(),
            unix: server.unix_paths().map(Into::into).collect(),
            rpc: server.rpc_address().map(|address| address.to_string()),
            metrics: metrics.map(|address| address.to_string()),
        };
        print_ready(console, &ready, explanation.into_iter().chain([capacity.as_str()]))?;
        let exit = stop.wait_while(|| server.is_serving());
        server.stop().map_err(|error| Failure::because("the key-value service failed", &error))?;
        Ok(exit)
    }

    fn serve_rival(
        &self,
        rival: Rival,
        selected: &SelectedNic,
        console: Console,
        stop: &StopFlag,
    ) -> Result<Exit, Failure> {
        let room = Room {
            records: self.records,
            memory_bytes: (self.memory_mib as usize) << 20,
            value_max_bytes: self.value_max as usize,
            inline_bytes: self.inline_bytes,
        };
        let address = self.rpc.map(|address| address.to_string()).unwrap_or_default();
        let server = rival.serve(&selected.nic, &address, &room).map_err(|error| {
            let failure = Failure::because(format!("cannot serve a {} store", rival.name()), &error);
            match error {
                ServerError::Listen { .. } => {
                    failure.remedy("choose another address, or stop the process that uses this one")
                }
                _ => failure.remedy("change --memory-mib, --records, --value-max or --inline-bytes"),
            }
        })?;
        let ready = Ready {
            serving: rival.name().to_owned(),
            pid: std::process::id(),
            rpc: Some(server.address().to_string()),
            metrics: self.metrics.start()?.map(|address| address.to_string()),
            ..Ready::default()
        };
        print_ready(console, &ready, [selected.explanation.as_str()].into_iter())?;
        let exit = stop.wait_while(|| server.is_serving());
        server.drain();
        server.join();
        Ok(exit)
    }

    fn start(
        &self,
        selected: Option<&SelectedNic>,
        sockets: Vec<OwnedFd>,
    ) -> Result<KvServer, KvServerError> {
        let mut builder = KvServer::builder()
            .partitions(self.partitions)
            .memory_bytes((self.memory_mib as usize) << 20)
            .value_max_bytes(self.value_max as usize)
            .connections_max(self.connections_max);
        if let Some(buffers_mib) = self.buffers_mib {
            builder = builder.buffers_bytes((buffers_mib as usize) << 20);
        }
        if self.no_evict {
            builder = builder.refuse_when_full();
        }
        builder = sockets.into_iter().fold(builder, KvServerBuilder::inherited);
        builder = self.tcp.iter().fold(builder, |builder, address| builder.tcp(*address));
        builder = self.unix.iter().fold(builder, |builder, path| builder.unix(path));
        if let (Some(address), Some(selected)) = (self.rpc, selected) {
            builder = builder.rpc(address, &selected.nic);
        }
        builder.start()
    }
}

fn cannot_start(error: &KvServerError) -> Failure {
    let failure = Failure::because("cannot start the key-value service", error);
    match error {
        KvServerError::Listen(_) | KvServerError::Rpc(ServerError::Listen { .. }) => {
            failure.remedy("choose another address, or stop the process that uses this one")
        }
        KvServerError::Store(_) => failure.remedy("change --memory-mib, --value-max or --partitions"),
        _ => failure.remedy("find out what is missing: farcall doctor"),
    }
}

fn print_ready<'a>(
    console: Console,
    ready: &Ready,
    more: impl Iterator<Item = &'a str>,
) -> Result<(), Failure> {
    let front_ends = ready
        .tcp
        .iter()
        .map(|address| format!("tcp:{address}"))
        .chain(ready.unix.iter().map(|path| format!("unix:{}", path.display())))
        .chain(ready.rpc.iter().map(|address| format!("rpc:{address}")))
        .chain(ready.metrics.iter().map(|address| format!("http://{address}/metrics")));
    let mut text = format!("serving on {} (pid {})", front_ends.collect::<Vec<_>>().join(", "), ready.pid);
    for line in more {
        text = format!("{text}\n{line}");
    }
    let json = serde_json::to_value(ready)
        .map_err(|error| Failure::because("cannot print the addresses of the service", &error))?;
    console.print_line(&text, &json)
}
