//! Claim of a volume: the client queries the state of the volume at all nodes, decides whether the nodes that reply
//! have the newest state, requests grants from them under a higher epoch, and reads the metadata of those that have
//! it.
//!
//! The nodes that reply have the newest state if they include a majority of the nodes of the newest view among them,
//! or all of its members. A mount continues while its members are a majority (of one or two nodes: while there is one
//! member). Hence any two mounts that may continue have a node in common, which grants one lease at a time. The
//! decision does not depend on clocks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use farcall_link::RemoteRegion;
use farcall_link::SplitMix64;
use farcall_link::bootstrap::Secret;
use farcall_verbs::{Nanos, with_sources};

use super::PAGE_BYTES;
use super::config::{ClientConfig, OpenError, VolumeConfig};
use super::node_client::NodeCallError;
use super::volume_metadata::{Layout, PlacementRecord, Table};
use crate::wire::{
    LeaseKey, METADATA_READ_BYTES_MAX, METADATA_WRITE_BYTES_MAX, MembershipView, Refusal, RefusalKind, Reply,
    Request, Room, StoredVolume, VERSION, VolumeRef,
};

type Result<T, E = OpenError> = std::result::Result<T, E>;

/// Maximum number of attempts of one claim. An attempt ends early if a node exits during it. The next attempt uses the
/// nodes that reply then.
const ATTEMPTS_MAX: u32 = 8;
/// Distance of the epoch of a claim that names a survivor from the highest known epoch. Nodes that do not reply may
/// have granted this number of later claims, whose epochs are still lower.
const EPOCHS_BEYOND: u64 = 1 << 20;
/// Divisor of the term: during a claim, leases are renewed after `term / RENEW_AFTER`.
const RENEW_AFTER: u32 = 4;

/// Returns the number of members that a mount needs to continue.
pub(super) const fn quorum(nodes: usize) -> usize {
    if nodes > 2 { nodes / 2 + 1 } else { 1 }
}

/// A node that granted its part of a volume.
pub(super) struct ClaimedNode {
    /// Identifier of the node within the volume.
    pub node: u64,
    pub lease: LeaseKey,
    pub term: Duration,
    pub room: Room,
    pub metadata: RemoteRegion,
    /// Slabs that the node retains and has not granted yet.
    pub slabs: BTreeSet<u64>,
}

impl ClaimedNode {
    /// Creates the state of the node with the identifier `node` from the reply to a claim. Returns `None` if the reply
    /// is another one, or if slabs or metadata area are shorter than requested.
    pub fn from_reply(node: u64, reply: Reply, config: &ClientConfig, layout: &Layout) -> Option<Self> {
        let Reply::Claimed { lease, term_ms, slab_bytes, room, metadata, slabs } = reply else { return None };
        let has_room = slab_bytes >= config.slab_bytes && metadata.len_bytes >= layout.len_bytes();
        let (term, slabs) = (Duration::from_millis(term_ms.max(1).into()), slabs.into_iter().collect());
        has_room.then_some(Self { node, lease, term, room, metadata, slabs })
    }
}

/// A slab of an earlier mount that was granted again.
pub(super) struct ReattachedSlab {
    pub extent: usize,
    pub node: usize,
    pub slab: u64,
    pub region: RemoteRegion,
}

/// A volume that this client has claimed.
pub(super) struct ClaimedVolume {
    /// Nodes in the order of the configuration; `None` for those that did not grant their part.
    pub nodes: Vec<Option<ClaimedNode>>,
    pub view: MembershipView,
    pub layout: Layout,
    /// Metadata of each node that had the newest view; empty if the volume is new.
    pub metadata: Vec<Vec<u8>>,
    /// Redo log of each node that granted its part, also of those with an older view.
    pub redo_logs: Vec<Vec<u8>>,
    /// The newest placement, with its generation.
    pub placement: Option<(u64, PlacementRecord)>,
    pub replicas: Vec<ReattachedSlab>,
    /// Checksums and generations of the pages.
    pub table: Table,
    /// Ranges in bytes that were written and that no node that replied has.
    pub missing: Vec<Range<u64>>,
}

/// Decision of a claim from the replies of the nodes.
struct QuorumDecision {
    newest: Option<MembershipView>,
    /// Indices of the nodes that have the newest metadata.
    sources: Vec<usize>,
    epoch: u64,
}

/// Claims a volume. `call` sends a request to the node with the given index in the configuration and blocks until the
/// reply arrives or the call fails. `now` returns the current time.
///
/// # Errors
/// Returns an error if another mount holds the volume, if too few nodes reply, or if its key or geometry differs.
pub(super) fn claim(
    config: &ClientConfig,
    volume: &VolumeConfig,
    rng: &mut SplitMix64,
    call: impl FnMut(usize, &Request) -> Result<Reply, NodeCallError>,
    now: impl Fn() -> Nanos,
) -> Result<ClaimedVolume> {
    let layout = Layout::new(config, volume.metadata_bytes, volume.secret());
    let (leases, renew_at) = (Vec::new(), Nanos(u64::MAX));
    let mut attempts =
        ClaimAttempts { config, volume, layout, call, now, leases, renew_at, is_interrupted: false };
    for _ in 1..ATTEMPTS_MAX {
        match attempts.attempt(rng) {
            Err(error) if attempts.is_interrupted => {
                tracing::warn!(
                    volume = volume.name,
                    "a claim of the volume was interrupted, and is repeated: {}",
                    with_sources(&error)
                );
            }
            outcome => return outcome,
        }
    }
    attempts.attempt(rng)
}

/// Decides whether the nodes that replied have the newest state of the volume, and which of them do.
///
/// # Errors
/// Returns an error if another node may have newer state, or if the nodes have different volumes.
fn decide(
    config: &ClientConfig,
    volume: &VolumeConfig,
    results: &[Result<Option<StoredVolume>, String>],
) -> Result<QuorumDecision> {
    let name = &volume.name;
    let replies: Vec<(usize, &StoredVolume)> = results
        .iter()
        .enumerate()
        .filter_map(|(at, result)| Some((at, result.as_ref().ok()?.as_ref()?)))
        .collect();
    let unreachable = errors_of_unreachable(results);
    let epoch = replies.iter().map(|(_, stored)| stored.epoch).max().unwrap_or(0) + 1;
    let views = replies.iter().filter_map(|(at, stored)| Some((*at, stored.view.as_ref()?)));
    let Some((_, newest)) = views.clone().max_by_key(|(_, view)| view.age()) else {
        if volume.history.has_claimed() || volume.is_read_only {
            let nodes = if unreachable.is_empty() { "" } else { ": " };
            let why = format!("no node that answers has a part of it{nodes}{unreachable}");
            return Err(OpenError::volume(name, why));
        }
        if unreachable.is_empty() {
            return Ok(QuorumDecision { newest: None, sources: Vec::new(), epoch });
        }
        let why =
            format!("no node that answers knows it, and one that does not may have it: {}", unreachable);
        return Err(OpenError::volume(name, why));
    };
    if views.clone().any(|(_, view)| view.volume != newest.volume) {
        return Err(OpenError::volume(name, "nodes keep two different ones; name the nodes of one of them"));
    }
    let ids: BTreeSet<u64> = replies.iter().map(|(_, stored)| stored.node).collect();
    let sources: Vec<usize> =
        views.clone().filter(|(_, view)| view.age() == newest.age()).map(|(at, _)| at).collect();
    let known = newest.nodes.iter().filter(|node| ids.contains(node)).count();
    if let Some(survivor) = &volume.survivor {
        if !replies.iter().any(|(at, stored)| stored.view.is_some() && config.nodes[*at] == *survivor) {
            let why = format!("the survivor {survivor} does not answer, or has nothing of it: {unreachable}");
            return Err(OpenError::volume(name, why));
        }
        tracing::warn!(
            volume = name,
            survivor,
            nodes = known,
            of = newest.nodes.len(),
            "nodes are believed that may not know the newest of the volume"
        );
        return Ok(QuorumDecision { newest: Some(newest.clone()), sources, epoch: epoch + EPOCHS_BEYOND });
    }
    let has_members = newest.members.iter().all(|member| ids.contains(member));
    let is_majority = 2 * known > newest.nodes.len() || has_members;
    // With exactly half of the nodes, the history stands in for a majority: the other half is no majority either, and
    // the history shows that none of its nodes has a later view. A member must be among the nodes that replied.
    let has_member = || {
        let mut with_view = replies.iter().filter(|(at, _)| sources.contains(at));
        with_view.any(|(_, stored)| newest.members.contains(&stored.node))
    };
    if !is_majority
        && 2 * known == newest.nodes.len()
        && volume.history.vouches_for(newest, &ids)
        && has_member()
    {
        tracing::warn!(
            volume = name,
            nodes = known,
            of = newest.nodes.len(),
            "the last process of this mount vouches for what half of the volume's nodes know"
        );
    } else if !is_majority {
        let why = format!(
            "{known} of its {} nodes answer, and another may know newer files: {}; \
             start them, or name all of them with --nodes",
            newest.nodes.len(),
            unreachable
        );
        return Err(OpenError::volume(name, why));
    }
    if newest.nodes.len() > config.nodes.len() {
        tracing::warn!("the volume had {} nodes, and has {} now", newest.nodes.len(), config.nodes.len());
    }
    Ok(QuorumDecision { newest: Some(newest.clone()), sources, epoch })
}

/// Returns the errors of the nodes that did not reply.
fn errors_of_unreachable(results: &[Result<Option<StoredVolume>, String>]) -> String {
    let errors: Vec<&str> =
        results.iter().filter_map(|result| Some(result.as_ref().err()?.as_str())).collect();
    errors.join("; ")
}

struct ClaimAttempts<'a, C, N> {
    config: &'a ClientConfig,
    volume: &'a VolumeConfig,
    layout: Layout,
    call: C,
    now: N,
    leases: Vec<(usize, LeaseKey, Duration)>,
    renew_at: Nanos,
    /// `true` if a node that had replied in this attempt has exited or was restarted.
    is_interrupted: bool,
}

impl<C, N> ClaimAttempts<'_, C, N>
where
    C: FnMut(usize, &Request) -> Result<Reply, NodeCallError>,
    N: Fn() -> Nanos,
{
    fn attempt(&mut self, rng: &mut SplitMix64) -> Result<ClaimedVolume> {
        (self.is_interrupted, self.renew_at) = (false, Nanos(u64::MAX));
        let results = self.query_volumes()?;
        let decision = decide(self.config, self.volume, &results)?;
        let claimed = self.claim_nodes(&results, &decision, rng);
        let finished = claimed.and_then(|nodes| self.restore_state(nodes, &results, &decision, rng));
        if finished.is_err() {
            self.end_leases();
        }
        finished
    }

    fn call_error(&mut self, at: usize, error: NodeCallError) -> OpenError {
        self.is_interrupted |= match &error {
            NodeCallError::Unreachable(_) => true,
            NodeCallError::Refused(refusal) => refusal.kind == RefusalKind::UnknownLease,
        };
        let why = match error {
            NodeCallError::Refused(Refusal { kind: RefusalKind::Held, reason }) => {
                return OpenError::Held(reason);
            }
            NodeCallError::Refused(refusal) => refusal.reason,
            NodeCallError::Unreachable(why) => why,
        };
        OpenError::volume(&self.volume.name, format!("{}: {why}", self.config.nodes[at]))
    }

    /// Sends a request to a node that has granted a lease.
    fn call_with_lease(&mut self, at: usize, request: &Request) -> Result<Reply> {
        self.renew_in_time()?;
        (self.call)(at, request).map_err(|error| self.call_error(at, error))
    }

    /// Records the lease that a node granted in reply to a request sent at `sent_at`.
    fn record_lease(&mut self, at: usize, lease: LeaseKey, term: Duration, sent_at: Nanos) {
        self.leases.push((at, lease, term));
        self.renew_at = self.renew_at.min(sent_at + term / RENEW_AFTER);
    }

    /// Renews the leases granted so far if that is due, while other nodes are called.
    fn renew_in_time(&mut self) -> Result<()> {
        let now = (self.now)();
        if now < self.renew_at {
            return Ok(());
        }
        let terms = self.leases.iter().map(|(_, _, term)| *term);
        self.renew_at = now + terms.min().unwrap_or_default() / RENEW_AFTER;
        for (at, lease, _) in self.leases.clone() {
            let renewed = (self.call)(at, &Request::Renew { lease });
            renewed.map_err(|error| self.call_error(at, error))?;
        }
        Ok(())
    }

    fn end_leases(&mut self) {
        for (at, lease, _) in std::mem::take(&mut self.leases) {
            // If this fails, the lease expires at the node.
            let _ = (self.call)(at, &Request::End { lease });
        }
    }

    fn query_volumes(&mut self) -> Result<Vec<Result<Option<StoredVolume>, String>>> {
        let request = self.volume.query_request();
        let mut results = Vec::new();
        for at in 0..self.config.nodes.len() {
            results.push(match (self.call)(at, &request) {
                Ok(Reply::VolumeState { volume }) => Ok(volume),
                Ok(_) => return Err(self.unexpected_reply(at)),
                Err(NodeCallError::Unreachable(why)) => Err(why),
                Err(refused) => return Err(self.call_error(at, refused)),
            });
        }
        Ok(results)
    }

    fn unexpected_reply(&self, at: usize) -> OpenError {
        let why = "its answer is malformed; update the older of the two";
        OpenError::volume(&self.volume.name, format!("{}: {why}", self.config.nodes[at]))
    }

    /// Claims the volume at all nodes that replied.
    fn claim_nodes(
        &mut self,
        results: &[Result<Option<StoredVolume>, String>],
        decision: &QuorumDecision,
        rng: &mut SplitMix64,
    ) -> Result<Vec<Option<ClaimedNode>>> {
        let mut nodes = Vec::new();
        for (at, result) in results.iter().enumerate() {
            let Ok(stored) = result else {
                nodes.push(None);
                continue;
            };
            let node = stored.as_ref().map_or_else(|| rng.next_u64(), |stored| stored.node);
            let request = self.volume.claim_request(&self.config.name, decision.epoch, node, &self.layout);
            self.renew_in_time()?;
            let sent_at = (self.now)();
            match (self.call)(at, &request) {
                Ok(reply) => {
                    if let Reply::Claimed { lease, term_ms, .. } = reply {
                        self.record_lease(at, lease, Duration::from_millis(term_ms.into()), sent_at);
                    }
                    let claimed = ClaimedNode::from_reply(node, reply, self.config, &self.layout);
                    nodes.push(Some(claimed.ok_or_else(|| self.unexpected_reply(at))?));
                    self.check_not_restarted(at, stored.as_ref())?;
                }
                // A node that did not have the volume is not required.
                Err(NodeCallError::Refused(refusal)) if stored.is_none() && decision.newest.is_some() => {
                    tracing::warn!(
                        node = self.config.nodes[at],
                        "it takes no part in the volume: {}",
                        refusal.reason
                    );
                    nodes.push(None);
                }
                Err(error) => return Err(self.call_error(at, error)),
            }
        }
        Ok(nodes)
    }

    /// Checks that a node that has granted its part still has the state that it reported. A node that was restarted in
    /// the meantime has none. After a later restart it rejects the lease.
    fn check_not_restarted(&mut self, at: usize, stored: Option<&StoredVolume>) -> Result<()> {
        let Reply::VolumeState { volume: state_now } =
            self.call_with_lease(at, &self.volume.query_request())?
        else {
            return Err(self.unexpected_reply(at));
        };
        let view_of = |stored: Option<&StoredVolume>| stored.and_then(|stored| stored.view.clone());
        if view_of(state_now.as_ref()) == view_of(stored) {
            return Ok(());
        }
        self.is_interrupted = true;
        let why = format!("{}: it was started again while the volume was claimed", self.config.nodes[at]);
        Err(OpenError::volume(&self.volume.name, why))
    }

    fn restore_state(
        &mut self,
        mut nodes: Vec<Option<ClaimedNode>>,
        results: &[Result<Option<StoredVolume>, String>],
        decision: &QuorumDecision,
        rng: &mut SplitMix64,
    ) -> Result<ClaimedVolume> {
        let sources = decision.sources.iter();
        let metadata =
            sources.map(|source| self.read_metadata(*source, &nodes, 0)).collect::<Result<Vec<_>>>()?;
        let redo_at = self.layout.redo_at();
        let redo_log_in = |bytes: &Vec<u8>| bytes.get(redo_at as usize..).unwrap_or_default().to_vec();
        let mut redo_logs: Vec<_> = metadata.iter().map(redo_log_in).collect();
        // Also write to a node that the newest view names and that does not have this view itself: a node discards
        // metadata without a view of its own. Its redo log stays, because a replica of this node may be torn.
        for at in 0..nodes.len() {
            let Some(lease) = nodes[at].as_ref().map(|node| node.lease) else { continue };
            if let Some(newest) = metadata.first().filter(|_| !decision.sources.contains(&at)) {
                redo_logs.push(self.read_metadata(at, &nodes, redo_at)?);
                self.write_metadata(at, lease, newest.get(..redo_at as usize).unwrap_or_default())?;
            }
        }
        let (placement, table) =
            (self.layout.read_placement(&metadata), self.layout.read_page_table(&metadata));
        let replicas = match &placement {
            Some((_, placement)) => self.reattach_slabs(placement, &mut nodes)?,
            None if !table.is_empty() => {
                return Err(OpenError::volume(&self.volume.name, "its notes are damaged"));
            }
            None => Vec::new(),
        };
        let missing = self.missing_ranges(&table, &replicas);
        if !missing.is_empty() && !self.volume.is_read_only {
            let why = match errors_of_unreachable(results) {
                unreachable if unreachable.is_empty() => {
                    "a node that had them was started again, empty".to_owned()
                }
                unreachable => format!("start the nodes that do not answer ({unreachable})"),
            };
            return Err(OpenError::Incomplete { name: self.volume.name.clone(), missing, why });
        }
        let view = self.store_view(&nodes, decision, rng)?;
        Ok(ClaimedVolume {
            nodes,
            view,
            layout: self.layout,
            metadata,
            redo_logs,
            placement,
            replicas,
            table,
            missing,
        })
    }

    /// Reads the metadata of a node from an offset on.
    fn read_metadata(&mut self, at: usize, nodes: &[Option<ClaimedNode>], from: u64) -> Result<Vec<u8>> {
        let Some(lease) = nodes[at].as_ref().map(|node| node.lease) else { return Ok(Vec::new()) };
        let len_bytes = (self.layout.len_bytes() - from) as usize;
        let mut metadata = Vec::with_capacity(len_bytes);
        while metadata.len() < len_bytes {
            let chunk = (len_bytes - metadata.len()).min(METADATA_READ_BYTES_MAX);
            let request = Request::ReadMetadata {
                lease,
                offset: from + metadata.len() as u64,
                len_bytes: chunk as u32,
            };
            match self.call_with_lease(at, &request)? {
                Reply::Metadata { bytes } if bytes.len() == chunk => metadata.extend_from_slice(&bytes),
                _ => return Err(self.unexpected_reply(at)),
            }
        }
        Ok(metadata)
    }

    /// Writes the metadata of other nodes to a node, which may have older metadata.
    fn write_metadata(&mut self, at: usize, lease: LeaseKey, metadata: &[u8]) -> Result<()> {
        for (chunk, number) in metadata.chunks(METADATA_WRITE_BYTES_MAX).zip(0..) {
            let offset = number * METADATA_WRITE_BYTES_MAX as u64;
            self.call_with_lease(at, &Request::WriteMetadata { lease, offset, bytes: chunk.to_vec() })?;
        }
        Ok(())
    }

    /// Requests grants of the slabs in which pages are placed. Other slabs that the nodes retain stay in their
    /// `slabs`.
    fn reattach_slabs(
        &mut self,
        placement: &PlacementRecord,
        nodes: &mut [Option<ClaimedNode>],
    ) -> Result<Vec<ReattachedSlab>> {
        let mut replicas = Vec::new();
        if (placement.size_bytes, placement.slab_bytes) != (self.config.size_bytes, self.config.slab_bytes) {
            return Err(OpenError::volume(&self.volume.name, "it was made with another --size or --slab"));
        }
        for replica in &placement.replicas {
            let id = placement.nodes.get(usize::from(replica.node)).copied();
            let index =
                nodes.iter().position(|node| node.as_ref().map(|node| node.node) == id && id.is_some());
            let found = index.zip(index.and_then(|index| nodes[index].as_mut()));
            let Some((index, node)) = found.filter(|(_, node)| node.slabs.contains(&replica.slab)) else {
                continue;
            };
            node.slabs.remove(&replica.slab);
            let (lease, slab) = (node.lease, replica.slab);
            match self.call_with_lease(index, &Request::Grant { lease, slab })? {
                Reply::Granted { region, .. } if region.len_bytes >= self.config.slab_bytes => {
                    replicas.push(ReattachedSlab {
                        extent: replica.extent as usize,
                        node: index,
                        slab,
                        region,
                    });
                }
                _ => return Err(self.unexpected_reply(index)),
            }
        }
        Ok(replicas)
    }

    /// Returns the ranges in bytes that were written and are in none of these replicas.
    fn missing_ranges(&self, table: &Table, replicas: &[ReattachedSlab]) -> Vec<Range<u64>> {
        let slab_bytes = self.config.slab_bytes;
        let found: BTreeSet<u64> = replicas.iter().map(|replica| replica.extent as u64).collect();
        let written: BTreeSet<u64> = table.keys().map(|page| page * PAGE_BYTES as u64 / slab_bytes).collect();
        let mut missing: Vec<Range<u64>> = Vec::new();
        for extent in written.difference(&found) {
            let range = extent * slab_bytes..((extent + 1) * slab_bytes).min(self.config.size_bytes);
            match missing.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => missing.push(range),
            }
        }
        missing
    }

    /// Stores the new view at all nodes: first at those that the newest view names, so that a later claim that reaches
    /// one of these learns of the other nodes.
    fn store_view(
        &mut self,
        nodes: &[Option<ClaimedNode>],
        decision: &QuorumDecision,
        rng: &mut SplitMix64,
    ) -> Result<MembershipView> {
        let ids: Vec<u64> = nodes.iter().flatten().map(|node| node.node).collect();
        let volume = decision.newest.as_ref().map_or_else(|| rng.next_u64(), |view| view.volume);
        let view =
            MembershipView { volume, epoch: decision.epoch, change: 0, nodes: ids.clone(), members: ids };
        self.volume.history.propose(decision.newest.as_ref(), &view)?;
        let was_node = |node: &ClaimedNode| {
            decision.newest.as_ref().is_some_and(|newest| newest.nodes.contains(&node.node))
        };
        for first in [true, false] {
            for (at, node) in nodes.iter().enumerate() {
                if let Some(node) = node.as_ref().filter(|node| was_node(node) == first) {
                    self.call_with_lease(at, &Request::StoreView { lease: node.lease, view: view.clone() })?;
                }
            }
        }
        self.volume.history.commit(&view);
        Ok(view)
    }
}

impl VolumeConfig {
    /// Returns the name and the half of the key by which nodes identify the volume.
    pub fn to_ref(&self) -> VolumeRef {
        let (for_nodes, _) = self.halves();
        VolumeRef { name: self.name.clone(), key: Secret(for_nodes) }
    }

    /// Creates the query for a node's state of the volume.
    pub(super) fn query_request(&self) -> Request {
        Request::QueryVolume { version: VERSION, volume: self.to_ref() }
    }

    /// Creates the claim of a node's part of the volume. The node gets the identifier `node` if it has none within the
    /// volume.
    pub(super) fn claim_request(&self, name: &str, epoch: u64, node: u64, layout: &Layout) -> Request {
        Request::Claim {
            volume: self.to_ref(),
            name: name.to_owned(),
            holder: self.holder,
            epoch,
            node,
            metadata_bytes: layout.len_bytes(),
        }
    }

    fn halves(&self) -> ([u8; 16], [u8; 16]) {
        let halves = self.key.0.as_chunks::<16>().0;
        (halves[0], halves[1])
    }

    /// Returns the secret that keys the checks of metadata.
    fn secret(&self) -> u64 {
        u128::from_le_bytes(self.halves().1) as u64
    }

    /// Returns the seed of the page checksums.
    pub(super) fn seed(&self) -> u64 {
        (u128::from_le_bytes(self.halves().1) >> 64) as u64
    }
}
