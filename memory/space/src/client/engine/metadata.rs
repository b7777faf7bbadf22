//! Replication of the volume metadata. A metadata write is sent to all members and is committed when all of them have
//! it.
//!
//! A member that is unreachable for too long is removed by a new view ([`MembershipView`]). When it replies again, it
//! joins like a new node (`joining_node.rs`). A client that has too few members left is *fenced*: another client may
//! hold the volume.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use farcall_io::{Direction, Request};
use farcall_link::RemoteRegion;
use farcall_verbs::Nanos;

use super::joining_node::JoiningNode;
use super::members::MembershipViews;
use super::metadata_write::{CHUNK_BYTES, OnCommit};
use super::operation::Operation;
use super::{Engine, Tag};
use crate::client::config::{IoError, SubmitError, VolumeConfig};
use crate::client::extent::{Replica, ReplicaLocation};
use crate::client::history::History;
use crate::client::node_client::Call;
use crate::client::volume_metadata::{Entry, Layout, PlacementRecord, ReplicaRecord};
use crate::wire::{MembershipView, Request as NodeRequest};

/// Maximum number of chunks of user metadata in progress.
pub(super) const CHUNKS_MAX: usize = 256;

struct MetadataWrite {
    at: u64,
    bytes: Bytes,
    /// Nodes that do not have it yet.
    left: Vec<usize>,
    on_commit: OnCommit,
}

/// A node's copy of the metadata.
pub(super) struct MetadataCopy {
    /// Identifier of the node within the volume.
    pub node: u64,
    pub region: RemoteRegion,
    /// Number of the region in the open session; `None` if there is none.
    pub grant: Option<u32>,
}

pub(super) struct MetadataReplication {
    volume: VolumeConfig,
    layout: Layout,
    /// Copies by index of the node; `None` for a node without one.
    copies: Vec<Option<MetadataCopy>>,
    pub(super) views: MembershipViews,
    /// The node that is joining.
    pub(super) joining: Option<JoiningNode>,
    /// Number of attempts to add a node so far.
    pub(super) attempts: u32,
    writes: BTreeMap<u32, MetadataWrite>,
    last_write: u32,
    generation: u64,
    /// Number of chunks of the placement whose writes are in progress.
    placement_chunks_left: usize,
    /// Operations that wait until the placement is committed.
    waiting: Vec<u32>,
    /// Number of chunks left of each user metadata write, by token.
    user_writes: BTreeMap<u64, usize>,
    is_fenced: bool,
}

impl MetadataReplication {
    pub(super) const fn is_read_only(&self) -> bool {
        self.volume.is_read_only
    }

    pub(super) const fn history(&self) -> &History {
        &self.volume.history
    }

    pub const fn new(
        volume: VolumeConfig,
        layout: Layout,
        copies: Vec<Option<MetadataCopy>>,
        view: MembershipView,
        generation: u64,
    ) -> Self {
        Self {
            volume,
            layout,
            copies,
            views: MembershipViews::new(view),
            joining: None,
            attempts: 0,
            writes: BTreeMap::new(),
            last_write: 0,
            generation,
            placement_chunks_left: 0,
            waiting: Vec::new(),
            user_writes: BTreeMap::new(),
            is_fenced: false,
        }
    }

    /// Adds a node that is not part of the volume.
    pub fn add_non_member(&mut self) {
        self.copies.push(None);
    }

    pub(super) const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) const fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// Returns the message of a call to a joining node.
    pub(super) fn request(&self, call: Call, name: &str) -> Option<NodeRequest> {
        match call {
            Call::QueryVolume => Some(self.volume.query_request()),
            Call::Claim { id } => {
                Some(self.volume.claim_request(name, self.views.current().epoch, id, &self.layout))
            }
            _ => None,
        }
    }

    /// Sets the copy of a node.
    pub(super) fn set_copy(&mut self, at: usize, copy: MetadataCopy) {
        self.copies[at] = Some(copy);
    }

    /// Returns the number of a node's copy in the session with it.
    pub(super) fn grant(&self, at: usize) -> Option<u32> {
        self.copies[at].as_ref()?.grant
    }

    /// Returns whether a write in progress overlaps the chunk.
    pub(super) fn overlaps_write(&self, chunk: &Range<u64>) -> bool {
        let overlaps =
            |write: &MetadataWrite| write.at < chunk.end && chunk.start < write.at + write.bytes.len() as u64;
        self.writes.values().any(overlaps)
    }

    /// Returns the identifier of a node within the volume.
    pub(super) fn id(&self, at: usize) -> Option<u64> {
        self.copies[at].as_ref().map(|copy| copy.node)
    }

    pub(super) fn ids(&self, nodes: &[usize]) -> Vec<u64> {
        nodes.iter().filter_map(|at| self.id(*at)).collect()
    }

    pub(super) fn members(&self) -> impl Iterator<Item = usize> {
        let members = &self.views.current().members;
        (0..self.copies.len()).filter(|at| self.id(*at).is_some_and(|id| members.contains(&id)))
    }

    /// Stops waiting for nodes that are neither members nor joining. Returns the writes that are committed by that.
    pub(super) fn drop_non_members(&mut self) -> Vec<u32> {
        let joining = self.joining.as_ref().map(JoiningNode::node);
        let awaited: Vec<usize> = self.members().chain(joining).collect();
        let mut committed = Vec::new();
        for (serial, write) in &mut self.writes {
            write.left.retain(|at| awaited.contains(at));
            committed.extend(write.left.is_empty().then_some(*serial));
        }
        committed
    }
}

impl Engine {
    /// Returns whether this client has permanently lost the volume.
    pub fn is_fenced(&self) -> bool {
        self.metadata.as_ref().is_some_and(|metadata| metadata.is_fenced)
    }

    /// Returns whether the placement on which completed requests depend is committed.
    pub(super) fn is_placement_committed(&self) -> bool {
        let is_committed =
            |metadata: &MetadataReplication| metadata.placement_chunks_left == 0 && !self.placement_dirty;
        self.metadata.as_ref().is_none_or(|metadata| metadata.is_read_only() || is_committed(metadata))
    }

    /// Returns whether the placement must not change (read-only mounts): replicas of absent nodes count again when
    /// these return.
    pub(super) fn is_placement_fixed(&self) -> bool {
        self.metadata.as_ref().is_some_and(MetadataReplication::is_read_only)
    }

    pub(super) fn write_metadata(&mut self, at: u64, bytes: Bytes, on_commit: OnCommit, now: Nanos) {
        let Some(metadata) = &mut self.metadata else { return };
        let joining = metadata.joining.as_mut();
        let (joining_receiver, accepted) = match joining {
            Some(joining) => (joining.receives_writes_at(at), joining.defer(at, bytes, on_commit)),
            None => (None, Some((bytes, on_commit))),
        };
        let Some((bytes, on_commit)) = accepted else { return };
        let receivers = metadata.members().chain(joining_receiver).collect();
        self.start_metadata_write(MetadataWrite { at, bytes, left: receivers, on_commit }, now);
    }

    fn start_metadata_write(&mut self, write: MetadataWrite, now: Nanos) {
        let Some(metadata) = &mut self.metadata else { return };
        metadata.last_write = metadata.last_write.wrapping_add(1);
        let (serial, left) = (metadata.last_write, write.left.clone());
        metadata.writes.insert(serial, write);
        left.into_iter().for_each(|node| self.post_metadata_write(serial, node, now));
    }

    /// Writes contents of pages to slots of the redo log of these nodes. Returns whether one of them is a member.
    /// Otherwise nothing is written.
    pub(super) fn write_redo(
        &mut self,
        mut nodes: Vec<usize>,
        slot: u32,
        bytes: Bytes,
        on_commit: OnCommit,
        now: Nanos,
    ) -> bool {
        let Some(metadata) = &self.metadata else { return false };
        nodes.retain(|node| metadata.members().any(|member| member == *node));
        let (at, is_written) = (metadata.layout.slot_at(slot), !nodes.is_empty());
        if is_written {
            // A joining node has no replicas.
            self.start_metadata_write(MetadataWrite { at, bytes, left: nodes, on_commit }, now);
        }
        is_written
    }

    /// Sends a write to a member if there is a session with it. It is sent again when another session is opened.
    fn post_metadata_write(&mut self, serial: u32, node: usize, now: Nanos) {
        let Some(metadata) = &self.metadata else { return };
        let (Some(write), Some(copy)) = (metadata.writes.get(&serial), &metadata.copies[node]) else {
            return;
        };
        let (Some(grant), Some(session)) = (copy.grant, self.nodes[node].session()) else { return };
        let request = Request {
            direction: Direction::Write,
            grant,
            offset: write.at,
            buffer: write.bytes.clone().into(),
            context: Tag::Metadata { write: serial, node },
        };
        if let Err(refused) = session.submit(request) {
            self.end_session(node, refused.why.to_string(), now);
        }
    }

    /// Sends pending writes to a node after a session with it was opened.
    pub(super) fn resume_metadata_writes(&mut self, node: usize, now: Nanos) {
        let Some(metadata) = &mut self.metadata else { return };
        if let (Some(copy), Some(session)) = (&mut metadata.copies[node], self.nodes[node].session()) {
            copy.grant = session.grant(copy.region).ok();
        }
        let due = metadata.writes.iter().filter(|(_, write)| write.left.contains(&node));
        let due: Vec<u32> = due.map(|(serial, _)| *serial).collect();
        due.into_iter().for_each(|serial| self.post_metadata_write(serial, node, now));
        self.start_metadata_copy(node, now);
    }

    /// Records that the session with a node has ended.
    pub(super) fn forget_metadata_grant(&mut self, node: usize) {
        if let Some(copy) = self.metadata.as_mut().and_then(|metadata| metadata.copies[node].as_mut()) {
            copy.grant = None;
        }
    }

    /// Records that a node has a write.
    pub(super) fn on_metadata_written(&mut self, serial: u32, node: usize, now: Nanos) {
        let Some(write) = self.metadata.as_mut().and_then(|metadata| metadata.writes.get_mut(&serial)) else {
            return;
        };
        write.left.retain(|left| *left != node);
        if write.left.is_empty() {
            self.finish_metadata_write(serial, now);
        }
    }

    pub(super) fn finish_metadata_write(&mut self, serial: u32, now: Nanos) {
        let Some(metadata) = &mut self.metadata else { return };
        let Some(write) = metadata.writes.remove(&serial) else { return };
        match write.on_commit {
            OnCommit::Intent { operation } => {
                if let Some(of) = &mut self.operations[operation as usize] {
                    of.on_intent_write_committed();
                }
                self.ready.push_back(operation);
            }
            OnCommit::Run { run } => self.commit_run_intent(run, now),
            OnCommit::Placement => {
                metadata.placement_chunks_left -= 1;
                if metadata.placement_chunks_left == 0 {
                    self.ready.extend(metadata.waiting.drain(..));
                }
            }
            OnCommit::User { token } => {
                if let Some(left) = metadata.user_writes.get_mut(&token) {
                    *left -= 1;
                    if *left == 0 {
                        metadata.user_writes.remove(&token);
                        self.requests.complete(token, Ok(Vec::new()));
                    }
                }
            }
        }
    }

    /// Commits what must precede the writes of an operation to the replicas that are left: the entry of the content at
    /// all members, and the content in the redo log of the replicas' nodes. Returns whether it is committed.
    pub(super) fn commit_intent(&mut self, id: u32, operation: &mut Operation, now: Nanos) -> bool {
        if self.metadata.is_none() || !operation.needs_intent(&self.redo) {
            return true;
        }
        if operation.is_intent_pending() {
            return false;
        }
        let has_entry = operation.is_intent_committed();
        let unlogged = if self.is_logged() { operation.unlogged() } else { Vec::new() };
        if has_entry && unlogged.is_empty() {
            return true;
        }
        if !self.is_placement_committed() {
            // A page stored at a location that is not committed would be lost.
            if let Some(metadata) = self.metadata.as_mut().filter(|metadata| !metadata.waiting.contains(&id))
            {
                metadata.waiting.push(id);
            }
            return false;
        }
        let (mut writes, on_commit) = (0, OnCommit::Intent { operation: id });
        if !unlogged.is_empty() && !operation.stores_zeros() {
            let Some(slot) = self.slot_of(id, operation) else { return false };
            let (extent, _) = self.locate(Self::page_of(operation));
            let nodes = unlogged.iter().filter_map(|serial| self.extents[extent].replica(*serial)?.node());
            let (nodes, bytes) = (nodes.collect(), operation.content());
            writes += u32::from(self.write_redo(nodes, slot, bytes, on_commit, now));
        }
        if !has_entry {
            let (position, bytes) = self.entry_of(operation);
            self.write_metadata(position, bytes, on_commit, now);
            writes += 1;
        }
        operation.begin_intent(writes, unlogged);
        writes == 0
    }

    /// Returns the offset and the bytes of the entry of an operation's content.
    fn entry_of(&mut self, operation: &Operation) -> (u64, Bytes) {
        let page = Self::page_of(operation);
        let (extent, at) = self.locate(page);
        let sum = self.checksum_of(operation);
        let pages = self.pages_of(extent);
        // The entry of a content that is replayed may be missing at some members.
        let (_, present) = pages.entry(at);
        let generation = if operation.stores_new_content() { pages.next_generation(at) } else { present };
        let layout = self.metadata.as_ref().map(MetadataReplication::layout);
        let encoded = layout.map(|layout| layout.encode_entry(page, Entry { sum, generation }));
        encoded.map_or((0, Bytes::new()), |(position, bytes)| (position, Bytes::copy_from_slice(&bytes)))
    }

    /// Writes the entries of the pages of a run, with these checksums, before the pages are stored anywhere.
    pub(super) fn write_run_entries(&mut self, run: u32, pages: Range<u64>, sums: &[u64], now: Nanos) {
        let (extent, at) = self.locate(pages.start);
        self.pages_of(extent);
        let table = &self.extents[extent].pages;
        let entries = sums.iter().zip(at..).map(|(sum, at)| {
            let (current_sum, generation) = table.entry(at);
            let current = (generation > 0).then_some(Entry { sum: current_sum, generation });
            (current, Entry { sum: *sum, generation: table.next_generation(at) })
        });
        let Some(metadata) = &self.metadata else { return };
        let (position, bytes) = metadata.layout.encode_entries(pages.start, entries);
        self.write_metadata(position, bytes.into(), OnCommit::Run { run }, now);
    }

    /// Returns whether a changed placement must be written, and can be written now.
    pub(super) fn is_placement_due(&self) -> bool {
        self.placement_dirty
            && !self.is_placement_fixed()
            && self
                .metadata
                .as_ref()
                .is_some_and(|metadata| metadata.placement_chunks_left == 0 && !metadata.is_fenced)
    }

    /// Writes the placement if it has changed.
    pub(super) fn write_placement(&mut self, now: Nanos) {
        if !self.is_placement_due() {
            return;
        }
        self.placement_dirty = false;
        let Some(metadata) = &self.metadata else { return };
        let generation = metadata.generation + 1;
        let Some((at, bytes)) =
            metadata.layout.encode_placement(&self.placement_record(metadata), generation)
        else {
            tracing::error!("the table of page locations is too long to be stored: the volume is abandoned");
            return self.fence(now);
        };
        let chunks: Vec<(u64, Bytes)> = bytes
            .chunks(CHUNK_BYTES)
            .map(Bytes::copy_from_slice)
            .zip(0..)
            .map(|(chunk, number)| (at + number * CHUNK_BYTES as u64, chunk))
            .collect();
        if let Some(metadata) = &mut self.metadata {
            (metadata.generation, metadata.placement_chunks_left) = (generation, chunks.len());
        }
        chunks.into_iter().for_each(|(at, chunk)| self.write_metadata(at, chunk, OnCommit::Placement, now));
    }

    fn placement_record(&self, metadata: &MetadataReplication) -> PlacementRecord {
        let in_sync = self.extents.iter().zip(0..).flat_map(|(extent, number)| {
            let replicas = extent.replicas.iter().filter(|replica| replica.is_in_sync());
            replicas.filter_map(move |replica| Some((number, replica.node_and_slab()?)))
        });
        let replicas =
            in_sync.map(|(extent, (node, slab))| ReplicaRecord { extent, node: node as u16, slab });
        PlacementRecord {
            size_bytes: self.config.size_bytes,
            slab_bytes: self.config.slab_bytes,
            last_serial: self.last_serial,
            last_slab: self.last_slab,
            nodes: metadata.copies.iter().map(|copy| copy.as_ref().map_or(0, |copy| copy.node)).collect(),
            replicas: replicas.collect(),
        }
    }

    /// Accepts a write of user metadata.
    pub(super) fn submit_metadata(
        &mut self,
        token: u64,
        offset: u64,
        bytes: &[u8],
        now: Nanos,
    ) -> Result<(), SubmitError> {
        let (len_bytes, chunks) = (bytes.len(), bytes.len().div_ceil(CHUNK_BYTES));
        let Some(metadata) = &mut self.metadata else {
            return Err(SubmitError::Range { offset, len_bytes, size_bytes: 0 });
        };
        let position = metadata.layout.user_offset(offset, len_bytes).filter(|_| len_bytes > 0);
        let size_bytes = metadata.layout.user_bytes();
        let position = position.ok_or(SubmitError::Range { offset, len_bytes, size_bytes })?;
        let in_progress: usize = metadata.user_writes.values().sum();
        if in_progress + chunks > CHUNKS_MAX {
            return Err(SubmitError::Full { pages: in_progress, pages_max: CHUNKS_MAX });
        }
        if metadata.is_fenced {
            self.requests.complete(token, Err(IoError::Fenced));
            return Ok(());
        }
        metadata.user_writes.insert(token, chunks);
        for (chunk, number) in bytes.chunks(CHUNK_BYTES).zip(0..) {
            self.write_metadata(
                position + number * CHUNK_BYTES as u64,
                Bytes::copy_from_slice(chunk),
                OnCommit::User { token },
                now,
            );
        }
        Ok(())
    }

    /// Fences this client, since another one may hold the volume: from now on all requests fail.
    pub(super) fn fence(&mut self, now: Nanos) {
        let Some(metadata) = &mut self.metadata else { return };
        tracing::error!("the volume is lost to this client: too many nodes were not reached in time");
        metadata.is_fenced = true;
        metadata.joining = None;
        metadata.writes.clear();
        metadata.waiting.clear();
        for token in std::mem::take(&mut metadata.user_writes).into_keys() {
            self.requests.complete(token, Err(IoError::Fenced));
        }
        for (operation, id) in self.operations.iter_mut().zip(0..) {
            if let Some(operation) = operation {
                operation.abandon_intent();
                self.ready.push_back(id);
            }
        }
        self.close();
        self.fail_uncommitted_runs(now);
        for node in 0..self.nodes.len() {
            self.end_session(node, "the volume is lost to this client".to_owned(), now);
        }
    }
}

impl Replica {
    /// Returns its node, and the number of its slab there.
    const fn node_and_slab(&self) -> Option<(usize, u64)> {
        match self.location {
            ReplicaLocation::Node { node, slab, .. } | ReplicaLocation::Away { node, slab } => {
                Some((node, slab))
            }
            ReplicaLocation::File { .. } => None,
        }
    }
}
