//! `farcall stream bench`: round trips and rates of byte streams.

use crate::commands::choice::{Choice, one_of};
use crate::commands::halves::{HalvesArgs, cannot_measure};
use crate::commands::measuring::{self, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::byte_streams::{self, LENS_BYTES, StreamPlan};
use farcall_bench::experiments::stream_waits::{self, WaitsPlan};
use farcall_bench::streams::{Load, Medium, WRITE_LENS_BYTES, Way};
use std::time::Duration;

/// Measure byte streams beside sockets, UCX and what bounds them.
///
/// Round trips of 64 B, and writes that follow each other in one direction, between two processes of one thread each,
/// both polling, each pinned to a core. All rivals are measured interleaved; every stream is verified in the same run,
/// and a wrong byte ends the command. Both ends are on one machine: the software RNIC measures inter-process
/// communication, an RNIC (--provider ibv) its own loopback, not a network.
///
/// Between two hosts each does its half: --listen, --connect; then Unix sockets, UCX and bare limits, which are of one
/// host, are left out, and the report says what carries the streams.
///
/// With --waiting the ways in which a server waits for many streams are measured instead (RR-Compound, sections IV, V).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall stream bench\n  farcall stream bench --against all\n  \
                        farcall stream bench --size 64,1048576 --against tcp,ucx --repetitions 8\n  \
                        farcall stream bench --size 16 --duration-ms 100 --json | jq '.tables[1].rows'\n  \
                        farcall stream bench --waiting all --clients 8 --interval-us 300\n  \
                        farcall stream bench --waiting tcp,event,bpev --clients 1000 --interval-us 100000\n  \
                        farcall stream bench --listen 0.0.0.0:11400 --provider ibv      on the server's host, and on the client's:\n  \
                        farcall stream bench --connect server:11400 --provider ibv")]
pub struct Bench {
    /// Bytes of each write in one direction; may be given several times, or separated by commas. By default 16 B to
    /// 1 MiB.
    #[arg(
        long = "size",
        value_name = "BYTES",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(*WRITE_LENS_BYTES.start() as i64..=*WRITE_LENS_BYTES.end() as i64)
    )]
    sizes: Vec<u32>,
    /// Measure these in the same run; may be given several times, or separated by commas.
    #[arg(
        long,
        value_name = "RIVAL",
        value_delimiter = ',',
        default_value = "tcp,unix",
        value_parser = one_of(&RIVALS)
    )]
    against: Vec<Rival>,
    /// Measure these ways of waiting of a server of many streams; may be given several times, or separated by commas.
    #[arg(
        long,
        value_name = "WAY",
        value_delimiter = ',',
        conflicts_with_all = ["sizes", "against", "listen", "connect"],
        value_parser = one_of(&WAYS)
    )]
    waiting: Vec<Wished>,
    /// Streams, each of a thread that sends and waits for the answer.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        requires = "waiting",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    clients: u32,
    /// How long each client pauses before its next message.
    #[arg(long, value_name = "US", default_value_t = 0, requires = "waiting")]
    interval_us: u32,
    /// Poller threads of BPEV; with none its worker sleeps by events.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "waiting",
        value_parser = clap::value_parser!(u32).range(0..=64)
    )]
    pollers: u32,
    /// How long the worker of BPEV polls before it sleeps. By default as long as waits usually take, up to 50 µs.
    #[arg(long, value_name = "US", requires = "waiting")]
    bp_timeout_us: Option<u32>,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    stage: StageArgs,
    #[command(flatten)]
    halves: HalvesArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rival {
    Socket(Medium),
    Ucx,
    All,
}

const RIVALS: [Choice<Rival>; 4] = [
    (Rival::Socket(Medium::Tcp), "tcp", "TCP over loopback"),
    (Rival::Socket(Medium::Unix), "unix", "A Unix stream socket"),
    (
        Rival::Ucx,
        "ucx",
        "UCX's streams over shared memory, by ucx_perftest (Debian: apt-get install ucx-utils)",
    ),
    (Rival::All, "all", "All of these"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wished {
    One(Way),
    All,
}

const WAYS: [Choice<Wished>; 6] = [
    (Wished::One(Way::Tcp), "tcp", "TCP over loopback, and epoll"),
    (Wished::One(Way::Bp), "bp", "A thread for each stream, which polls it"),
    (Wished::One(Way::Bpts), "bpts", "One thread polls all streams in turn"),
    (Wished::One(Way::Event), "event", "One thread sleeps until one of them tells of an event"),
    (Wished::One(Way::Bpev), "bpev", "One thread polls for a while, then sleeps; pollers wake it"),
    (Wished::All, "all", "All of these"),
];

impl Bench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if !self.waiting.is_empty() {
            return self.run_waits(console);
        }
        if let Some(exit) = self.halves.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let is_wanted = |rival| self.against.contains(&rival) || self.against.contains(&Rival::All);
        let sizes = self.sizes.iter().map(|size| *size as usize).collect::<Vec<_>>();
        let plan = StreamPlan {
            stage: self.halves.stage(&self.stage, 0)?,
            chosen: self.nic.choose()?,
            lens_bytes: if sizes.is_empty() { LENS_BYTES.to_vec() } else { sizes },
            sockets: [Medium::Tcp, Medium::Unix]
                .into_iter()
                .filter(|medium| is_wanted(Rival::Socket(*medium)))
                .collect(),
            with_ucx: is_wanted(Rival::Ucx),
        };
        measuring::run(console, |progress| {
            byte_streams::run(&plan, progress)
                .map_err(|error| cannot_measure("cannot measure byte streams", &*error, &plan.stage))
        })
    }

    fn run_waits(self, console: Console) -> Result<Exit, Failure> {
        let all = [Way::Tcp, Way::Bp, Way::Bpts, Way::Event, Way::Bpev];
        let is_wanted = |way| self.waiting.contains(&Wished::One(way)) || self.waiting.contains(&Wished::All);
        let plan = WaitsPlan {
            stage: self.stage.stage(0)?,
            chosen: self.nic.choose()?,
            ways: all.into_iter().filter(|way| is_wanted(*way)).collect(),
            load: Load {
                clients: self.clients as usize,
                interval: Duration::from_micros(self.interval_us.into()),
                pollers: self.pollers as usize,
                bp_timeout_us: self.bp_timeout_us,
            },
        };
        measuring::run(console, |progress| {
            stream_waits::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure ways of waiting", &*error)
                    .remedy("see what is missing: farcall doctor; fewer --clients need fewer descriptors")
            })
        })
    }
}
