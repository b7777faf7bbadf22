//! Volumes: the state that a node retains when the lease of a mount has ended, and its transfer to the next mount.
//!
//! A mount claims a volume with an epoch higher than all earlier ones. The data of the last mount stays in place,
//! inaccessible to all clients, until the new mount requests it slab by slab. Each slab is then copied to new memory
//! under another key.

use std::collections::BTreeMap;

use farcall_link::Region;
use farcall_link::bootstrap::Secret;
use farcall_verbs::{Nanos, with_sources};

use super::Node;
use super::lease::Lease;
use crate::wire::{
    LeaseKey, METADATA_READ_BYTES_MAX, MembershipView, Refusal, RefusalKind, Reply, StoredVolume, VERSION,
    VOLUME_NAME_BYTES_MAX, VOLUME_NODES_MAX, VolumeMembership, VolumeRef, VolumeStatus,
};

/// Parameters of a mount's claim of a volume.
pub(super) struct Claim {
    pub volume: VolumeRef,
    pub name: String,
    pub holder: Secret<[u8; 16]>,
    pub epoch: u64,
    pub node: u64,
    pub metadata_bytes: u64,
}

/// A volume stored on this node.
pub(super) struct Volume {
    key: Secret<[u8; 16]>,
    node: u64,
    epoch: u64,
    view: Option<MembershipView>,
    /// `true` if the view was stored since the last claim.
    is_view_current: bool,
    metadata_bytes: u64,
    holder: Secret<[u8; 16]>,
    /// Key of the lease of the mount that holds it.
    lease: Option<[u8; 16]>,
    /// Leases of earlier mounts, with the slabs that were not requested since. The last one has the metadata.
    ended: Vec<Lease>,
}

impl Volume {
    /// Returns the number of slabs that no mount holds at present.
    pub fn slabs_left(&self, now: Nanos) -> u32 {
        self.ended.iter().map(|lease| lease.slabs.len() as u32 + lease.retained_slabs(now)).sum()
    }

    /// Returns the number of retained slabs of earlier mounts that are expected to be released soon.
    pub fn releasing_slabs(&self, now: Nanos) -> u32 {
        self.ended.iter().map(|lease| lease.releasing_slabs(now)).sum()
    }

    /// Returns the number of ended leases beyond the one that every volume has.
    pub const fn extra_leases(&self) -> usize {
        self.ended.len().saturating_sub(1)
    }

    /// Returns the membership by the latest view.
    pub fn membership(&self) -> VolumeMembership {
        let Some(view) = &self.view else { return VolumeMembership::default() };
        VolumeMembership {
            nodes: view.nodes.len() as u32,
            members: view.members.len() as u32,
            is_member: self.is_view_current && view.members.contains(&self.node),
        }
    }

    /// Releases ended leases that are quiesced and empty. Returns whether one is not quiesced.
    pub fn tick(&mut self) -> bool {
        let mut is_busy = false;
        let has_mount = self.lease.is_some();
        self.ended.retain_mut(|lease| {
            let is_quiesced = lease.is_quiesced();
            is_busy |= !is_quiesced;
            if is_quiesced {
                lease.retained = 0;
            }
            !is_quiesced || !lease.slabs.is_empty() || (!has_mount && lease.volume.is_some())
        });
        is_busy
    }
}

impl Node {
    fn volume(&self, of: &VolumeRef) -> Result<Option<&Volume>, Refusal> {
        let VolumeRef { name, key } = of;
        if name.is_empty() || name.len() > VOLUME_NAME_BYTES_MAX {
            let why = format!("a volume's name of {} bytes; from 1 to {VOLUME_NAME_BYTES_MAX}", name.len());
            return Err(RefusalKind::Limit.because(why));
        }
        match self.volumes.get(name) {
            Some(volume) if volume.key != *key => {
                let why = format!("the volume {name:?} has another key; name the file that it was made with");
                Err(RefusalKind::OtherVolume.because(why))
            }
            found => Ok(found),
        }
    }

    pub(super) fn query_volume(&self, version: u16, of: &VolumeRef) -> Result<Reply, Refusal> {
        check_version(version)?;
        let volume = self.volume(of)?.map(|volume| StoredVolume {
            node: volume.node,
            epoch: volume.epoch,
            view: volume.view.clone(),
            metadata_bytes: volume.metadata_bytes,
        });
        Ok(Reply::VolumeState { volume })
    }

    pub(super) fn claim(&mut self, claim: Claim, now: Nanos) -> Result<Reply, Refusal> {
        let name = claim.volume.name.clone();
        match self.volume(&claim.volume)? {
            Some(volume) => self.check_claim(volume, &claim, now)?,
            None => self.check_room_for_volume(&claim)?,
        }
        self.check_new_lease(&claim.name)?;
        let earlier = self.volumes.get(&name).and_then(|volume| volume.lease);
        if let Some(earlier) = earlier {
            self.end(&earlier, "its mount claims the volume again");
        }
        let key = self.random()?;
        let (nic, until) = (&self.nic, now + self.config.term);
        // Metadata without a membership view is incomplete.
        let before = self.volumes.get(&name).filter(|volume| volume.view.is_some());
        let ended = before.map_or(&[][..], |volume| &volume.ended);
        let previous_metadata = ended.iter().rev().find_map(|lease| lease.volume.as_ref());
        let claimed = Lease::new(claim.name, nic, until).and_then(|mut lease| {
            let before = previous_metadata.map(|(_, metadata)| metadata);
            let metadata = lease.allocate_metadata(&name, claim.metadata_bytes, before)?;
            Ok((lease, metadata))
        });
        let (lease, metadata) =
            claimed.map_err(|error| RefusalKind::Resources.because(with_sources(&error)))?;
        tracing::info!(volume = ?name, mount = ?lease.name, epoch = claim.epoch, "a volume is claimed");
        let volume = self.volumes.entry(name).or_insert_with(|| Volume {
            key: claim.volume.key,
            node: claim.node,
            epoch: 0,
            view: None,
            is_view_current: false,
            metadata_bytes: claim.metadata_bytes,
            holder: claim.holder,
            lease: None,
            ended: Vec::new(),
        });
        (volume.epoch, volume.holder, volume.lease) = (claim.epoch, claim.holder, Some(key));
        volume.is_view_current = false;
        // The metadata belongs to the new lease now.
        volume.ended.iter_mut().for_each(|lease| lease.volume = None);
        let slabs = volume.ended.iter().flat_map(|lease| lease.slabs.keys().copied()).collect();
        self.leases.insert(key, lease);
        Ok(Reply::Claimed {
            lease: Secret(key),
            term_ms: self.config.term.as_millis() as u32,
            slab_bytes: self.config.slab_bytes as u64,
            room: self.room(),
            metadata,
            slabs,
        })
    }

    fn check_claim(&self, volume: &Volume, claim: &Claim, now: Nanos) -> Result<(), Refusal> {
        let name = &claim.volume.name;
        let holder_lease = volume.lease.and_then(|key| self.leases.get(&key));
        if let Some(lease) = holder_lease.filter(|_| volume.holder != claim.holder) {
            let left_ms = lease.until.since(now).as_millis();
            let why = format!(
                "the volume {name:?} is mounted by {:?}; its lease ends in {left_ms} ms unless its client renews it",
                lease.name
            );
            return Err(RefusalKind::Held.because(why));
        }
        // A mount that has lost the volume may claim it again with its own epoch.
        let is_again = claim.epoch == volume.epoch && volume.holder == claim.holder;
        if claim.epoch <= volume.epoch && !is_again {
            let why = format!(
                "the volume {name:?} was claimed with epoch {} in the meantime; try again",
                volume.epoch
            );
            return Err(RefusalKind::Overtaken.because(why));
        }
        if claim.metadata_bytes != volume.metadata_bytes {
            let why = format!("the volume {name:?} was made with another --size or --slab; use the same");
            return Err(RefusalKind::OtherVolume.because(why));
        }
        Ok(())
    }

    fn check_room_for_volume(&self, claim: &Claim) -> Result<(), Refusal> {
        if self.is_draining {
            return Err(RefusalKind::Draining.because("it wants its memory back; use another node"));
        }
        let max = self.config.volumes_max;
        if self.volumes.len() >= max as usize {
            let why = format!("{max} volumes are kept; forget one, or raise --volumes-max");
            return Err(RefusalKind::Limit.because(why));
        }
        let used: u64 = self.volumes.values().map(|volume| volume.metadata_bytes).sum();
        let (wanted, max) = (claim.metadata_bytes, self.config.metadata_bytes_max);
        if wanted == 0 || wanted > max.saturating_sub(used) {
            let why = format!(
                "{wanted} bytes of notes; {used} of {max} are kept: forget a volume, or raise --notes"
            );
            return Err(RefusalKind::Limit.because(why));
        }
        Ok(())
    }

    /// Renews a lease and returns its volume.
    fn volume_of(&mut self, key: &LeaseKey, now: Nanos) -> Result<&mut Volume, Refusal> {
        let name = self.renew(key, now)?.volume.as_ref().map(|(name, _)| name.clone());
        let volume = name.and_then(|name| self.volumes.get_mut(&name));
        volume.ok_or_else(no_volume)
    }

    pub(super) fn store_view(
        &mut self,
        key: &LeaseKey,
        view: MembershipView,
        now: Nanos,
    ) -> Result<Reply, Refusal> {
        if view.nodes.len().max(view.members.len()) > VOLUME_NODES_MAX {
            return Err(RefusalKind::Limit.because(format!("a volume may have {VOLUME_NODES_MAX} nodes")));
        }
        let volume = self.volume_of(key, now)?;
        if view.epoch != volume.epoch {
            return Err(RefusalKind::Overtaken.because(format!("the epoch is {}", volume.epoch)));
        }
        (volume.view, volume.is_view_current) = (Some(view), true);
        Ok(self.done())
    }

    /// Renews a lease and returns its metadata region, after checking that it contains the given range.
    fn metadata_region(
        &mut self,
        key: &LeaseKey,
        offset: u64,
        len_bytes: usize,
        now: Nanos,
    ) -> Result<&Region, Refusal> {
        let (_, metadata) = self.renew(key, now)?.volume.as_ref().ok_or_else(no_volume)?;
        let have = metadata.len_bytes() as u64;
        if offset.checked_add(len_bytes as u64).is_none_or(|end| end > have) {
            let why = format!("{len_bytes} bytes at {offset} of {have} bytes of notes");
            return Err(RefusalKind::Limit.because(why));
        }
        Ok(metadata)
    }

    pub(super) fn read_metadata(
        &mut self,
        key: &LeaseKey,
        offset: u64,
        len_bytes: u32,
        now: Nanos,
    ) -> Result<Reply, Refusal> {
        let len_bytes = (len_bytes as usize).min(METADATA_READ_BYTES_MAX);
        let metadata = self.metadata_region(key, offset, len_bytes, now)?;
        let mut bytes = vec![0; len_bytes];
        metadata.copy_out(offset as usize, &mut bytes);
        Ok(Reply::Metadata { bytes })
    }

    pub(super) fn write_metadata(
        &mut self,
        key: &LeaseKey,
        offset: u64,
        bytes: &[u8],
        now: Nanos,
    ) -> Result<Reply, Refusal> {
        self.metadata_region(key, offset, bytes.len(), now)?.copy_in(offset as usize, bytes);
        Ok(self.done())
    }

    /// Grants a slab of an earlier mount, if there is one with this number.
    pub(super) fn adopt_slab(&mut self, key: &LeaseKey, slab: u64) -> Result<Option<Reply>, Refusal> {
        let Some(lease) = self.leases.get_mut(&key.0) else { return Ok(None) };
        let Some((name, _)) = &lease.volume else { return Ok(None) };
        let Some(volume) = self.volumes.get_mut(name) else { return Ok(None) };
        let Some(ended) = volume.ended.iter_mut().find(|ended| ended.slabs.contains_key(&slab)) else {
            return Ok(None);
        };
        let adopted = lease.adopt(slab, ended);
        let region = adopted.map_err(|error| RefusalKind::Resources.because(with_sources(&error)))?;
        Ok(region.map(|region| Reply::Granted { region, room: self.room() }))
    }

    /// Discards a slab of an earlier mount.
    pub(super) fn discard_slab(&mut self, key: &LeaseKey, slab: u64) {
        let volume = self.leases.get(&key.0).and_then(|lease| lease.volume.as_ref());
        if let Some(volume) = volume.and_then(|(name, _)| self.volumes.get_mut(name)) {
            volume.ended.iter_mut().for_each(|lease| drop(lease.slabs.remove(&slab)));
        }
    }

    /// Retains an ended lease of a volume.
    pub(super) fn retain_lease(&mut self, lease: Lease) {
        if let Some((name, _)) = &lease.volume
            && let Some(volume) = self.volumes.get_mut(name)
        {
            volume.lease = None;
            volume.ended.push(lease);
        }
    }

    pub(super) fn forget(&mut self, of: &VolumeRef) -> Result<Reply, Refusal> {
        let Some(volume) = self.volume(of)? else { return Ok(self.done()) };
        if volume.lease.is_some() {
            let why = format!("the volume {:?} is mounted; unmount it first", of.name);
            return Err(RefusalKind::Held.because(why));
        }
        let now = self.now;
        if let Some(volume) = self.volumes.remove(&of.name) {
            tracing::info!(volume = ?of.name, "a volume is forgotten");
            self.ending.extend(volume.ended.into_iter().map(|mut lease| {
                lease.volume = None;
                lease.end(now);
                lease
            }));
        }
        Ok(self.done())
    }

    pub(super) fn volume_statuses(&self) -> Vec<VolumeStatus> {
        let status = |(name, volume): (&String, &Volume)| {
            let lease = volume.lease.and_then(|key| self.leases.get(&key));
            let slabs = lease.map_or(0, |lease| lease.slabs.len() as u32) + volume.slabs_left(self.now);
            VolumeStatus {
                name: name.clone(),
                epoch: volume.epoch,
                slabs,
                metadata_bytes: volume.metadata_bytes,
                is_held: lease.is_some(),
            }
        };
        self.volumes.iter().map(status).collect()
    }
}

fn no_volume() -> Refusal {
    RefusalKind::UnknownLease.because("it is a lease of no volume")
}

/// Volumes by name.
pub(super) type Volumes = BTreeMap<String, Volume>;

pub(super) fn check_version(version: u16) -> Result<(), Refusal> {
    if version == VERSION {
        return Ok(());
    }
    let why = format!("we speak version {VERSION}, the client {version}; update the older of the two");
    Err(RefusalKind::Version.because(why))
}
