//! `farcall memory drain`: moves all pages away from a memory node.

use super::node_requests::{Nodes, request, status_of};
use super::size;
use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::Args;
use farcall::memory::wire::Request;
use serde_json::json;
use std::time::{Duration, Instant};

/// Interval between two requests for the progress of a node.
const QUERY_INTERVAL: Duration = Duration::from_millis(100);

/// Time for which clients may keep slabs on a node for lack of other nodes, before draining is abandoned.
const HELD_BACK_MAX: Duration = Duration::from_secs(5);

/// Move all pages from these nodes to other nodes, so that they can be stopped.
///
/// Clients move their pages; this command waits until the nodes are empty. The nodes grant no more memory, until --undo.
/// If no other node has space, so that clients would have fewer replicas than they are configured for, the nodes are not
/// drained, unless with --force. The pages of a volume that is not mounted are moved when it is mounted; to remove them:
/// farcall memory forget.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall memory drain --nodes 127.0.0.1:11500\n  \
                        farcall memory drain --nodes 127.0.0.1:11500 --undo")]
pub struct Drain {
    #[command(flatten)]
    nodes: Nodes,
    /// The nodes grant slabs again.
    #[arg(long)]
    undo: bool,
    /// Drain the nodes even if clients have fewer replicas afterwards than they are configured for, down to one.
    #[arg(long, conflicts_with = "undo")]
    force: bool,
    /// Timeout in seconds. The nodes continue to drain after it.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

impl Drain {
    /// Sends the request to the nodes, and waits for the clients.
    ///
    /// # Errors
    /// If a node cannot be reached, or clients do not leave it in time.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        let selected = self.nodes.open()?;
        let message =
            if self.force { Request::DrainForced } else { Request::Drain { is_wanted: !self.undo } };
        let nodes = self.nodes.nodes.find(None)?;
        for node in &nodes {
            request(&selected, *node, &message)?;
        }
        if self.undo {
            console.print(&"the nodes grant slabs again", &json!({ "is_draining": false }))?;
            return Ok(Exit::Success);
        }
        let (until, bar) = (Instant::now() + Duration::from_secs(self.timeout), spinner());
        for node in &nodes {
            let mut held_back_since = None;
            loop {
                let status = status_of(&selected, *node)?;
                let held = status.room.slabs - status.room.free.min(status.room.slabs);
                if held == 0 {
                    break;
                }
                let left = size::text(u64::from(held) * status.slab_bytes);
                let held_back = status
                    .reports
                    .iter()
                    .filter_map(|report| Some(report.redundancy?.held_back))
                    .sum::<u32>();
                if held_back == 0 {
                    held_back_since = None;
                }
                // Other nodes may join shortly.
                let is_held_back = held_back > 0
                    && held_back_since.get_or_insert_with(Instant::now).elapsed() > HELD_BACK_MAX;
                if is_held_back && !self.force {
                    for node in &nodes {
                        request(&selected, *node, &Request::Drain { is_wanted: false })?;
                    }
                    let of = size::text(u64::from(held_back) * status.slab_bytes);
                    return Err(Failure::new(
                        "clients would have fewer replicas than they are configured for",
                    )
                    .at(node)
                    .why(format!("no other node has space for {of}; the nodes grant slabs again"))
                    .remedy(
                        "start more memory nodes, or accept fewer replicas: farcall memory drain --force",
                    ));
                }
                bar.set_message(format!("{node}: {left} to be moved"));
                if stop.is_raised() {
                    return Ok(Exit::Interrupted);
                }
                if Instant::now() > until {
                    return Err(Failure::new(
                        "clients did not move their pages from the memory node in time",
                    )
                    .at(node)
                    .why(format!("{left} are still in use after {} s", self.timeout))
                    .remedy(
                        "start nodes with free memory, or configure a spill file; forget unused volumes; see \
                             farcall memory status",
                    ));
                }
                std::thread::sleep(QUERY_INTERVAL);
            }
        }
        bar.finish_and_clear();
        console.print(
            &"the nodes are empty; they can be stopped",
            &json!({ "is_draining": true, "slabs": 0 }),
        )?;
        Ok(Exit::Success)
    }
}
