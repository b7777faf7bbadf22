//! `farcall grpc kv`: the ordered key-value service.

use crate::commands::choice::{Choice, one_of};
use crate::commands::kv::resolve;
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::open_files;
use crate::signals::StopFlag;
use clap::Args;
use farcall::stream::StreamOptions;
use farcall_grpc_kv::{
    Durability, LsmServer, LsmServerError, OrderedStore, ServerOptions, StoreError, StoreLimits,
    StoreOptions, Transport,
};
use farcall_link::Nic;
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Serve an ordered, durable key-value store over gRPC.
///
/// The service is farcall.kv.v1.OrderedKv: Get, Put, Delete, Batch, Scan, Iterate (pages of a range, streamed),
/// snapshots. Records are in an LSM tree below one directory. Runs until SIGINT or SIGTERM, then answers what runs and
/// ends. There is no authentication and no TLS: listen where you trust the network.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall grpc kv --dir /var/lib/farcall-kv\n  farcall grpc kv --dir DATA \
                        --listen 127.0.0.1:0 --json      says where it serves in one line of JSON\n  farcall grpc \
                        kv --dir DATA --transport tcp --durability process"
)]
pub struct Kv {
    /// Where the records are; made, for this user alone, if it is not there.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Listen on this TCP address; port 0 lets the system choose. Under native and http2 it carries the handshake only,
    /// to hosts that no RNIC reaches the calls, too.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11600", value_parser = resolve)]
    listen: SocketAddr,
    /// Transport of the calls.
    #[arg(long, value_name = "TRANSPORT", default_value = "native", value_parser = one_of(&CARRIERS))]
    transport: Carrier,
    /// Failures that an acknowledged write survives.
    #[arg(long, value_name = "WHAT", default_value = "group", value_parser = one_of(&DURABILITIES))]
    durability: Durability,
    /// Threads that answer calls.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Memory for blocks that were read from files, in MiB. What was written and is not yet in files takes up to 64
    /// more.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    cache_mib: u64,
    /// Largest value in bytes; messages are of 4 MiB at most.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=2 << 20))]
    value_max: u32,
    /// Records of a page of a scan, at most.
    #[arg(long, value_name = "COUNT", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    page_records: u32,
    /// Snapshots and iterators at once.
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    snapshots_max: u32,
    /// How long a snapshot or an iterator may live, in seconds: what it shows cannot be removed from the disk.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    snapshot_age_s: u32,
    #[command(flatten)]
    nic: NicArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Native,
    Http2,
    Tcp,
}

const CARRIERS: [Choice<Carrier>; 3] = [
    (Carrier::Native, "native", "Frames over byte streams, without HTTP/2: clients of farcall-grpc"),
    (Carrier::Http2, "http2", "HTTP/2 over byte streams"),
    (Carrier::Tcp, "tcp", "HTTP/2 over TCP: any gRPC client"),
];

const DURABILITIES: [Choice<Durability>; 3] = [
    (Durability::Process, "process", "The end of this process at any moment; not the end of the machine"),
    (Durability::Group, "group", "The end of the machine: fdatasync, once for all writes that wait"),
    (Durability::Each, "each", "The same, with an fdatasync for each write"),
];

impl Kv {
    /// Serves until a stop is requested.
    ///
    /// # Errors
    /// If the store cannot be opened, the address cannot be bound, or serving fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        open_files::raise_limit();
        if self.transport == Carrier::Tcp && self.nic.is_said() {
            return Err(Failure::new("--provider, --device and --gid-index are not of --transport tcp")
                .remedy("leave them out, or serve over --transport native")
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
                LsmServerError::Listen { .. } => {
                    failure.remedy("choose another address with --listen, or stop what uses this one")
                }
                _ => failure.remedy("see what is missing: farcall doctor"),
            }
        })?;
        self.say_ready(console, &server, explanation)?;
        let exit = stop.wait_while(|| server.is_serving());
        server.stop().map_err(|error| Failure::because("the key-value service failed", &error))?;
        Ok(exit)
    }

    /// Returns the transport of the calls, with the reason for the choice of the provider.
    fn transport(&self) -> Result<(Transport, Option<String>), Failure> {
        if self.transport == Carrier::Tcp {
            return Ok((Transport::Tcp, None));
        }
        let chosen = self.nic.choose()?;
        let nic = Nic::open(&*chosen.provider).map_err(|error| {
            Failure::because("cannot open the RDMA device", &error).remedy("see: farcall doctor")
        })?;
        let streams = StreamOptions::default();
        let transport = match self.transport {
            Carrier::Http2 => Transport::Http2(nic, streams),
            _ => Transport::Native(nic, streams),
        };
        Ok((transport, Some(chosen.explanation)))
    }

    fn cannot_open(&self, error: &StoreError) -> Failure {
        let failure = Failure::because("cannot open the store", error).at(self.dir.display());
        match error {
            StoreError::Locked(_) => {
                failure.remedy("stop the process that serves it, or choose another --dir")
            }
            StoreError::Directory { .. } => failure.remedy("choose a directory that this user may write"),
            _ => failure.remedy("choose an empty directory, or one that farcall grpc kv made"),
        }
    }

    fn say_ready(
        &self,
        console: Console,
        server: &LsmServer,
        explanation: Option<String>,
    ) -> Result<(), Failure> {
        let name = |choices: &[(Carrier, &'static str, &str)]| {
            choices.iter().find(|(carrier, ..)| *carrier == self.transport).map_or("", |(_, name, _)| name)
        };
        let durability = DURABILITIES.iter().find(|(durability, ..)| *durability == self.durability);
        let (durability, meaning) = durability.map_or(("", ""), |(_, name, meaning)| (name, meaning));
        let (transport, address, pid) = (name(&CARRIERS), server.address().to_string(), std::process::id());
        let mut text = format!(
            "serving farcall.kv.v1.OrderedKv of {} by {transport} on {address} (pid {pid})\nan answered write \
             survives: {meaning}",
            self.dir.display()
        );
        if let Some(explanation) = explanation {
            text = format!("{text}\n{explanation}");
        }
        let json = json!({
            "serving": "grpc-kv", "pid": pid, "address": address, "transport": transport,
            "durability": durability, "dir": self.dir,
        });
        console.say_line(&text, &json)
    }
}
