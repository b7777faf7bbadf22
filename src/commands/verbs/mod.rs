//! `farcall verbs`: unmodified RDMA programs on the software RNIC.

mod install;
pub mod library;
mod run;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Subcommand;

/// Give unmodified RDMA programs the software RNIC, in the place of the system's libibverbs and librdmacm.
///
/// No kernel module, no root, no configuration: programs find a device `softnic0` that connects processes of this host;
/// those that connect by the RDMA connection manager reach it at every address of the host. Not offered: multicast,
/// rsockets.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  farcall verbs run -- ibv_devinfo\n  farcall verbs run -- ib_send_lat -x 0 & \
                        farcall verbs run -- ib_send_lat -x 0 localhost\n  farcall verbs run -- rping -s -a 127.0.0.1 & farcall verbs run -- rping -c -a 127.0.0.1 -C 10\n  farcall verbs install ./lib"
)]
pub enum Verbs {
    Install(install::Install),
    Run(run::Run),
}

impl Verbs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Returns the failure of the subcommand.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self {
            Self::Install(install) => install.run(console),
            Self::Run(run) => run.run(console),
        }
    }
}
