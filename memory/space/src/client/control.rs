//! Calls to nodes. Each node has a thread of its own, since a call blocks, and a node that crashed must not delay the
//! calls to others.

use std::sync::mpsc;
use std::time::Duration;

use farcall_link::{Nic, WaitStrategy};
use farcall_rpc::{CallError, Client, ClientOptions};
use farcall_verbs::with_sources;

use super::node_client::NodeCallError;
use crate::wire::{METHOD, RefusalKind, Reply, Request};

/// Timeout of a connection attempt, and of a call: longer than a busy machine needs, shorter than a lease term.
const CALL_MAX: Duration = Duration::from_secs(2);

/// Executes calls to one node in order, until the sender is dropped.
pub(super) fn run(
    nic: &Nic,
    address: &str,
    calls: &mpsc::Receiver<Vec<u8>>,
    on_reply: impl Fn(Result<Vec<u8>, NodeCallError>),
) {
    let mut client = None;
    for request in calls {
        let reply = call(&mut client, nic, address, &request);
        if let Err(NodeCallError::Unreachable(_)) = reply {
            client = None;
        }
        on_reply(reply);
    }
}

/// Executes a call over a client, which is connected if there is none.
fn call(
    client: &mut Option<Client>,
    nic: &Nic,
    address: &str,
    request: &[u8],
) -> Result<Vec<u8>, NodeCallError> {
    let unreachable = |why: String| NodeCallError::Unreachable(format!("{address}: {why}"));
    let client = match client {
        Some(client) => client,
        None => client.insert(connect(nic, address).map_err(unreachable)?),
    };
    let mut reply = Vec::new();
    match client.call(METHOD, request, &mut reply) {
        Ok(()) => Ok(reply),
        Err(CallError::Application { code, message }) => match RefusalKind::of_code(code) {
            Some(kind) => Err(NodeCallError::Refused(kind.because(message))),
            None => Err(unreachable(message)),
        },
        Err(error) => Err(unreachable(error.to_string())),
    }
}

/// Returns a function that calls nodes one at a time, each over its own connection.
pub(super) fn node_caller<'a>(
    nic: &'a Nic,
    nodes: &'a [String],
) -> impl FnMut(usize, &Request) -> Result<Reply, NodeCallError> + use<'a> {
    let mut clients: Vec<Option<Client>> = nodes.iter().map(|_| None).collect();
    move |at, request| {
        let reply = call(&mut clients[at], nic, &nodes[at], &request.to_bytes());
        if let Err(NodeCallError::Unreachable(_)) = reply {
            clients[at] = None;
        }
        let bytes = reply?;
        Reply::parse(&bytes).map_err(NodeCallError::Refused)
    }
}

fn connect(nic: &Nic, address: &str) -> Result<Client, String> {
    // Calls are rare, so a thread that waits for one sleeps.
    let options = ClientOptions::preset("server-reply")
        .ok_or("no preset server-reply")?
        .connect_timeout(CALL_MAX)
        .reconnect(false)
        .probe(false)
        .call_timeout(CALL_MAX)
        .wait_by(WaitStrategy::EventBatch);
    Client::connect(nic, address, options).map_err(|error| with_sources(&error))
}

/// Sends one request to a node, for operators' tools.
///
/// # Errors
/// Returns an error if the node cannot be reached or refuses the request.
pub fn call_node(nic: &Nic, address: &str, request: &Request) -> Result<Reply, NodeCallError> {
    let bytes = call(&mut None, nic, address, &request.to_bytes())?;
    Reply::parse(&bytes).map_err(NodeCallError::Refused)
}
