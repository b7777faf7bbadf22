//! A node that joins a volume in use: a new one, or one that was lost and has returned.
//!
//! 1. The client claims the node as the next mount would, but under its own epoch, and returns the slabs that the node
//!    retained.
//! 2. It copies the metadata to the node from a member, chunk by chunk. Metadata writes below the copy position are
//!    also sent to the joining node. Writes that overlap the chunk being copied are held until the chunk is complete.
//! 3. It overwrites the redo log of the node with zeros: the node may have contents there that were not chosen for their
//!    pages in the meantime.
//! 4. After the last chunk it proposes a view that includes the node. The node becomes a member when all members have
//!    stored the view. Until then nothing depends on it.
//!
//! One node joins at a time.

use std::ops::Range;

use bytes::Bytes;
use farcall_io::{Buffer, Direction, Request as Transfer};
use farcall_verbs::Nanos;

use super::metadata_write::{CHUNK_BYTES, OnCommit};
use super::{Engine, Tag};
use crate::client::claim::ClaimedNode;
use crate::client::node_client::Call;
use crate::wire::{Reply, StoredVolume};

/// Progress of the joining node.
#[derive(Debug)]
enum JoinStep {
    /// The client queries the node's state, and then claims its part.
    Claiming,
    /// The session with it is being opened.
    Claimed,
    /// It has the metadata before offset `from`. The chunk there is in flight, or waits for overlapping writes.
    Copying { from: u64, is_in_flight: bool },
    /// The view that includes it is being stored.
    Proposing,
}

/// A chunk of metadata that is copied to the joining node.
#[derive(Clone, Copy, Debug)]
pub(in crate::client) struct ChunkTag {
    attempt: u32,
    at: u64,
    is_read: bool,
}

pub(super) struct JoiningNode {
    node: usize,
    /// Distinguishes the node from earlier ones, whose chunks are ignored.
    attempt: u32,
    step: JoinStep,
    /// Writes that overlap the chunk in flight.
    deferred_writes: Vec<(u64, Bytes, OnCommit)>,
}

impl JoiningNode {
    pub const fn node(&self) -> usize {
        self.node
    }

    /// Returns the node if the next view must include it.
    pub fn ready_to_join(&self) -> Option<usize> {
        matches!(self.step, JoinStep::Proposing).then_some(self.node)
    }

    /// Returns the node if metadata writes at this offset must also be sent to it.
    pub fn receives_writes_at(&self, at: u64) -> Option<usize> {
        match self.step {
            JoinStep::Claiming | JoinStep::Claimed => None,
            JoinStep::Copying { from, .. } => (at < from).then_some(self.node),
            JoinStep::Proposing => Some(self.node),
        }
    }

    /// Holds a write that overlaps the chunk in flight. Returns any other write.
    pub fn defer(&mut self, at: u64, bytes: Bytes, on_commit: OnCommit) -> Option<(Bytes, OnCommit)> {
        let end = at + bytes.len() as u64;
        match self.chunk() {
            Some(chunk) if at < chunk.end && chunk.start < end => {
                self.deferred_writes.push((at, bytes, on_commit));
                None
            }
            _ => Some((bytes, on_commit)),
        }
    }

    fn chunk(&self) -> Option<Range<u64>> {
        match self.step {
            JoinStep::Copying { from, .. } => Some(from..from + CHUNK_BYTES as u64),
            _ => None,
        }
    }
}

/// Returns the end of the chunk from `from` on, which lies before the redo log or in it.
fn end_of_chunk(from: u64, redo_at: u64) -> u64 {
    let end = from + CHUNK_BYTES as u64;
    if from < redo_at { end.min(redo_at) } else { end }
}

impl Engine {
    /// Continues with the joining node, or starts with the next node that is not a member.
    pub(super) fn check_joining_node(&mut self, now: Nanos) {
        let Some(metadata) =
            self.metadata.as_mut().filter(|metadata| !metadata.is_fenced() && !metadata.is_read_only())
        else {
            return;
        };
        if metadata.joining.is_some() {
            return self.copy_next_chunk(now);
        }
        if metadata.views.is_changing() {
            return;
        }
        let count = self.nodes.len();
        let is_due = |node: &usize| {
            let client = &self.nodes[*node];
            client.is_non_member
                && !client.is_ending
                && client.pending_call.is_none()
                && client.retry_at <= now
        };
        // Start after the previous attempt, so that each node is tried even if others fail.
        let first = metadata.attempts as usize;
        let Some(node) = (first..first + count).map(|at| at % count).find(is_due) else { return };
        metadata.attempts = metadata.attempts.wrapping_add(1);
        let (attempt, step, deferred_writes) = (metadata.attempts, JoinStep::Claiming, Vec::new());
        metadata.joining = Some(JoiningNode { node, attempt, step, deferred_writes });
        // Earlier calls to the node are obsolete.
        self.nodes[node].calls = [Call::QueryVolume].into();
    }

    /// Handles the reply of a joining node to the query of its state.
    pub(super) fn volume_info_received(&mut self, node: usize, volume: Option<StoredVolume>, now: Nanos) {
        let Some(metadata) = &self.metadata else { return };
        let view = metadata.views.current();
        let problem = match &volume {
            Some(volume) if volume.epoch > view.epoch => Some("another mount claimed the volume there"),
            Some(StoredVolume { view: Some(other), .. }) if other.volume != view.volume => {
                Some("it keeps another volume of this name")
            }
            Some(volume) if view.members.contains(&volume.node) => {
                Some("it is a member under another address")
            }
            _ => None,
        };
        if let Some(problem) = problem {
            return self.fail_joining(node, problem.to_owned(), now);
        }
        let id = volume.map_or_else(|| self.rng.next_u64(), |volume| volume.node);
        self.nodes[node].calls.push_back(Call::Claim { id });
    }

    /// Handles the reply of a joining node to the claim under the identifier `id`.
    pub(super) fn joining_node_claimed(
        &mut self,
        node: usize,
        id: u64,
        reply: Reply,
        sent: Nanos,
        now: Nanos,
    ) {
        let Some(metadata) = &mut self.metadata else { return };
        let claimed = ClaimedNode::from_reply(id, reply, &self.config, metadata.layout());
        let joining = metadata.joining.as_mut().filter(|joining| joining.node == node);
        let (Some(claimed), Some(joining)) = (claimed, joining) else {
            let why = "its answer is malformed; update the older of the two";
            return self.fail_joining(node, why.to_owned(), now);
        };
        joining.step = JoinStep::Claimed;
        let until = sent + claimed.term;
        let copy = self.attach_node(node, claimed, until, now);
        if let Some(metadata) = &mut self.metadata {
            metadata.set_copy(node, copy);
        }
    }

    /// Abandons a joining node and delays the next attempt.
    pub(super) fn fail_joining(&mut self, node: usize, why: String, now: Nanos) {
        self.nodes[node].back_off(why, now);
        self.abandon_joining(node, now);
    }

    /// Makes a node a non-member again if it is the joining one. Its lease expires, or ends with the next claim.
    pub(super) fn abandon_joining(&mut self, node: usize, now: Nanos) {
        let Some(metadata) = &mut self.metadata else { return };
        let Some(joining) = metadata.joining.take_if(|joining| joining.node == node) else { return };
        let client = &mut self.nodes[node];
        (client.lease, client.is_non_member) = (None, true);
        client.calls.clear();
        let committed = metadata.drop_non_members();
        committed.into_iter().for_each(|serial| self.finish_metadata_write(serial, now));
        self.mark_away(node);
        self.start_deferred_writes(joining.deferred_writes, now);
    }

    /// Starts the writes that were held.
    fn start_deferred_writes(&mut self, deferred_writes: Vec<(u64, Bytes, OnCommit)>, now: Nanos) {
        deferred_writes
            .into_iter()
            .for_each(|(at, bytes, on_commit)| self.write_metadata(at, bytes, on_commit, now));
    }

    /// Starts copying to a joining node after its session was opened.
    pub(super) fn start_metadata_copy(&mut self, node: usize, now: Nanos) {
        let Some(joining) = self.metadata.as_mut().and_then(|metadata| metadata.joining.as_mut()) else {
            return;
        };
        if joining.node == node && matches!(joining.step, JoinStep::Claimed) {
            joining.step = JoinStep::Copying { from: 0, is_in_flight: false };
            self.nodes[node].problem = Some("it is being taken into the volume".to_owned());
            self.copy_next_chunk(now);
        }
    }

    /// Copies the next chunk of metadata once no overlapping write is in progress. After the last chunk, proposes the
    /// view that includes the node.
    fn copy_next_chunk(&mut self, now: Nanos) {
        let Some(metadata) = &mut self.metadata else { return };
        let (len_bytes, is_changing) = (metadata.layout().len_bytes(), metadata.views.is_changing());
        let redo_at = metadata.layout().redo_at();
        let Some(joining) = &mut metadata.joining else { return };
        let JoinStep::Copying { from, is_in_flight: false } = joining.step else { return };
        let attempt = joining.attempt;
        if from >= len_bytes {
            if !is_changing {
                joining.step = JoinStep::Proposing;
                self.check_members(now);
            }
            return;
        }
        let chunk = from..len_bytes.min(end_of_chunk(from, redo_at));
        if from >= redo_at {
            joining.step = JoinStep::Copying { from, is_in_flight: true };
            let (node, zeros) = (joining.node, Bytes::from(vec![0; (chunk.end - chunk.start) as usize]));
            let tag = ChunkTag { attempt, at: from, is_read: false };
            return self.transfer_chunk(node, zeros.into(), tag, now);
        }
        if metadata.overlaps_write(&chunk) {
            return;
        }
        let Some(source) = metadata.members().find(|member| metadata.grant(*member).is_some()) else {
            return;
        };
        if let Some(joining) = &mut metadata.joining {
            joining.step = JoinStep::Copying { from, is_in_flight: true };
        }
        let bytes = vec![0; (chunk.end - chunk.start) as usize];
        self.transfer_chunk(source, bytes.into(), ChunkTag { attempt, at: from, is_read: true }, now);
    }

    fn transfer_chunk(&mut self, node: usize, buffer: Buffer, tag: ChunkTag, now: Nanos) {
        let grant = self.metadata.as_ref().and_then(|metadata| metadata.grant(node));
        let (Some(grant), Some(session)) = (grant, self.nodes[node].session()) else {
            return self.chunk_failed(tag, now);
        };
        let direction = if tag.is_read { Direction::Read } else { Direction::Write };
        let request = Transfer { direction, grant, offset: tag.at, buffer, context: Tag::Chunk(node, tag) };
        if let Err(refused) = session.submit(request) {
            self.end_session(node, refused.why.to_string(), now);
            self.chunk_failed(tag, now);
        }
    }

    /// Handles a chunk that was read from a member, or written to the joining node.
    pub(super) fn chunk_transferred(&mut self, tag: ChunkTag, bytes: Option<Vec<u8>>, now: Nanos) {
        let Some(metadata) = &mut self.metadata else { return };
        let redo_at = metadata.layout().redo_at();
        let Some(joining) = &mut metadata.joining else { return };
        if joining.attempt != tag.attempt {
            return;
        }
        let node = joining.node;
        if tag.is_read {
            let bytes = bytes.unwrap_or_default();
            return self.transfer_chunk(node, bytes.into(), ChunkTag { is_read: false, ..tag }, now);
        }
        joining.step = JoinStep::Copying { from: end_of_chunk(tag.at, redo_at), is_in_flight: false };
        let deferred_writes = std::mem::take(&mut joining.deferred_writes);
        self.start_deferred_writes(deferred_writes, now);
        self.copy_next_chunk(now);
    }

    /// Handles a failed transfer of a chunk: the node joins again from the beginning.
    pub(super) fn chunk_failed(&mut self, tag: ChunkTag, now: Nanos) {
        let joining = self.metadata.as_ref().and_then(|metadata| metadata.joining.as_ref());
        if let Some(node) = joining.filter(|it| it.attempt == tag.attempt).map(|joining| joining.node) {
            self.end_session(node, "notes could not be copied to it".to_owned(), now);
        }
    }

    /// Ends the joining of a node that is a member of the view that just took effect.
    pub(super) fn finish_joining(&mut self) {
        let Some(metadata) = &mut self.metadata else { return };
        let members: Vec<usize> = metadata.members().collect();
        if let Some(joining) = metadata.joining.take_if(|joining| members.contains(&joining.node)) {
            let client = &mut self.nodes[joining.node];
            tracing::info!(node = client.address, "a node was taken into the volume");
            (client.is_non_member, client.problem) = (false, None);
            self.placement_dirty = true;
        }
    }
}
