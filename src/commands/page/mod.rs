//! `farcall page`: paging for unmodified programs.

mod cleanup;
mod pager;
mod run;
mod status;

use crate::commands::bench::PageBench;
use crate::commands::command_group::command_group;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
pub use pager::Pager;

/// Run a program whose pages are swapped to the memory of other machines.
///
/// The program is unmodified. It runs in a cgroup with a memory limit, and its pages are swapped to several memory nodes
/// (farcall memory serve). If no node has a page, the program gets SIGBUS, never other bytes. The exit code is that of
/// the program. If the process that serves the pages is killed, another one takes over, and the program only waits
/// (Linux 6.9). When the program exits, its remaining processes are killed, and the setup is removed.
///
/// A swap area of Linux is not limited to one program: if the machine is short of memory, pages of other programs may
/// also be swapped to the memory nodes. They are read back at the end; if this process and its pager are both killed,
/// they are lost. Run the memory nodes on other machines, or with --lock. Requires root, /dev/fuse, loop devices and a
/// memory cgroup.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:\n  farcall memory serve --size 4G        on two machines\n  \
                  farcall page --resident 256M --nodes a:11500,b:11500 --replicas 2 -- ./program --its-option\n  \
                  farcall page status\n  farcall page cleanup                  after a crash")]
pub struct Page {
    #[command(subcommand)]
    query: Option<PageQuery>,
    #[command(flatten)]
    run: run::Run,
}

command_group! {
    enum PageQuery {
        always {
            Status(status::Status),
            Cleanup(cleanup::Cleanup),
            #[command(hide = true)]
            Bench(PageBench),
        }
    }
}

impl Page {
    /// Runs the program or the subcommand.
    ///
    /// # Errors
    /// Returns its failure.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self.query {
            Some(query) => query.run(console),
            None => self.run.run(),
        }
    }
}
