//! `farcall stream bench`: round trips and rates of byte streams.

use crate::commands::choice::{Choice, one_of};
use crate::commands::measuring::{self, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::byte_streams::{self, LENS_BYTES, StreamPlan};
use farcall_bench::streams::{Medium, WRITE_LEN_BYTES_MIN};

/// Measure byte streams beside sockets, UCX and what bounds them.
///
/// Round trips of 64 B, and writes that follow each other in one direction, between two processes of one thread each,
/// both polling, each pinned to a core. All rivals are measured interleaved; every stream is verified in the same run,
/// and a wrong byte ends the command. Both ends are on one machine: the software RNIC measures inter-process
/// communication, an RNIC (--provider ibv) its own loopback, not a network.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall stream bench\n  farcall stream bench --against all\n  \
                        farcall stream bench --size 64,1048576 --against tcp,ucx --repetitions 8\n  \
                        farcall stream bench --size 16 --duration-ms 100 --json | jq '.tables[1].rows'")]
pub struct Bench {
    /// Bytes of each write in one direction; may be given several times, or separated by commas. By default 16 B to
    /// 1 MiB.
    #[arg(
        long = "size",
        value_name = "BYTES",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(WRITE_LEN_BYTES_MIN as i64..=1 << 26)
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
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    stage: StageArgs,
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

impl Bench {
    /// Measures and prints.
    ///
    /// # Errors
    /// When it cannot be measured.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let is_wanted = |rival| self.against.contains(&rival) || self.against.contains(&Rival::All);
        let sizes = self.sizes.iter().map(|size| *size as usize).collect::<Vec<_>>();
        let plan = StreamPlan {
            stage: self.stage.stage(0)?,
            chosen: self.nic.choose()?,
            lens_bytes: if sizes.is_empty() { LENS_BYTES.to_vec() } else { sizes },
            sockets: [Medium::Tcp, Medium::Unix]
                .into_iter()
                .filter(|medium| is_wanted(Rival::Socket(*medium)))
                .collect(),
            with_ucx: is_wanted(Rival::Ucx),
        };
        measuring::run(console, |progress| {
            byte_streams::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure byte streams", &*error)
                    .remedy("see what is missing: farcall doctor")
            })
        })
    }
}
