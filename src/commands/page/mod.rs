//! `farcall page`: paging for unmodified programs.

mod bench;
mod cleanup;
mod pager;
mod run;
mod status;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, Subcommand};
pub use pager::Pager;

/// Run a program with a limit of local memory; what exceeds it goes to the memory of other machines.
///
/// The program is not changed. It runs in a cgroup with a limit, and its pages are swapped to memory nodes (farcall
/// memory serve), each to several; a page that none of them has is SIGBUS for the program, never other bytes. Its exit
/// code is handed on. If the process that serves its pages is killed, the next one takes over, and the program only
/// waits (Linux 6.9). When it has ended, whatever it left running is killed, and everything is undone.
///
/// Linux has no swap area for one program: while this runs, pages of other programs may go to the memory nodes, too, if
/// the machine as a whole is short of memory, and come back at the end. If this process and its pager are both killed,
/// such pages are lost. Run memory nodes on other machines, or with --lock. Needs root, /dev/fuse, loop devices and a
/// memory cgroup.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:\n  farcall memory serve --size 4G        on two machines\n  \
                  farcall page --resident 256M --nodes a:11500,b:11500 --replicas 2 -- ./program --its-option\n  \
                  farcall page bench\n  farcall page status\n  farcall page cleanup                  after a crash")]
pub struct Page {
    #[command(subcommand)]
    look_after: Option<LookAfter>,
    #[command(flatten)]
    run: run::Run,
}

#[derive(Debug, Subcommand)]
enum LookAfter {
    Bench(bench::Bench),
    Status(status::Status),
    Cleanup(cleanup::Cleanup),
}

impl Page {
    /// Runs the program or the subcommand.
    ///
    /// # Errors
    /// Returns its failure.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self.look_after {
            Some(LookAfter::Bench(bench)) => bench.run(console),
            Some(LookAfter::Status(status)) => status.run(console),
            Some(LookAfter::Cleanup(cleanup)) => cleanup.run(console),
            None => self.run.run(),
        }
    }
}
