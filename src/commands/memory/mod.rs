//! `farcall memory`: nodes that provide memory to other processes.

mod drain;
mod forget;
pub(super) mod node_list;
mod node_requests;
mod scrub;
mod serve;
pub(super) mod size;
mod status;

use crate::commands::bench::RegionBench;
use crate::commands::command_group::command_group;

command_group! {
    /// Provide memory to other processes, and manage memory nodes.
    pub enum Memory {
        always {
            Serve(serve::Serve),
            Status(status::Status),
            Drain(drain::Drain),
            Scrub(scrub::Scrub),
            Forget(forget::Forget),
            #[command(hide = true)]
            RegionBench(RegionBench),
        }
    }
}
