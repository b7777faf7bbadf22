//! Construction of an [`Engine`] from a volume that the client has claimed.

use farcall_link::{Nic, SplitMix64};
use farcall_verbs::Nanos;

use super::metadata::{Copy, Noting};
use super::{Engine, Sums};
use crate::client::claim::{Claimed, ClaimedNode, Regranted, claim};
use crate::client::config::{ClientConfig, OpenError, Takeover, VolumeConfig};
use crate::client::extent::{Home, Replica, Standing};
use crate::client::node_client::{Call, CallFailed, Lease};
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
        call: impl FnMut(usize, &Request) -> Result<Reply, CallFailed>,
        now: impl Fn() -> Nanos,
    ) -> Result<(Self, Takeover), OpenError> {
        if config.spill.is_some() {
            return Err(OpenError::volume(&volume.name, "a spill file ends with its process; leave it out"));
        }
        config.check()?;
        let mut rng = SplitMix64::new(u64::from_le_bytes(nic.entropy.bytes()?));
        let claimed = claim(&config, volume, &mut rng, call, &now)?;
        let is_new = claimed.notes.is_empty();
        let users = claimed.notes.iter().map(|notes| claimed.layout.read_user(notes).to_vec());
        let has_it = |(at, address): (usize, &String)| claimed.nodes[at].as_ref().map(|_| address.clone());
        let takeover = Takeover {
            epoch: claimed.mark.epoch,
            is_new,
            missing: claimed.missing.clone(),
            nodes: config.nodes.iter().enumerate().filter_map(has_it).collect(),
            notes: users.collect(),
        };
        let mut engine = Self::new(nic, config)?;
        engine.seed = volume.seed();
        engine.sums = Sums::new(engine.seed);
        engine.go_on(claimed, volume, now())?;
        Ok((engine, takeover))
    }

    fn go_on(&mut self, claimed: Claimed, volume: &VolumeConfig, now: Nanos) -> Result<(), OpenError> {
        let Claimed { nodes, mark, layout, placed, replicas, table, .. } = claimed;
        let (mut copies, mut generation) = (Vec::new(), 0);
        if let Some((newest, placed)) = placed {
            generation = newest;
            (self.last_serial, self.last_slab) = (placed.last_serial, placed.last_slab);
        }
        for (at, node) in nodes.into_iter().enumerate() {
            // Conservative bound: it must not exceed the expiry at the node. Renewal is due immediately.
            copies.push(node.map(|node| {
                let until = now + node.term / 2;
                self.begin_with(at, node, until, now)
            }));
            if copies[at].is_none() {
                self.donors[at].is_out = true;
                self.donors[at].problem = Some("it did not grant the volume".to_owned());
            }
        }
        for Regranted { extent, donor, slab, region } in replicas {
            self.last_serial += 1;
            let home = Home::Node { donor, slab, region, grant: None };
            let replica = Replica { serial: self.last_serial, home, standing: Standing::InSync };
            let extent = self.extents.get_mut(extent);
            extent.ok_or_else(|| OpenError::Kept("it is damaged".to_owned()))?.replicas.push(replica);
        }
        for (page, (newest, before)) in table {
            let (extent, at) = self.place(page);
            let zeros = self.sums.of_zeros(page);
            let pages = self.pages_of(extent);
            pages.found(at, newest.sum, newest.generation);
            // The newest entry is a write intent. The page holds the bytes of that write or of the previous entry
            // (zeros if there is none).
            pages.unsettle(at, before.map_or(zeros, |before| before.sum));
            self.extents[extent].is_touched = true;
        }
        for extent in &mut self.extents {
            extent.is_touched |= !extent.replicas.is_empty();
        }
        self.noting = Some(Noting::new(volume.clone(), layout, copies, mark, generation));
        self.is_placement_new = true;
        Ok(())
    }

    /// Adopts the lease and capacity of a node that has granted its part of the volume, and returns the node's copy of
    /// the metadata. Slabs of replicas that are away are requested again, the others are returned. The lease is valid
    /// until `until`.
    pub(super) fn begin_with(&mut self, at: usize, node: ClaimedNode, until: Nanos, now: Nanos) -> Copy {
        let donor = &mut self.donors[at];
        donor.begin_lease(Lease { key: node.lease, term: node.term, until });
        donor.room = node.room;
        donor.down_since = Some(now);
        // The node grants again the slabs of replicas that only it has. If it was restarted, these are lost.
        let mut left = node.slabs.clone();
        for (number, extent) in self.extents.iter_mut().enumerate() {
            let is_gone = |replica: &Replica| matches!(replica.home, Home::Away { donor, slab } if donor == at && !node.slabs.contains(&slab));
            let count = extent.replicas.len();
            extent.replicas.retain(|replica| !is_gone(replica));
            self.is_placement_new |= extent.replicas.len() < count;
            let again = node.slabs.iter().filter(|slab| extent.away_mut(at, **slab).is_some());
            for slab in again.copied().collect::<Vec<_>>() {
                left.remove(&slab);
                donor.calls.push_back(Call::Grant { extent: number, slab });
            }
            if extent.replicas.len() < count {
                self.leaving.extend(extent.take_unfilled());
            }
        }
        donor.calls.extend(left.into_iter().map(|slab| Call::Return { slab }));
        self.last_slab = self.last_slab.max(node.slabs.last().copied().unwrap_or(0));
        Copy { node: node.node, region: node.notes, grant: None }
    }
}
