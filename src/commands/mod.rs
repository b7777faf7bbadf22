//! The commands, one file each.

#[cfg(feature = "full")]
mod advise;
mod batch_args;
mod call_args;
mod capture;
mod choice;
mod completions;
mod config_arg;
#[cfg(feature = "full")]
mod conform;
mod devices;
mod doctor;
mod explain;
#[cfg(feature = "full")]
mod figures;
#[cfg(feature = "full")]
mod grpc;
mod halves;
mod kv;
mod man;
mod measuring;
#[cfg(feature = "full")]
mod memory;

#[cfg(feature = "full")]
mod mount;

mod metrics;

mod nic_args;
#[cfg(any(test, not(feature = "full")))]
mod not_built_in;
#[cfg(feature = "full")]
mod page;
#[cfg(feature = "full")]
mod perf;
#[cfg(feature = "full")]
mod remio;
mod rpc;
#[cfg(feature = "full")]
mod run;
mod starting;
mod stats;
#[cfg(feature = "full")]
mod stream;
mod tune;
#[cfg(feature = "full")]
mod verbs;
#[cfg(feature = "full")]
mod volume_args;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::log::LogFilter;
use clap::{Parser, Subcommand};

/// RDMA remote calls and a key-value service that run everywhere: with an RNIC, or without one through a software RNIC.
#[derive(Debug, Parser)]
#[command(
    name = "farcall",
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 done; 1 failed, or a check found something wrong; 2 wrong usage; 3 the answer is no (no such key, \
                  no such process); 4 the service cannot be reached; 130 interrupted.\n\n\
                  Variables, for every program on the software RNIC:\n  \
                  FARCALL_SOCKET_DIR   a directory in which processes of several containers or users find each other\n  \
                  FARCALL_GROUP        members of this group may connect, beside one's own processes\n  \
                  XDG_RUNTIME_DIR      files of the drop-in device are kept below it (else in /dev/shm)\n  \
                  FARCALL_DEVICE       another name for the device softnic0\n  \
                  FARCALL_CAPTURE      a directory in which each process writes a pcapng (farcall capture sets it)\n\
                  and of RDMA programs (farcall verbs run --help): FARCALL_TRACE, FARCALL_FAULTS, FARCALL_MOVE_MIB;\n\
                  of socket programs (farcall run --help): FARCALL_RUN_ONLY, FARCALL_RUN_EXCEPT,\n  \
                  FARCALL_RUN_ALLOW_DIRECT_CALLS.\n\n\
                  Examples:\n  farcall doctor                 can this machine run it, and what to change\n  \
                  farcall kv bench               the main benchmark, about a minute\n  \
                  farcall kv serve               a key-value service; any memcached client works"
)]
pub struct Cli {
    /// Print results as JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Print tables with all columns and ranges, however wide; else they fit the terminal.
    #[arg(long, global = true)]
    wide: bool,
    /// Log on standard error: off, error, warn, info, debug, trace, or a list such as info,farcall_rpc=debug
    /// [default: warn].
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<LogFilter>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(feature = "full")]
    Advise(advise::Advise),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Advise(not_built_in::NotBuiltIn),
    Capture(capture::Capture),
    #[cfg(feature = "full")]
    Conform(conform::Conform),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Conform(not_built_in::NotBuiltIn),
    Completions(completions::Completions),
    Devices(devices::Devices),
    Doctor(doctor::Doctor),
    Explain(explain::Explain),
    #[cfg(feature = "full")]
    #[command(subcommand)]
    Figures(figures::Figures),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Figures(not_built_in::NotBuiltIn),
    #[cfg(feature = "full")]
    #[command(subcommand)]
    Grpc(grpc::Grpc),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Grpc(not_built_in::NotBuiltIn),
    #[command(subcommand)]
    Kv(kv::Kv),
    Man(man::Man),
    #[cfg(feature = "full")]
    #[command(subcommand)]
    Memory(memory::Memory),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Memory(not_built_in::NotBuiltIn),
    #[cfg(feature = "full")]
    Mount(mount::Mount),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Mount(not_built_in::NotBuiltIn),
    #[cfg(feature = "full")]
    Mounts(mount::List),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Mounts(not_built_in::NotBuiltIn),
    #[cfg(feature = "full")]
    Page(page::Page),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Page(not_built_in::NotBuiltIn),
    #[cfg(feature = "full")]
    Perf(perf::Perf),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Perf(not_built_in::NotBuiltIn),
    #[cfg(feature = "full")]
    #[command(subcommand)]
    Remio(remio::Remio),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Remio(not_built_in::NotBuiltIn),
    #[command(subcommand)]
    Rpc(rpc::Rpc),
    #[cfg(feature = "full")]
    Run(run::Run),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Run(not_built_in::NotBuiltIn),
    Stats(stats::Stats),
    #[cfg(feature = "full")]
    #[command(subcommand)]
    Stream(stream::Stream),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Stream(not_built_in::NotBuiltIn),
    Tune(tune::Tune),
    #[cfg(feature = "full")]
    Umount(mount::Umount),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Umount(not_built_in::NotBuiltIn),
    #[cfg(feature = "full")]
    #[command(subcommand)]
    Verbs(verbs::Verbs),
    #[cfg(not(feature = "full"))]
    #[command(about = not_built_in::NOT_BUILT_IN)]
    Verbs(not_built_in::NotBuiltIn),
    /// The other end of a measurement; started by farcall itself.
    #[command(name = "__peer", hide = true)]
    Peer,
    #[cfg(feature = "full")]
    #[command(name = "__mount-worker", hide = true)]
    MountWorker(mount::Worker),
    #[cfg(feature = "full")]
    #[command(name = "__mount-helper", hide = true)]
    MountHelper(mount::Helper),
    #[cfg(feature = "full")]
    #[command(name = "__pager", hide = true)]
    Pager(page::Pager),
}

impl Cli {
    /// Returns the form of the output.
    pub fn console(&self) -> Console {
        Console::new(self.json, self.wide)
    }

    /// Returns the log filter, if one was given.
    pub fn log_filter(&self) -> Option<LogFilter> {
        self.log.clone()
    }

    /// Runs the command.
    ///
    /// # Errors
    /// Returns the failure of the command.
    pub fn run(self) -> Result<Exit, Failure> {
        let console = self.console();
        match self.command {
            Command::Advise(advise) => advise.run(console),
            Command::Capture(capture) => capture.run(console),
            Command::Conform(conform) => conform.run(console),
            Command::Completions(completions) => completions.run(console),
            Command::Devices(devices) => devices.run(console),
            Command::Doctor(doctor) => doctor.run(console),
            Command::Explain(explain) => explain.run(console),
            Command::Figures(figures) => figures.run(console),
            Command::Grpc(grpc) => grpc.run(console),
            Command::Kv(kv) => kv.run(console),
            Command::Man(man) => man.run(console),
            Command::Memory(memory) => memory.run(console),
            Command::Mount(mount) => mount.run(console),
            Command::Mounts(mounts) => mounts.run(console),
            Command::Page(page) => page.run(console),
            Command::Perf(perf) => perf.run(console),
            Command::Remio(remio) => remio.run(console),
            Command::Rpc(rpc) => rpc.run(console),
            Command::Run(run) => run.run(console),
            Command::Stats(stats) => stats.run(console),
            Command::Stream(stream) => stream.run(console),
            Command::Tune(tune) => tune.run(console),
            Command::Umount(umount) => umount.run(console),
            Command::Verbs(verbs) => verbs.run(console),
            #[cfg(feature = "full")]
            Command::MountWorker(worker) => worker.run(),
            #[cfg(feature = "full")]
            Command::MountHelper(helper) => helper.run(),
            #[cfg(feature = "full")]
            Command::Pager(pager) => pager.run(),
            Command::Peer => farcall_bench::run_peer()
                .map(|()| Exit::Success)
                .map_err(|error| Failure::because("the other end of a measurement failed", &error)),
        }
    }
}
