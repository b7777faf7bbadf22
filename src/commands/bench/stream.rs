//! `farcall bench stream`: round trips and rates of byte streams.

use crate::commands::bench_args::{self, RepetitionArgs};
use crate::commands::nic_args::NicArgs;
use crate::commands::remote_args::{RemoteArgs, cannot_measure};
use crate::commands::value_names::{NamedValue, one_of};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::byte_streams::{self, LENS_BYTES, StreamPlan};
use farcall_bench::experiments::stream_waits::{self, WaitsPlan};
use farcall_bench::streams::{Load, Medium, WRITE_LENS_BYTES, WaitMode};
use std::time::Duration;

/// Measure byte streams, compared with sockets, UCX and bare copies.
///
/// Measures round trips of 64 B and consecutive writes in one direction between two processes, each with one polling
/// thread on its own core. All measurements are interleaved. The contents of every stream are verified; a wrong byte
/// ends the command. Both processes are on one machine: the software RNIC measures inter-process communication, an RNIC
/// (--provider ibv) its own loopback, not a network.
///
/// To measure between two hosts, start one half on each (--listen, --connect). Unix sockets, UCX and bare limits, which
/// need one host, are omitted then, and the report names the transport of the streams.
///
/// With --waiting, the strategies with which a server waits for many streams are measured instead (RR-Compound,
/// sections IV and V).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall bench stream\n  farcall bench stream --against all\n  \
                        farcall bench stream --size 64,1048576 --against tcp,ucx --repetitions 8\n  \
                        farcall bench stream --size 16 --duration-ms 100 --json | jq '.tables[1].rows'\n  \
                        farcall bench stream --waiting all --clients 8 --interval-us 300\n  \
                        farcall bench stream --waiting tcp,event,bpev --clients 1000 --interval-us 100000\n  \
                        farcall bench stream --listen 0.0.0.0:11400 --provider ibv      on the server's host, and on the client's:\n  \
                        farcall bench stream --connect server:11400 --provider ibv")]
pub struct StreamBench {
    /// Length in bytes of each write in one direction; may be given several times, or separated by commas [default: 16
    /// to 1048576].
    #[arg(
        long = "size",
        value_name = "BYTES",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(*WRITE_LENS_BYTES.start() as i64..=*WRITE_LENS_BYTES.end() as i64)
    )]
    sizes: Vec<u32>,
    /// Also measure these systems in the same run; may be given several times, or separated by commas.
    #[arg(
        long,
        value_name = "SYSTEM",
        value_delimiter = ',',
        default_value = "tcp,unix",
        value_parser = one_of(&COMPARED_SYSTEMS)
    )]
    against: Vec<ComparedSystem>,
    /// Measure these wait strategies of a server of many streams; may be given several times, or separated by commas.
    #[arg(
        long,
        value_name = "STRATEGY",
        value_delimiter = ',',
        conflicts_with_all = ["sizes", "against", "listen", "connect"],
        value_parser = one_of(&WAIT_STRATEGIES)
    )]
    waiting: Vec<WaitSelection>,
    /// Number of streams, each with a thread that sends a message and waits for the reply.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        requires = "waiting",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    clients: u32,
    /// Time in microseconds for which each client pauses before its next message.
    #[arg(long, value_name = "US", default_value_t = 0, requires = "waiting")]
    interval_us: u32,
    /// Number of poller threads of bpev; with 0, its worker sleeps until an event.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "waiting",
        value_parser = clap::value_parser!(u32).range(0..=64)
    )]
    pollers: u32,
    /// Time in microseconds for which the worker of bpev polls before it sleeps [default: the usual duration of its waits,
    /// at most 50 µs].
    #[arg(long, value_name = "US", requires = "waiting")]
    bp_timeout_us: Option<u32>,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    repeat: RepetitionArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComparedSystem {
    Socket(Medium),
    Ucx,
    All,
}

const COMPARED_SYSTEMS: [NamedValue<ComparedSystem>; 4] = [
    (ComparedSystem::Socket(Medium::Tcp), "tcp", "TCP over loopback"),
    (ComparedSystem::Socket(Medium::Unix), "unix", "A Unix stream socket"),
    (
        ComparedSystem::Ucx,
        "ucx",
        "Streams of UCX over shared memory, by ucx_perftest (Debian: apt-get install ucx-utils)",
    ),
    (ComparedSystem::All, "all", "All of these"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitSelection {
    One(WaitMode),
    All,
}

const WAIT_STRATEGIES: [NamedValue<WaitSelection>; 6] = [
    (WaitSelection::One(WaitMode::Tcp), "tcp", "TCP over loopback, and epoll"),
    (WaitSelection::One(WaitMode::Bp), "bp", "One thread for each stream polls it"),
    (WaitSelection::One(WaitMode::Bpts), "bpts", "One thread polls all streams in turn"),
    (WaitSelection::One(WaitMode::Event), "event", "One thread sleeps until a stream raises an event"),
    (
        WaitSelection::One(WaitMode::Bpev),
        "bpev",
        "One thread polls for some time, then sleeps; pollers wake it",
    ),
    (WaitSelection::All, "all", "All of these"),
];

impl StreamBench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if !self.waiting.is_empty() {
            return self.run_waits(console);
        }
        if let Some(exit) = self.remote.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let is_wanted = |rival| self.against.contains(&rival) || self.against.contains(&ComparedSystem::All);
        let sizes = self.sizes.iter().map(|size| *size as usize).collect::<Vec<_>>();
        let plan = StreamPlan {
            env: self.remote.env(&self.repeat, 0)?,
            chosen: self.nic.open()?,
            lens_bytes: if sizes.is_empty() { LENS_BYTES.to_vec() } else { sizes },
            sockets: [Medium::Tcp, Medium::Unix]
                .into_iter()
                .filter(|medium| is_wanted(ComparedSystem::Socket(*medium)))
                .collect(),
            with_ucx: is_wanted(ComparedSystem::Ucx),
        };
        bench_args::run(console, |progress| {
            byte_streams::run(&plan, progress)
                .map_err(|error| cannot_measure("cannot measure byte streams", &*error, &plan.env))
        })
    }

    fn run_waits(self, console: Console) -> Result<Exit, Failure> {
        let all = [WaitMode::Tcp, WaitMode::Bp, WaitMode::Bpts, WaitMode::Event, WaitMode::Bpev];
        let is_wanted = |mode| {
            self.waiting.contains(&WaitSelection::One(mode)) || self.waiting.contains(&WaitSelection::All)
        };
        let plan = WaitsPlan {
            env: self.repeat.env(0)?,
            chosen: self.nic.open()?,
            modes: all.into_iter().filter(|mode| is_wanted(*mode)).collect(),
            load: Load {
                clients: self.clients as usize,
                interval: Duration::from_micros(self.interval_us.into()),
                pollers: self.pollers as usize,
                bp_timeout_us: self.bp_timeout_us,
            },
        };
        bench_args::run(console, |progress| {
            stream_waits::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure wait strategies", &*error).remedy(
                    "find out what is missing: farcall doctor; fewer --clients need fewer descriptors",
                )
            })
        })
    }
}
