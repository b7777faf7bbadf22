//! Construction of an [`Engine`] from a volume that the client has claimed.

use farcall_link::{Nic, SplitMix64};
use farcall_verbs::Nanos;

use super::metadata::{MetadataCopy, MetadataReplication};
use super::redo::RedoLog;
use super::{Engine, PageChecksums};
use crate::client::claim::{ClaimedNode, ClaimedVolume, ReattachedSlab, claim};
use crate::client::config::{ClientConfig, OpenError, Takeover, VolumeConfig};
use crate::client::extent::{Replica, ReplicaLocation, ReplicaState};
use crate::client::node_client::{Call, Lease, NodeCallError};
use crate::wire::{Reply, Request};

impl Engine {
    /// Claims `volume` and returns an engine for it, together with the state that an earlier client left. All metadata
    /// that the earlier client committed is restored.
    ///
    /// `call` sends a request to the node with the given index in the configuration and blocks until the reply arrives
    /// or the call fails. `now` returns the current time.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::new`]. Also fails if another client holds the volume, if too few nodes reply,
    /// or if the key or geometry of the volume differs.
    pub fn claim(
        nic: &Nic,
        config: ClientConfig,
        volume: &VolumeConfig,
        call: impl FnMut(usize, &Request) -> Result<Reply, NodeCallError>,
        now: impl Fn() -> Nanos,
    ) -> Result<(Self, Takeover), OpenError> {
        if config.spill.is_some() {
            return Err(OpenError::volume(&volume.name, "a spill file ends with its process; leave it out"));
        }
        config.check()?;
        let mut rng = SplitMix64::new(u64::from_le_bytes(nic.entropy().bytes()?));
        let claimed = claim(&config, volume, &mut rng, call, &now)?;
        let is_new = claimed.metadata.is_empty();
        let user_metadata =
            claimed.metadata.iter().map(|metadata| claimed.layout.read_user(metadata).to_vec());
        let granted_address =
            |(index, address): (usize, &String)| claimed.nodes[index].as_ref().map(|_| address.clone());
        let takeover = Takeover {
            epoch: claimed.view.epoch,
            is_new,
            missing: claimed.missing.clone(),
            nodes: config.nodes.iter().enumerate().filter_map(granted_address).collect(),
            metadata: user_metadata.collect(),
        };
        let mut engine = Self::new(nic, config)?;
        engine.seed = volume.seed();
        engine.checksums = PageChecksums::new(engine.seed);
        engine.attach_volume(claimed, volume, now())?;
        Ok((engine, takeover))
    }

    fn attach_volume(
        &mut self,
        claimed: ClaimedVolume,
        volume: &VolumeConfig,
        now: Nanos,
    ) -> Result<(), OpenError> {
        let ClaimedVolume { nodes, view, layout, placement, replicas, table, redo_logs, .. } = claimed;
        self.redo = RedoLog::read(&layout, &redo_logs, &table, &self.checksums);
        let (mut copies, mut generation) = (Vec::new(), 0);
        if let Some((newest, placement)) = placement {
            generation = newest;
            (self.last_serial, self.last_slab) = (placement.last_serial, placement.last_slab);
        }
        for (index, node) in nodes.into_iter().enumerate() {
            // Conservative bound: it must not exceed the expiry at the node. Renewal is due immediately.
            copies.push(node.map(|node| {
                let until = now + node.term / 2;
                self.attach_node(index, node, until, now)
            }));
            if copies[index].is_none() {
                self.nodes[index].is_non_member = true;
                self.nodes[index].problem = Some("it did not grant the volume".to_owned());
            }
        }
        for ReattachedSlab { extent, node, slab, region } in replicas {
            self.last_serial += 1;
            let location = ReplicaLocation::Node { node, slab, region, grant: None };
            let replica = Replica { serial: self.last_serial, location, state: ReplicaState::InSync };
            let extent = self.extents.get_mut(extent);
            extent.ok_or_else(|| OpenError::Saved("it is damaged".to_owned()))?.replicas.push(replica);
        }
        for (page, (newest, previous)) in table {
            let (extent, index) = self.locate(page);
            let zeros = self.checksums.zeros_checksum(page);
            let pages = self.pages_of(extent);
            pages.restore_entry(index, newest.sum, newest.generation);
            // The newest entry is a write intent. The page holds the bytes of that write or of the previous entry
            // (zeros if there is none).
            pages.mark_uncertain(index, previous.map_or(zeros, |previous| previous.sum));
            self.extents[extent].is_touched = true;
        }
        for extent in &mut self.extents {
            extent.is_touched |= !extent.replicas.is_empty();
        }
        self.metadata = Some(MetadataReplication::new(volume.clone(), layout, copies, view, generation));
        self.placement_dirty = true;
        Ok(())
    }

    /// Adopts the lease and capacity of a node that has granted its part of the volume, and returns the node's copy of
    /// the metadata. Slabs of replicas that are away are requested again, the others are returned. The lease is valid
    /// until `until`.
    pub(super) fn attach_node(
        &mut self,
        index: usize,
        claimed: ClaimedNode,
        until: Nanos,
        now: Nanos,
    ) -> MetadataCopy {
        let client = &mut self.nodes[index];
        client.begin_lease(Lease { key: claimed.lease, term: claimed.term, until });
        client.room = claimed.room;
        client.disconnected_since = Some(now);
        // The node grants again the slabs of replicas that only it has. If it was restarted, these are lost.
        let mut unwanted = claimed.slabs.clone();
        for (number, extent) in self.extents.iter_mut().enumerate() {
            let is_lost = |replica: &Replica| matches!(replica.location, ReplicaLocation::Away { node, slab } if node == index && !claimed.slabs.contains(&slab));
            let count = extent.replicas.len();
            extent.replicas.retain(|replica| !is_lost(replica));
            self.placement_dirty |= extent.replicas.len() < count;
            let wanted = claimed.slabs.iter().filter(|slab| extent.away_mut(index, **slab).is_some());
            for slab in wanted.copied().collect::<Vec<_>>() {
                unwanted.remove(&slab);
                client.calls.push_back(Call::Grant { extent: number, slab });
            }
            if extent.replicas.len() < count {
                self.releasing.extend(extent.take_if_none_in_sync());
            }
        }
        client.calls.extend(unwanted.into_iter().map(|slab| Call::Return { slab }));
        self.last_slab = self.last_slab.max(claimed.slabs.last().copied().unwrap_or(0));
        MetadataCopy { node: claimed.node, region: claimed.metadata, grant: None }
    }
}
