//! A node that joins a volume in use: a new one, or one that was lost and has returned.
//!
//! 1. The client claims the node as the next mount would, but under its own epoch, and returns the slabs that the node
//!    retained.
//! 2. It copies the metadata to the node from a member, chunk by chunk. Metadata writes below the copy position are
//!    also sent to the joining node. Writes that overlap the chunk being copied are held until the chunk is complete.
//! 3. After the last chunk it proposes a view that includes the node. The node becomes a member when all members have
//!    stored the view. Until then nothing depends on it.
//!
//! One node joins at a time.

use std::ops::Range;

use farcall_io::{Buffer, Direction, Request as Transfer};
use farcall_verbs::Nanos;

use super::metadata::{PIECE_BYTES, Then};
use super::{Engine, Tag};
use crate::client::claim::ClaimedNode;
use crate::client::node_client::Call;
use crate::wire::{Kept, Reply};

/// Progress of the joining node.
#[derive(Debug)]
enum Step {
    /// The client queries the node's state, and then claims its part.
    Claiming,
    /// The session with it is being opened.
    Claimed,
    /// It has the metadata before offset `from`. The chunk there is in flight, or waits for overlapping writes.
    Copying { from: u64, is_under_way: bool },
    /// The view that includes it is being stored.
    Marking,
}

/// A chunk of metadata that is copied to the joining node.
#[derive(Clone, Copy, Debug)]
pub(in crate::client) struct CopyTag {
    attempt: u32,
    at: u64,
    is_read: bool,
}

pub(super) struct Newcomer {
    node: usize,
    /// Distinguishes the node from earlier ones, whose chunks are ignored.
    attempt: u32,
    step: Step,
    /// Writes that overlap the chunk in flight.
    held: Vec<(u64, Vec<u8>, Then)>,
}

impl Newcomer {
    pub const fn node(&self) -> usize {
        self.node
    }

    /// Returns the node if the next view must include it.
    pub fn to_be_member(&self) -> Option<usize> {
        matches!(self.step, Step::Marking).then_some(self.node)
    }

    /// Returns the node if metadata writes at this offset must also be sent to it.
    pub fn takes(&self, at: u64) -> Option<usize> {
        match self.step {
            Step::Claiming | Step::Claimed => None,
            Step::Copying { from, .. } => (at < from).then_some(self.node),
            Step::Marking => Some(self.node),
        }
    }

    /// Holds a write that overlaps the chunk in flight. Returns any other write.
    pub fn hold(&mut self, at: u64, bytes: Vec<u8>, then: Then) -> Option<(Vec<u8>, Then)> {
        let end = at + bytes.len() as u64;
        match self.piece() {
            Some(piece) if at < piece.end && piece.start < end => {
                self.held.push((at, bytes, then));
                None
            }
            _ => Some((bytes, then)),
        }
    }

    fn piece(&self) -> Option<Range<u64>> {
        match self.step {
            Step::Copying { from, .. } => Some(from..from + PIECE_BYTES as u64),
            _ => None,
        }
    }
}

impl Engine {
    /// Continues with the joining node, or starts with the next node that is not a member.
    pub(super) fn look_at_newcomers(&mut self, now: Nanos) {
        let Some(noting) =
            self.noting.as_mut().filter(|noting| !noting.is_fenced() && !noting.is_read_only())
        else {
            return;
        };
        if noting.newcomer.is_some() {
            return self.copy_notes(now);
        }
        if noting.marks.is_changing() {
            return;
        }
        let count = self.donors.len();
        let is_due = |node: &usize| {
            let donor = &self.donors[*node];
            donor.is_out && !donor.is_ending && donor.asked.is_none() && donor.retry_at <= now
        };
        // Start after the previous attempt, so that each node is tried even if others fail.
        let first = noting.attempts as usize;
        let Some(node) = (first..first + count).map(|at| at % count).find(is_due) else { return };
        noting.attempts = noting.attempts.wrapping_add(1);
        let (attempt, step, held) = (noting.attempts, Step::Claiming, Vec::new());
        noting.newcomer = Some(Newcomer { node, attempt, step, held });
        // Earlier calls to the node are obsolete.
        self.donors[node].calls = [Call::Look].into();
    }

    /// Handles the reply of a joining node to the query of its state.
    pub(super) fn looked(&mut self, node: usize, kept: Option<Kept>, now: Nanos) {
        let Some(noting) = &self.noting else { return };
        let mark = noting.marks.now();
        let problem = match &kept {
            Some(kept) if kept.epoch > mark.epoch => Some("another mount claimed the volume there"),
            Some(Kept { mark: Some(other), .. }) if other.volume != mark.volume => {
                Some("it keeps another volume of this name")
            }
            Some(kept) if mark.members.contains(&kept.node) => Some("it is a member under another address"),
            _ => None,
        };
        if let Some(problem) = problem {
            return self.newcomer_failed(node, problem.to_owned(), now);
        }
        let id = kept.map_or_else(|| self.rng.next_u64(), |kept| kept.node);
        self.donors[node].calls.push_back(Call::Claim { id });
    }

    /// Handles the reply of a joining node to the claim under the identifier `id`.
    pub(super) fn newcomer_claimed(&mut self, node: usize, id: u64, reply: Reply, sent: Nanos, now: Nanos) {
        let Some(noting) = &mut self.noting else { return };
        let claimed = ClaimedNode::of_reply(id, reply, &self.config, noting.layout());
        let newcomer = noting.newcomer.as_mut().filter(|newcomer| newcomer.node == node);
        let (Some(claimed), Some(newcomer)) = (claimed, newcomer) else {
            let why = "it answers something else; update the older of the two";
            return self.newcomer_failed(node, why.to_owned(), now);
        };
        newcomer.step = Step::Claimed;
        let until = sent + claimed.term;
        let copy = self.begin_with(node, claimed, until, now);
        if let Some(noting) = &mut self.noting {
            noting.set_copy(node, copy);
        }
    }

    /// Abandons a joining node and delays the next attempt.
    pub(super) fn newcomer_failed(&mut self, node: usize, why: String, now: Nanos) {
        self.donors[node].back_off(why, now);
        self.drop_newcomer(node, now);
    }

    /// Makes a node a non-member again if it is the joining one. Its lease expires, or ends with the next claim.
    pub(super) fn drop_newcomer(&mut self, node: usize, now: Nanos) {
        let Some(noting) = &mut self.noting else { return };
        let Some(newcomer) = noting.newcomer.take_if(|newcomer| newcomer.node == node) else { return };
        let donor = &mut self.donors[node];
        (donor.lease, donor.is_out) = (None, true);
        donor.calls.clear();
        let over = noting.wait_for_members_only();
        over.into_iter().for_each(|serial| self.note_over(serial, now));
        self.put_away(node);
        self.note_held(newcomer.held, now);
    }

    /// Starts the writes that were held.
    fn note_held(&mut self, held: Vec<(u64, Vec<u8>, Then)>, now: Nanos) {
        held.into_iter().for_each(|(at, bytes, then)| self.note(at, bytes, then, now));
    }

    /// Starts copying to a joining node after its session was opened.
    pub(super) fn newcomer_reached(&mut self, node: usize, now: Nanos) {
        let Some(newcomer) = self.noting.as_mut().and_then(|noting| noting.newcomer.as_mut()) else { return };
        if newcomer.node == node && matches!(newcomer.step, Step::Claimed) {
            newcomer.step = Step::Copying { from: 0, is_under_way: false };
            self.donors[node].problem = Some("it is being taken into the volume".to_owned());
            self.copy_notes(now);
        }
    }

    /// Copies the next chunk of metadata once no overlapping write is in progress. After the last chunk, proposes the
    /// view that includes the node.
    fn copy_notes(&mut self, now: Nanos) {
        let Some(noting) = &mut self.noting else { return };
        let (len_bytes, is_marking) = (noting.layout().len_bytes(), noting.marks.is_changing());
        let Some(newcomer) = &mut noting.newcomer else { return };
        let Step::Copying { from, is_under_way: false } = newcomer.step else { return };
        let attempt = newcomer.attempt;
        if from >= len_bytes {
            if !is_marking {
                newcomer.step = Step::Marking;
                self.look_at_members(now);
            }
            return;
        }
        let piece = from..len_bytes.min(from + PIECE_BYTES as u64);
        if noting.is_noted_at(&piece) {
            return;
        }
        let Some(source) = noting.members().find(|member| noting.grant(*member).is_some()) else { return };
        if let Some(newcomer) = &mut noting.newcomer {
            newcomer.step = Step::Copying { from, is_under_way: true };
        }
        let bytes = vec![0; (piece.end - piece.start) as usize];
        self.transfer_notes(source, bytes.into(), CopyTag { attempt, at: from, is_read: true }, now);
    }

    fn transfer_notes(&mut self, node: usize, buffer: Buffer, tag: CopyTag, now: Nanos) {
        let grant = self.noting.as_ref().and_then(|noting| noting.grant(node));
        let (Some(grant), Some(session)) = (grant, self.donors[node].session()) else {
            return self.copy_failed(tag, now);
        };
        let direction = if tag.is_read { Direction::Read } else { Direction::Write };
        let request = Transfer { direction, grant, offset: tag.at, buffer, context: Tag::Copy(node, tag) };
        if let Err(refused) = session.submit(request) {
            self.link_down(node, refused.why.to_string(), now);
            self.copy_failed(tag, now);
        }
    }

    /// Handles a chunk that was read from a member, or written to the joining node.
    pub(super) fn copied(&mut self, tag: CopyTag, bytes: Option<Vec<u8>>, now: Nanos) {
        let Some(newcomer) = self.noting.as_mut().and_then(|noting| noting.newcomer.as_mut()) else { return };
        if newcomer.attempt != tag.attempt {
            return;
        }
        let node = newcomer.node;
        if tag.is_read {
            let bytes = bytes.unwrap_or_default();
            return self.transfer_notes(node, bytes.into(), CopyTag { is_read: false, ..tag }, now);
        }
        newcomer.step = Step::Copying { from: tag.at + PIECE_BYTES as u64, is_under_way: false };
        let held = std::mem::take(&mut newcomer.held);
        self.note_held(held, now);
        self.copy_notes(now);
    }

    /// Handles a failed transfer of a chunk: the node joins again from the beginning.
    pub(super) fn copy_failed(&mut self, tag: CopyTag, now: Nanos) {
        let newcomer = self.noting.as_ref().and_then(|noting| noting.newcomer.as_ref());
        if let Some(node) = newcomer.filter(|it| it.attempt == tag.attempt).map(|newcomer| newcomer.node) {
            self.link_down(node, "notes could not be copied to it".to_owned(), now);
        }
    }

    /// Ends the joining of a node that is a member of the view that just took effect.
    pub(super) fn newcomer_marked(&mut self) {
        let Some(noting) = &mut self.noting else { return };
        let members: Vec<usize> = noting.members().collect();
        if let Some(newcomer) = noting.newcomer.take_if(|newcomer| members.contains(&newcomer.node)) {
            let donor = &mut self.donors[newcomer.node];
            tracing::info!(node = donor.address, "a node was taken into the volume");
            (donor.is_out, donor.problem) = (false, None);
            self.is_placement_new = true;
        }
    }
}
