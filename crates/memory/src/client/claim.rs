//! A mount claims a volume: it asks all nodes what they keep of it, judges whether those that answer know the newest of
//! it, has them grant it under a higher epoch, and reads the notes of one that has them.
//!
//! Those that answer know the newest if they are a majority of the nodes of the newest mark among them, or all of its
//! members. A mount goes on while its members are a majority (of one or two nodes: while there is one). So two mounts
//! that may go on share a node, and that has one lease at a time: no clock decides.

use std::collections::BTreeSet;
use std::time::Duration;

use farcall_link::RemoteRegion;
use farcall_link::SplitMix64;
use farcall_link::bootstrap::Secret;
use farcall_verbs::Nanos;

use super::config::{ClientConfig, OpenError, VolumeConfig};
use super::donor::CallFailed;
use super::notes::{Layout, Placed};
use crate::wire::{
    Kept, LeaseKey, Mark, NOTES_READ_BYTES_MAX, NOTES_WRITE_BYTES_MAX, Refusal, RefusalKind, Reply, Request,
    Room, VERSION, VolumeRef,
};

type Result<T, E = OpenError> = std::result::Result<T, E>;

/// The leases that are there are renewed when this part of a term has passed.
const RENEW_AFTER: u32 = 4;

/// How many members a mount needs to go on.
pub(super) const fn quorum(nodes: usize) -> usize {
    if nodes > 2 { nodes / 2 + 1 } else { 1 }
}

/// A node that granted its part of a volume.
pub(super) struct ClaimedNode {
    /// What the volume calls it.
    pub node: u64,
    pub lease: LeaseKey,
    pub term: Duration,
    pub room: Room,
    pub notes: RemoteRegion,
    /// What it keeps, and has not granted.
    pub slabs: BTreeSet<u64>,
}

impl ClaimedNode {
    /// The node that the volume calls `node`, if its reply is that of a claim, and it has as much room as was asked for.
    pub fn of_reply(node: u64, reply: Reply, config: &ClientConfig, layout: &Layout) -> Option<Self> {
        let Reply::Claimed { lease, term_ms, slab_bytes, room, notes, slabs } = reply else { return None };
        let has_room = slab_bytes >= config.slab_bytes && notes.len_bytes >= layout.len_bytes();
        let (term, slabs) = (Duration::from_millis(term_ms.max(1).into()), slabs.into_iter().collect());
        has_room.then_some(Self { node, lease, term, room, notes, slabs })
    }
}

/// A slab of an earlier mount that is granted again.
pub(super) struct Regranted {
    pub extent: usize,
    pub donor: usize,
    pub slab: u64,
    pub region: RemoteRegion,
}

/// A volume that this client has now.
pub(super) struct Claimed {
    /// By node, in the order of the configuration.
    pub nodes: Vec<Option<ClaimedNode>>,
    pub mark: Mark,
    pub layout: Layout,
    /// Those of each member; nothing if the volume is new.
    pub notes: Vec<Vec<u8>>,
    /// The newest placement, with its generation.
    pub placed: Option<(u64, Placed)>,
    pub replicas: Vec<Regranted>,
}

/// What nodes said, and what follows.
struct Judgement {
    newest: Option<Mark>,
    /// Which have the newest notes.
    sources: Vec<usize>,
    epoch: u64,
}

/// Claims a volume. `call` asks a node, which may take its time; `now` says what time it is.
///
/// # Errors
/// If another mount has it, not enough nodes answer, or it is of another key or shape.
pub(super) fn claim(
    config: &ClientConfig,
    volume: &VolumeConfig,
    rng: &mut SplitMix64,
    call: impl FnMut(usize, &Request) -> Result<Reply, CallFailed>,
    now: impl Fn() -> Nanos,
) -> Result<Claimed> {
    let layout = Layout::new(config, volume.notes_bytes, volume.secret());
    let mut claiming =
        Claiming { config, volume, layout, call, now, leases: Vec::new(), renew_at: Nanos(u64::MAX) };
    let looks = claiming.look()?;
    let judgement = judge(config, &volume.name, &looks)?;
    let claimed = claiming.claim_nodes(&looks, &judgement, rng);
    let finished = claimed.and_then(|nodes| claiming.take_over(nodes, &judgement, rng));
    if finished.is_err() {
        claiming.give_back();
    }
    finished
}

/// Whether the nodes that answered know the newest of the volume, and who has it.
fn judge(config: &ClientConfig, name: &str, looks: &[Result<Option<Kept>, String>]) -> Result<Judgement> {
    let answered: Vec<(usize, &Kept)> =
        looks.iter().enumerate().filter_map(|(at, look)| Some((at, look.as_ref().ok()?.as_ref()?))).collect();
    let silent: Vec<&str> = looks.iter().filter_map(|look| Some(look.as_ref().err()?.as_str())).collect();
    let epoch = answered.iter().map(|(_, kept)| kept.epoch).max().unwrap_or(0) + 1;
    let marks = answered.iter().filter_map(|(at, kept)| Some((*at, kept.mark.as_ref()?)));
    let Some((_, newest)) = marks.clone().max_by_key(|(_, mark)| mark.age()) else {
        if silent.is_empty() {
            return Ok(Judgement { newest: None, sources: Vec::new(), epoch });
        }
        let why = format!(
            "no node that answers knows it, and one that does not may have it: {}",
            silent.join("; ")
        );
        return Err(OpenError::volume(name, why));
    };
    if marks.clone().any(|(_, mark)| mark.volume != newest.volume) {
        return Err(OpenError::volume(name, "nodes keep two different ones; name the nodes of one of them"));
    }
    let ids: BTreeSet<u64> = answered.iter().map(|(_, kept)| kept.node).collect();
    let known = newest.nodes.iter().filter(|node| ids.contains(node)).count();
    let has_members = newest.members.iter().all(|member| ids.contains(member));
    if 2 * known <= newest.nodes.len() && !has_members {
        let why = format!(
            "{known} of its {} nodes answer, and another may know newer files: {}; \
             start them, or name all of them with --nodes",
            newest.nodes.len(),
            silent.join("; ")
        );
        return Err(OpenError::volume(name, why));
    }
    if newest.nodes.len() > config.nodes.len() {
        tracing::warn!("the volume had {} nodes, and has {} now", newest.nodes.len(), config.nodes.len());
    }
    let sources = marks.filter(|(_, mark)| mark.age() == newest.age()).map(|(at, _)| at).collect();
    Ok(Judgement { newest: Some(newest.clone()), sources, epoch })
}

struct Claiming<'a, C, N> {
    config: &'a ClientConfig,
    volume: &'a VolumeConfig,
    layout: Layout,
    call: C,
    now: N,
    leases: Vec<(usize, LeaseKey, Duration)>,
    renew_at: Nanos,
}

impl<C, N> Claiming<'_, C, N>
where
    C: FnMut(usize, &Request) -> Result<Reply, CallFailed>,
    N: Fn() -> Nanos,
{
    fn failed(&self, at: usize, failed: CallFailed) -> OpenError {
        let why = match failed {
            CallFailed::Refused(Refusal { kind: RefusalKind::Held, reason }) => {
                return OpenError::Held(reason);
            }
            CallFailed::Refused(refusal) => refusal.reason,
            CallFailed::Unreachable(why) => why,
        };
        OpenError::volume(&self.volume.name, format!("{}: {why}", self.config.nodes[at]))
    }

    /// Asks a node that has granted.
    fn ask(&mut self, at: usize, request: &Request) -> Result<Reply> {
        self.renew_in_time()?;
        (self.call)(at, request).map_err(|failed| self.failed(at, failed))
    }

    /// A node has granted a lease, as it was asked to at that time.
    fn has_lease(&mut self, at: usize, lease: LeaseKey, term: Duration, asked: Nanos) {
        self.leases.push((at, lease, term));
        self.renew_at = self.renew_at.min(asked + term / RENEW_AFTER);
    }

    /// All nodes that have granted hear of us while others are asked.
    fn renew_in_time(&mut self) -> Result<()> {
        let now = (self.now)();
        if now < self.renew_at {
            return Ok(());
        }
        let terms = self.leases.iter().map(|(_, _, term)| *term);
        self.renew_at = now + terms.min().unwrap_or_default() / RENEW_AFTER;
        for (at, lease, _) in self.leases.clone() {
            let renewed = (self.call)(at, &Request::Renew { lease });
            renewed.map_err(|failed| self.failed(at, failed))?;
        }
        Ok(())
    }

    fn give_back(&mut self) {
        for (at, lease, _) in std::mem::take(&mut self.leases) {
            // It ends by itself if this fails.
            let _ = (self.call)(at, &Request::End { lease });
        }
    }

    fn look(&mut self) -> Result<Vec<Result<Option<Kept>, String>>> {
        let request = self.volume.look();
        let mut looks = Vec::new();
        for at in 0..self.config.nodes.len() {
            looks.push(match (self.call)(at, &request) {
                Ok(Reply::Looked { kept }) => Ok(kept),
                Ok(_) => return Err(self.other_reply(at)),
                Err(CallFailed::Unreachable(why)) => Err(why),
                Err(refused) => return Err(self.failed(at, refused)),
            });
        }
        Ok(looks)
    }

    fn other_reply(&self, at: usize) -> OpenError {
        let why = "it answers something else; update the older of the two";
        OpenError::volume(&self.volume.name, format!("{}: {why}", self.config.nodes[at]))
    }

    /// Has all nodes that answer grant the volume.
    fn claim_nodes(
        &mut self,
        looks: &[Result<Option<Kept>, String>],
        judgement: &Judgement,
        rng: &mut SplitMix64,
    ) -> Result<Vec<Option<ClaimedNode>>> {
        let mut nodes = Vec::new();
        for (at, look) in looks.iter().enumerate() {
            let Ok(kept) = look else {
                nodes.push(None);
                continue;
            };
            let node = kept.as_ref().map_or_else(|| rng.next_u64(), |kept| kept.node);
            let request = self.volume.claim(&self.config.name, judgement.epoch, node, &self.layout);
            self.renew_in_time()?;
            let asked = (self.now)();
            match (self.call)(at, &request) {
                Ok(reply) => {
                    if let Reply::Claimed { lease, term_ms, .. } = reply {
                        self.has_lease(at, lease, Duration::from_millis(term_ms.into()), asked);
                    }
                    let claimed = ClaimedNode::of_reply(node, reply, self.config, &self.layout);
                    nodes.push(Some(claimed.ok_or_else(|| self.other_reply(at))?));
                }
                // A node that had nothing of it is not needed.
                Err(CallFailed::Refused(refusal)) if kept.is_none() && judgement.newest.is_some() => {
                    tracing::warn!(
                        node = self.config.nodes[at],
                        "it takes no part in the volume: {}",
                        refusal.reason
                    );
                    nodes.push(None);
                }
                Err(failed) => return Err(self.failed(at, failed)),
            }
        }
        Ok(nodes)
    }

    fn take_over(
        &mut self,
        mut nodes: Vec<Option<ClaimedNode>>,
        judgement: &Judgement,
        rng: &mut SplitMix64,
    ) -> Result<Claimed> {
        let sources = judgement.sources.iter();
        let notes = sources.map(|source| self.read_notes(*source, &nodes)).collect::<Result<Vec<_>>>()?;
        let earlier = judgement.newest.as_ref();
        let has_notes = |node: &ClaimedNode| earlier.is_some_and(|mark| mark.members.contains(&node.node));
        for (at, node) in nodes.iter().enumerate() {
            if let Some(node) = node.as_ref().filter(|node| !has_notes(node)) {
                self.write_notes(at, node.lease, notes.first().map_or(&[], Vec::as_slice))?;
            }
        }
        let placed = self.layout.read_placement(&notes);
        let replicas = match &placed {
            Some((_, placed)) => self.regrant(placed, &mut nodes)?,
            None if !self.layout.read_table(&notes).is_empty() => {
                return Err(OpenError::volume(&self.volume.name, "its notes are damaged"));
            }
            None => Vec::new(),
        };
        let mark = self.mark(&nodes, judgement, rng)?;
        Ok(Claimed { nodes, mark, layout: self.layout, notes, placed, replicas })
    }

    fn read_notes(&mut self, at: usize, nodes: &[Option<ClaimedNode>]) -> Result<Vec<u8>> {
        let Some(lease) = nodes[at].as_ref().map(|node| node.lease) else { return Ok(Vec::new()) };
        let len_bytes = self.layout.len_bytes() as usize;
        let mut notes = Vec::with_capacity(len_bytes);
        while notes.len() < len_bytes {
            let piece = (len_bytes - notes.len()).min(NOTES_READ_BYTES_MAX);
            let request = Request::ReadNotes { lease, offset: notes.len() as u64, len_bytes: piece as u32 };
            match self.ask(at, &request)? {
                Reply::Notes { bytes } if bytes.len() == piece => notes.extend_from_slice(&bytes),
                _ => return Err(self.other_reply(at)),
            }
        }
        Ok(notes)
    }

    /// Gives a node the notes that others have; it may have others of an earlier time.
    fn write_notes(&mut self, at: usize, lease: LeaseKey, notes: &[u8]) -> Result<()> {
        for (piece, number) in notes.chunks(NOTES_WRITE_BYTES_MAX).zip(0..) {
            let offset = number * NOTES_WRITE_BYTES_MAX as u64;
            self.ask(at, &Request::WriteNotes { lease, offset, bytes: piece.to_vec() })?;
        }
        Ok(())
    }

    /// Has nodes grant the slabs that pages are in. What they keep beside these stays among their slabs.
    fn regrant(&mut self, placed: &Placed, nodes: &mut [Option<ClaimedNode>]) -> Result<Vec<Regranted>> {
        let mut replicas = Vec::new();
        if (placed.size_bytes, placed.slab_bytes) != (self.config.size_bytes, self.config.slab_bytes) {
            return Err(OpenError::volume(&self.volume.name, "it was made with another --size or --slab"));
        }
        let mut missing = BTreeSet::new();
        for replica in &placed.replicas {
            let id = placed.nodes.get(usize::from(replica.node)).copied();
            let donor =
                nodes.iter().position(|node| node.as_ref().map(|node| node.node) == id && id.is_some());
            let taken = donor.zip(donor.and_then(|donor| nodes[donor].as_mut()));
            let Some((donor, node)) = taken.filter(|(_, node)| node.slabs.contains(&replica.slab)) else {
                missing.insert(replica.extent);
                continue;
            };
            node.slabs.remove(&replica.slab);
            let (lease, slab) = (node.lease, replica.slab);
            match self.ask(donor, &Request::Grant { lease, slab })? {
                Reply::Granted { region, .. } if region.len_bytes >= self.config.slab_bytes => {
                    replicas.push(Regranted { extent: replica.extent as usize, donor, slab, region });
                }
                _ => return Err(self.other_reply(donor)),
            }
        }
        let is_lost =
            |extent: &u32| !replicas.iter().any(|replica: &Regranted| replica.extent == *extent as usize);
        missing.retain(is_lost);
        if !missing.is_empty() && nodes.iter().any(Option::is_none) {
            let why = "a node that does not answer has bytes that no other has; start it, or leave it out of --nodes";
            return Err(OpenError::volume(&self.volume.name, why));
        }
        Ok(replicas)
    }

    /// Tells nodes who has the notes now: first those that had them before, so that who comes next and reaches one of
    /// these knows of the others.
    fn mark(
        &mut self,
        nodes: &[Option<ClaimedNode>],
        judgement: &Judgement,
        rng: &mut SplitMix64,
    ) -> Result<Mark> {
        let ids: Vec<u64> = nodes.iter().flatten().map(|node| node.node).collect();
        let volume = judgement.newest.as_ref().map_or_else(|| rng.next_u64(), |mark| mark.volume);
        let mark = Mark { volume, epoch: judgement.epoch, change: 0, nodes: ids.clone(), members: ids };
        let was_there = |node: &ClaimedNode| {
            judgement.newest.as_ref().is_some_and(|newest| newest.nodes.contains(&node.node))
        };
        for first in [true, false] {
            for (at, node) in nodes.iter().enumerate() {
                if let Some(node) = node.as_ref().filter(|node| was_there(node) == first) {
                    self.ask(at, &Request::Mark { lease: node.lease, mark: mark.clone() })?;
                }
            }
        }
        Ok(mark)
    }
}

impl VolumeConfig {
    /// What nodes know the volume by: its name and half of the key.
    pub fn to_ref(&self) -> VolumeRef {
        let (for_nodes, _) = self.halves();
        VolumeRef { name: self.name.clone(), key: Secret(for_nodes) }
    }

    /// Asks a node what it keeps of the volume.
    pub(super) fn look(&self) -> Request {
        Request::Look { version: VERSION, volume: self.to_ref() }
    }

    /// Asks a node for its part of the volume, which calls it `node` if it has no name there.
    pub(super) fn claim(&self, name: &str, epoch: u64, node: u64, layout: &Layout) -> Request {
        Request::Claim {
            volume: self.to_ref(),
            name: name.to_owned(),
            holder: self.holder,
            epoch,
            node,
            notes_bytes: layout.len_bytes(),
        }
    }

    fn halves(&self) -> ([u8; 16], [u8; 16]) {
        let halves = self.key.0.as_chunks::<16>().0;
        (halves[0], halves[1])
    }

    /// Of checks of notes.
    fn secret(&self) -> u64 {
        u128::from_le_bytes(self.halves().1) as u64
    }

    /// Of checksums of pages.
    pub(super) fn seed(&self) -> u64 {
        (u128::from_le_bytes(self.halves().1) >> 64) as u64
    }
}
