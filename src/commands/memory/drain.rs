//! `farcall memory drain`: moves all pages away from a memory node.

use super::ask::{Nodes, ask, status_of};
use super::size;
use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::Args;
use farcall::memory::wire::Request;
use serde_json::json;
use std::time::{Duration, Instant};

/// Interval between two requests for the progress of a node.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Time for which clients may keep slabs on a node for lack of other nodes, before draining is given up.
const HELD_BACK_MAX: Duration = Duration::from_secs(5);

/// Have clients move their pages to other nodes, and wait until nothing is left on these: then they can be stopped.
///
/// The nodes grant nothing more. With --undo they grant again. If clients would keep fewer replicas than they are
/// configured for, since no other node has room, the nodes are not drained, unless --force. A volume that is kept and
/// not mounted leaves when it is mounted, or forgotten: farcall memory forget.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall memory drain --nodes 127.0.0.1:11500\n  \
                        farcall memory drain --nodes 127.0.0.1:11500 --undo")]
pub struct Drain {
    #[command(flatten)]
    nodes: Nodes,
    /// The nodes grant slabs again.
    #[arg(long)]
    undo: bool,
    /// Clients leave also where fewer replicas stay than they are configured for, down to one.
    #[arg(long, conflicts_with = "undo")]
    force: bool,
    /// Time-out in seconds; after it the nodes continue to drain.
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
        let chosen = self.nodes.choose()?;
        let request =
            if self.force { Request::DrainForced } else { Request::Drain { is_wanted: !self.undo } };
        let nodes = self.nodes.nodes.find(None)?;
        for node in &nodes {
            ask(&chosen, *node, &request)?;
        }
        if self.undo {
            console.say(&"the nodes grant slabs again", &json!({ "is_draining": false }))?;
            return Ok(Exit::Success);
        }
        let (until, bar) = (Instant::now() + Duration::from_secs(self.timeout), spinner());
        for node in &nodes {
            let mut held_back_since = None;
            loop {
                let status = status_of(&chosen, *node)?;
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
                        ask(&chosen, *node, &Request::Drain { is_wanted: false })?;
                    }
                    let of = size::text(u64::from(held_back) * status.slab_bytes);
                    return Err(Failure::new(
                        "clients would keep fewer replicas than they are configured for",
                    )
                    .at(node)
                    .why(format!("no other node has room for {of}; the nodes grant slabs again"))
                    .remedy(
                        "start more memory nodes, or accept fewer replicas: farcall memory drain --force",
                    ));
                }
                bar.set_message(format!("{node}: {left} to be moved"));
                if stop.is_raised() {
                    return Ok(Exit::Interrupted);
                }
                if Instant::now() > until {
                    return Err(Failure::new("clients do not leave the memory node")
                        .at(node)
                        .why(format!("{left} are still held after {} s", self.timeout))
                        .remedy(
                            "give them other nodes with free memory, or a spill file; forget volumes that nobody \
                             mounts; see: farcall memory status",
                        ));
                }
                std::thread::sleep(LOOK_PERIOD);
            }
        }
        bar.finish_and_clear();
        console.say(
            &"nothing is left on the nodes; they can be stopped",
            &json!({ "is_draining": true, "slabs": 0 }),
        )?;
        Ok(Exit::Success)
    }
}
