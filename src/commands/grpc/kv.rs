//! `farcall grpc kv`: the ordered key-value service.

use crate::commands::kv::resolve;
use crate::commands::nic_args::NicArgs;
use crate::commands::value_names::{NamedValue, one_of};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::open_files;
use crate::signals::StopFlag;
use clap::Args;
use farcall::select::SelectedNic;
use farcall::stream::StreamOptions;
use farcall_grpc_kv::{
    Durability, LsmServer, LsmServerError, OrderedStore, ServerOptions, StoreError, StoreLimits,
    StoreOptions, Transport,
};
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Serve an ordered, durable key-value store over gRPC.
///
/// The service is farcall.kv.v1.OrderedKv: Get, Put, Delete, Batch, Scan, Iterate (streams pages of a range), and
/// snapshots. Records are stored in an LSM tree in one directory. Runs until SIGINT or SIGTERM, then completes the
/// current calls, and exits. There is no authentication and no TLS: listen only on a network that you trust.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall grpc kv --dir /var/lib/farcall-kv\n  farcall grpc kv --dir DATA \
                        --listen 127.0.0.1:0 --json      prints its address in one line of JSON\n  farcall grpc \
                        kv --dir DATA --transport tcp --durability process"
)]
pub struct Kv {
    /// Directory of the records. Created if it does not exist, with access for this user only.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Listen on this TCP address; port 0 lets the system choose. With native and http2, TCP is used only for the
    /// handshake, and for the calls of hosts that no RNIC reaches.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11600", value_parser = resolve)]
    listen: SocketAddr,
    /// Transport of the calls.
    #[arg(long, value_name = "TRANSPORT", default_value = "native", value_parser = one_of(&CALL_TRANSPORTS))]
    transport: CallTransport,
    /// Failures that an acknowledged write survives.
    #[arg(long, value_name = "FAILURE", default_value = "group", value_parser = one_of(&DURABILITIES))]
    durability: Durability,
    /// Number of threads that serve calls.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Memory in MiB for blocks that were read from files. Data that was written and is not yet in files uses up to 64
    /// MiB in addition.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    cache_mib: u64,
    /// Maximum length of a value in bytes. Messages have at most 4 MiB.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=2 << 20))]
    value_max: u32,
    /// Maximum number of records in a page of a scan.
    #[arg(long, value_name = "COUNT", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    page_records: u32,
    /// Maximum number of snapshots and iterators at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    snapshots_max: u32,
    /// Maximum age of a snapshot or an iterator in seconds. The records that it shows cannot be removed from the disk.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    snapshot_age_s: u32,
    #[command(flatten)]
    nic: NicArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallTransport {
    Native,
    Http2,
    Tcp,
}

const CALL_TRANSPORTS: [NamedValue<CallTransport>; 3] = [
    (
        CallTransport::Native,
        "native",
        "Frames over byte streams, without HTTP/2, for clients of farcall-grpc",
    ),
    (CallTransport::Http2, "http2", "HTTP/2 over byte streams"),
    (CallTransport::Tcp, "tcp", "HTTP/2 over TCP, for any gRPC client"),
];

const DURABILITIES: [NamedValue<Durability>; 3] = [
    (Durability::Process, "process", "An exit of this process at any time, but no failure of the machine"),
    (Durability::Group, "group", "A failure of the machine: one fdatasync for all waiting writes"),
    (Durability::Each, "each", "A failure of the machine: one fdatasync for each write"),
];

impl Kv {
    /// Serves until a stop is requested.
    ///
    /// # Errors
    /// If the store cannot be opened, the address cannot be bound, or serving fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        open_files::raise_limit();
        if self.transport == CallTransport::Tcp && self.nic.is_given() {
            return Err(Failure::new(
                "--provider, --device and --gid-index have no effect with --transport tcp",
            )
            .remedy("omit these options, or serve with --transport native")
            .exit(Exit::Usage));
        }
        let limits = StoreLimits {
            value_bytes_max: self.value_max as usize,
            page_records_max: self.page_records as usize,
            snapshots_max: self.snapshots_max as usize,
            snapshot_age_max: Duration::from_secs(self.snapshot_age_s.into()),
            ..StoreLimits::default()
        };
        let options = StoreOptions { durability: self.durability, limits, cache_bytes: self.cache_mib << 20 };
        let store = OrderedStore::open(&self.dir, options).map_err(|error| self.cannot_open(&error))?;
        let (transport, explanation) = self.transport()?;
        let options = ServerOptions { transport, listen: self.listen, threads: usize::from(self.threads) };
        let server = LsmServer::start(Arc::new(store), options).map_err(|error| {
            let failure = Failure::because("cannot start the key-value service", &error);
            match error {
                LsmServerError::Listen { .. } => failure
                    .remedy("choose another address with --listen, or stop the process that uses this one"),
                _ => failure.remedy("find out what is missing: farcall doctor"),
            }
        })?;
        self.print_ready(console, &server, explanation)?;
        let exit = stop.wait_while(|| server.is_serving());
        server.stop().map_err(|error| Failure::because("the key-value service failed", &error))?;
        Ok(exit)
    }

    /// Returns the transport of the calls, with the reason for the choice of the provider.
    fn transport(&self) -> Result<(Transport, Option<String>), Failure> {
        if self.transport == CallTransport::Tcp {
            return Ok((Transport::Tcp, None));
        }
        let SelectedNic { nic, explanation, .. } = self.nic.open()?;
        let streams = StreamOptions::default();
        let transport = match self.transport {
            CallTransport::Http2 => Transport::Http2(nic, streams),
            _ => Transport::Native(nic, streams),
        };
        Ok((transport, Some(explanation)))
    }

    fn cannot_open(&self, error: &StoreError) -> Failure {
        let failure = Failure::because("cannot open the store", error).at(self.dir.display());
        match error {
            StoreError::Locked(_) => {
                failure.remedy("stop the process that serves it, or choose another --dir")
            }
            StoreError::Directory { .. } => failure.remedy("choose a directory to which this user may write"),
            _ => failure.remedy("choose an empty directory, or one that farcall grpc kv created"),
        }
    }

    fn print_ready(
        &self,
        console: Console,
        server: &LsmServer,
        explanation: Option<String>,
    ) -> Result<(), Failure> {
        let name = |choices: &[(CallTransport, &'static str, &str)]| {
            choices
                .iter()
                .find(|(transport, ..)| *transport == self.transport)
                .map_or("", |(_, name, _)| name)
        };
        let durability = DURABILITIES.iter().find(|(durability, ..)| *durability == self.durability);
        let (durability, meaning) = durability.map_or(("", ""), |(_, name, meaning)| (name, meaning));
        let (transport, address, pid) =
            (name(&CALL_TRANSPORTS), server.address().to_string(), std::process::id());
        let mut text = format!(
            "serving farcall.kv.v1.OrderedKv of {} with {transport} on {address} (pid {pid})\nan acknowledged \
             write survives: {meaning}",
            self.dir.display()
        );
        if let Some(explanation) = explanation {
            text = format!("{text}\n{explanation}");
        }
        let json = json!({
            "serving": "grpc-kv", "pid": pid, "address": address, "transport": transport,
            "durability": durability, "dir": self.dir,
        });
        console.print_line(&text, &json)
    }
}
