//! Requests to memory nodes.

use super::node_list::{NodeList, VALUE_NAME};
use crate::commands::nic_args::NicArgs;
use crate::commands::startup_wait;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::memory::wire::{NodeStatus, Reply, Request};
use farcall::memory::{NodeCallError, call_node};
use farcall::select::SelectedNic;
use std::net::SocketAddr;

/// Memory nodes of a command.
#[derive(Debug, Args)]
pub struct Nodes {
    /// Addresses of memory nodes (farcall memory serve), separated by commas, or all that are registered in etcd.
    #[arg(long, value_name = VALUE_NAME, value_parser = NodeList::parse)]
    pub nodes: NodeList,
    #[command(flatten)]
    nic: NicArgs,
}

impl Nodes {
    /// Returns the provider for requests to the nodes.
    ///
    /// # Errors
    /// If the provider cannot be used.
    pub fn open(&self) -> Result<SelectedNic, Failure> {
        self.nic.open()
    }
}

/// Sends a request to a node and returns its reply.
///
/// # Errors
/// If the node cannot be reached, or refuses the request.
pub fn request(selected: &SelectedNic, node: SocketAddr, message: &Request) -> Result<Reply, Failure> {
    let reply = startup_wait::connect(
        || call_node(&selected.nic, &node.to_string(), message),
        // The error contains its cause only as text, so every failure to connect is retried, because it may be
        // temporary.
        |failed| matches!(failed, NodeCallError::Unreachable(_)),
    );
    reply.map_err(|failed| match failed {
        NodeCallError::Refused(refusal) => {
            Failure::because("the memory node refused the request", &refusal).at(node)
        }
        NodeCallError::Unreachable(why) => Failure::new("cannot reach the memory node")
            .at(node)
            .why(why)
            .remedy("start it: farcall memory serve; or name another node with --nodes")
            .exit(Exit::Unreachable),
    })
}

/// Returns the status of a node.
///
/// # Errors
/// Like [`request`].
pub fn status_of(selected: &SelectedNic, node: SocketAddr) -> Result<NodeStatus, Failure> {
    match request(selected, node, &Request::Status)? {
        Reply::Status(status) => Ok(status),
        _ => Err(Failure::new("the memory node sent an unexpected reply")
            .at(node)
            .remedy("update the node or this program, whichever is older")),
    }
}
