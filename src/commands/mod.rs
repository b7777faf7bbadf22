//! The commands: one file or directory for each. The tree of files follows the tree of commands.

mod command_group;
mod help_groups;
#[cfg(any(test, not(feature = "full")))]
mod missing_feature;

// Commands of each build.
mod bench;
mod capture;
mod completions;
mod devices;
mod doctor;
mod explain;
mod kv;
mod man;
mod peer;
mod rpc;
mod stats;
mod tune;

// Commands of the feature `full`.
#[cfg(feature = "full")]
mod advise;
#[cfg(feature = "full")]
mod conform;
#[cfg(feature = "full")]
mod figures;
#[cfg(feature = "full")]
mod grpc;
#[cfg(feature = "full")]
mod memory;
#[cfg(feature = "full")]
mod mount;
#[cfg(feature = "full")]
mod page;
#[cfg(feature = "full")]
mod run;
#[cfg(feature = "full")]
mod verbs;

// Options that several commands have.
mod batch_args;
mod bench_args;
mod call_args;
mod config_arg;
mod metrics;
mod nic_args;
mod remote_args;
mod startup_wait;
mod value_names;
#[cfg(feature = "full")]
mod volume_args;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::log::LogFilter;
use clap::Parser;
use command_group::command_group;

/// RDMA without the hardware: remote calls, stores and remote memory on a software RNIC, or on RNICs.
#[derive(Debug, Parser)]
#[command(
    name = "farcall",
    version,
    propagate_version = true,
    help_template = help_groups::template(),
    after_help = "Exit codes: 0 success; 1 failure, or a check failed; 2 invalid usage; 3 negative result (no such key, no such \
                  process); 4 the service cannot be reached; 130 interrupted.\n\n\
                  Variables of every program on the software RNIC:\n  \
                  FARCALL_SOCKET_DIR   directory in which processes of several containers or users find each other\n  \
                  FARCALL_GROUP        group whose members may connect, in addition to processes of this user\n  \
                  XDG_RUNTIME_DIR      directory for files of the drop-in device [default: /dev/shm]\n  \
                  FARCALL_DEVICE       name of the device [default: softnic0]\n  \
                  FARCALL_CAPTURE      directory in which each process writes a pcapng (set by farcall capture)\n\
                  Variables of RDMA programs (farcall verbs run --help): FARCALL_TRACE, FARCALL_FAULTS, FARCALL_MOVE_MIB.\n\
                  Variables of socket programs (farcall run --help): FARCALL_RUN_ONLY, FARCALL_RUN_EXCEPT,\n  \
                  FARCALL_RUN_ALLOW_DIRECT_CALLS.\n\n\
                  Examples:\n  farcall doctor                 check whether this machine can run Farcall\n  \
                  farcall bench kv               the main benchmark, about a minute\n  \
                  farcall kv serve               a key-value service for any memcached client"
)]
pub struct Cli {
    /// Print results as JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Print tables with all columns and ranges, even if they do not fit the terminal.
    #[arg(long, global = true)]
    wide: bool,
    /// Log on standard error: off, error, warn, info, debug, trace, or a list such as info,farcall_rpc=debug
    /// [default: warn].
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<LogFilter>,
    #[command(subcommand)]
    command: Command,
}

command_group! {
    enum Command {
        always {
            #[command(subcommand)]
            Kv(kv::Kv),
            #[command(subcommand)]
            Rpc(rpc::Rpc),
            Capture(capture::Capture),
            Doctor(doctor::Doctor),
            Devices(devices::Devices),
            Stats(stats::Stats),
            Explain(explain::Explain),
            #[command(subcommand)]
            Bench(bench::Bench),
            Tune(tune::Tune),
            Completions(completions::Completions),
            Man(man::Man),
            #[command(name = "__peer", hide = true)]
            Peer(peer::Peer),
        }
        full {
            #[cfg_attr(feature = "full", command(subcommand))]
            Grpc(grpc::Grpc),
            #[cfg_attr(feature = "full", command(subcommand))]
            Memory(memory::Memory),
            Mount(mount::Mount),
            Umount(mount::Umount),
            Page(page::Page),
            Run(run::Run),
            #[cfg_attr(feature = "full", command(subcommand))]
            Verbs(verbs::Verbs),
            Conform(conform::Conform),
            Advise(advise::Advise),
            #[cfg_attr(feature = "full", command(subcommand))]
            Figures(figures::Figures),
            // Former names of commands.
            #[command(hide = true)]
            Mounts(mount::List),
            #[command(hide = true)]
            Perf(bench::VerbsBench),
            #[cfg_attr(feature = "full", command(subcommand))]
            #[command(hide = true)]
            Remio(bench::FormerRemio),
            #[cfg_attr(feature = "full", command(subcommand))]
            #[command(hide = true)]
            Stream(bench::FormerStream),
            // Processes that farcall starts itself.
            #[command(name = "__mount-worker", hide = true)]
            MountWorker(mount::Worker),
            #[command(name = "__mount-helper", hide = true)]
            MountHelper(mount::Helper),
            #[command(name = "__pager", hide = true)]
            Pager(page::Pager),
        }
    }
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
        self.command.run(console)
    }
}
