//! `farcall memory forget`.

use super::node_list::etcd_failure;
use super::node_requests::{Nodes, request};
use crate::commands::volume_args::VolumeArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::memory::wire::Request;
use serde_json::json;

/// Remove a volume and its files from memory nodes.
///
/// The volume must not be mounted. A node that was restarted has no volumes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall memory forget --nodes a:11500,b:11500 --volume files \
                        --volume-key /etc/farcall/files.key")]
pub struct Forget {
    #[command(flatten)]
    nodes: Nodes,
    #[command(flatten)]
    volume: VolumeArgs,
}

impl Forget {
    /// Sends the request to the nodes.
    ///
    /// # Errors
    /// If a node cannot be reached, or refuses because the volume is mounted or has another key.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        // The holder and the size of the metadata are relevant only for a mount.
        let volume = self.volume.read([0; 16], 0)?.to_ref();
        let selected = self.nodes.open()?;
        let list = &self.nodes.nodes;
        for node in list.find(Some(&volume.name))? {
            request(&selected, node, &Request::Forget { volume: volume.clone() })?;
        }
        if let Some(directory) = list.directory() {
            directory.forget_volume(&volume.name).map_err(|error| etcd_failure(directory, &error))?;
        }
        console.print(
            &format!("the volume {:?} is removed from the nodes", volume.name),
            &json!({ "forgotten": volume.name }),
        )?;
        Ok(Exit::Success)
    }
}
