//! `farcall verbs`: unmodified RDMA programs on the software RNIC.

mod install;
pub mod library;
mod run;

use crate::commands::command_group::command_group;

command_group! {
    /// Run unmodified RDMA programs on the software RNIC.
    ///
    /// Replaces libibverbs and librdmacm of the system for these programs. No kernel module, root or configuration is
    /// needed. Programs find a device `softnic0` that connects processes of this host; with the RDMA connection manager,
    /// it has every address of the host. Multicast and rsockets are not supported.
    #[command(
        after_help = "Examples:\n  farcall verbs run -- ibv_devinfo\n  farcall verbs run -- ib_send_lat -x 0 & \
                            farcall verbs run -- ib_send_lat -x 0 localhost\n  farcall verbs run -- rping -s -a 127.0.0.1 & farcall verbs run -- rping -c -a 127.0.0.1 -C 10\n  farcall verbs install ./lib"
    )]
    pub enum Verbs {
        always {
            Run(run::Run),
            Install(install::Install),
        }
    }
}
