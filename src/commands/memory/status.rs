//! `farcall memory status`.

use super::node_requests::{Nodes, status_of};
use super::size;
use crate::commands::mount::mounts_here;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::memory::wire::{NodeStatus, Redundancy, VolumeMembership};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Show memory nodes: free memory, and the clients that use the rest.
///
/// Also lists the mounts of this machine, with the reason for which their programs wait, if they do. With --json, only
/// nodes are listed: farcall mount list --json lists mounts.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall memory status --nodes 127.0.0.1:11500\n  \
                        farcall memory status --nodes 10.0.0.1:11500,10.0.0.2:11500 --json\n  \
                        farcall memory status --nodes etcd://10.0.0.9:2379/files")]
pub struct Status {
    #[command(flatten)]
    nodes: Nodes,
}

impl Status {
    /// Queries the nodes and prints their status.
    ///
    /// # Errors
    /// If a node cannot be reached; the replies of the others are printed. If records of mounts cannot be read.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let selected = self.nodes.open()?;
        let (mut lines, mut values, mut failed) = (Vec::new(), Vec::new(), None);
        for node in self.nodes.nodes.find(None)? {
            match status_of(&selected, node) {
                Ok(status) => {
                    lines.push(text(node, &status));
                    values.push(value(node, &status));
                }
                Err(failure) => failed = Some(failure),
            }
        }
        if !console.is_json() {
            match mounts_here() {
                Ok(mounts) if mounts.is_empty() => {}
                Ok(mounts) => {
                    lines.push("mounts of this machine:".to_owned());
                    lines.extend(mounts.iter().map(|mount| format!("  {mount}")));
                }
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        if !values.is_empty() || !lines.is_empty() {
            console.print(&lines.join("\n"), &Value::Array(values))?;
        }
        failed.map_or(Ok(Exit::Success), Err)
    }
}

fn text(node: SocketAddr, status: &NodeStatus) -> String {
    let room = status.room;
    let bytes = |slabs: u32| size::text(u64::from(slabs) * status.slab_bytes);
    let draining = if room.is_draining { ", draining" } else { "" };
    let donated = match room.slabs {
        0 if !room.is_draining => "a witness, without pages".to_owned(),
        slabs => {
            let slab = size::text(status.slab_bytes);
            format!("{} free of {} (slabs of {slab})", bytes(room.free), bytes(slabs))
        }
    };
    let mut text = format!("{node}  {donated}{draining}; {} leases expired", status.expired);
    for (at, holder) in status.holders.iter().enumerate() {
        let connection = if holder.is_connected { "" } else { ", not connected" };
        text += &format!(
            "\n  {}: {}, lease for {:.1} s{connection}",
            holder.name.escape_debug(),
            bytes(holder.slabs),
            f64::from(holder.left_ms) / 1e3
        );
        if let Some(redundancy) = status.reports.get(at).and_then(|report| report.redundancy) {
            text += &format!("\n    {}", redundancy_text(redundancy));
        }
    }
    if !status.volumes.is_empty() {
        let notes: u64 = status.volumes.iter().map(|volume| volume.metadata_bytes).sum();
        text += &format!(
            "\n  volumes: {} of at most {}, with {} of at most {} of metadata",
            status.volumes.len(),
            status.volumes_max,
            size::text(notes),
            size::text(status.metadata_bytes_max)
        );
    }
    for (at, volume) in status.volumes.iter().enumerate() {
        let membership = status.memberships.get(at);
        let membership = membership.map_or_else(String::new, |it| membership_text(*it, volume.is_held));
        text += &format!(
            "\n  volume {}: {} and {} of metadata, epoch {}, {}{membership}",
            volume.name.escape_debug(),
            bytes(volume.slabs),
            size::text(volume.metadata_bytes),
            volume.epoch,
            if volume.is_held { "mounted" } else { "not mounted" }
        );
    }
    text
}

/// Describes the membership of a volume by the view of one node.
fn membership_text(membership: VolumeMembership, is_mounted: bool) -> String {
    match membership {
        VolumeMembership { is_member: false, .. } if is_mounted => "; this node is joining it".to_owned(),
        VolumeMembership { is_member: false, .. } => "; this node lacks metadata of it".to_owned(),
        VolumeMembership { nodes, members, .. } if members < nodes => {
            format!("; {members} of {nodes} nodes have its metadata")
        }
        VolumeMembership { nodes, .. } => format!("; {nodes} nodes"),
    }
}

/// Describes the redundancy of a client's data on all of its nodes.
fn redundancy_text(redundancy: Redundancy) -> String {
    let Redundancy { replicas, slabs, degraded, copying, lost, held_back, repaired, .. } = redundancy;
    let mut text = match degraded {
        0 => format!("in sync: {slabs} slabs with {replicas} replicas"),
        _ => format!("degraded: {degraded} of {slabs} slabs with fewer than {replicas} replicas"),
    };
    for (count, what) in
        [(copying, "being copied"), (lost, "lost"), (held_back, "not returned: too few replicas")]
    {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    if repaired > 0 {
        text += &format!("; {repaired} damaged pages repaired");
    }
    text
}

fn value(node: SocketAddr, status: &NodeStatus) -> Value {
    let holders = status.holders.iter().enumerate().map(|(at, holder)| {
        json!({ "name": holder.name, "slabs": holder.slabs, "lease_left_ms": holder.left_ms,
                "is_connected": holder.is_connected, "redundancy": status.reports.get(at).and_then(|report| report.redundancy) })
    });
    let volumes = status.volumes.iter().enumerate().map(|(at, volume)| {
        json!({ "name": volume.name, "slabs": volume.slabs, "notes_bytes": volume.metadata_bytes,
                "epoch": volume.epoch, "is_mounted": volume.is_held, "membership": status.memberships.get(at) })
    });
    json!({
        "volumes": volumes.collect::<Vec<_>>(), "volumes_max": status.volumes_max,
        "notes_bytes_max": status.metadata_bytes_max,
        "node": node.to_string(), "incarnation": format!("{:016x}", status.incarnation),
        "slab_bytes": status.slab_bytes, "slabs": status.room.slabs, "slabs_free": status.room.free,
        "is_draining": status.room.is_draining, "leases_expired": status.expired,
        "holders": holders.collect::<Vec<_>>(),
    })
}
