//! A node that is taken into a volume that is in use: one that joined, or one that was lost and is there again.
//!
//! It is claimed as by the next mount, under the epoch of this one, and what it kept is returned. Then the notes are
//! copied to it from a member, piece by piece. Notes that are written meanwhile go to it, too, if their place is copied
//! already; those that overlap the piece under way wait. When it has all notes it becomes a member by a mark that all
//! members have. Until then nothing depends on it. One node at a time is taken in.

use std::ops::Range;

use farcall_io::{Buffer, Direction, Request as Transfer};
use farcall_verbs::Nanos;

use super::noting::{PIECE_BYTES, Then};
use super::{Engine, Tag};
use crate::client::claim::ClaimedNode;
use crate::client::donor::Call;
use crate::wire::{Kept, Reply};

/// How far it is.
#[derive(Debug)]
enum Step {
    /// It is asked for what it keeps, and then for its part.
    Claiming,
    /// A session with it is to begin.
    Claimed,
    /// It has the notes before this place; those of the piece there are under way, or waited for.
    Copying { from: u64, is_under_way: bool },
    /// Members hear of it.
    Marking,
}

/// A piece of notes on its way to a newcomer.
#[derive(Clone, Copy, Debug)]
pub(in crate::client) struct CopyTag {
    attempt: u32,
    at: u64,
    is_read: bool,
}

pub(super) struct Newcomer {
    node: usize,
    /// Pieces of an earlier one are not taken for its own.
    attempt: u32,
    step: Step,
    /// What overlaps the piece under way.
    held: Vec<(u64, Vec<u8>, Then)>,
}

impl Newcomer {
    pub const fn node(&self) -> usize {
        self.node
    }

    /// The node, if it is to be a member now.
    pub fn to_be_member(&self) -> Option<usize> {
        matches!(self.step, Step::Marking).then_some(self.node)
    }

    /// The node, if notes at a place go to it, too.
    pub fn takes(&self, at: u64) -> Option<usize> {
        match self.step {
            Step::Claiming | Step::Claimed => None,
            Step::Copying { from, .. } => (at < from).then_some(self.node),
            Step::Marking => Some(self.node),
        }
    }

    /// Keeps notes that have to wait for the piece under way. Gives others back.
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
    /// Takes the next node in that is out of the volume, and goes on with the one that is being taken in.
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
        // Each has its turn, whoever fails.
        let first = noting.attempts as usize;
        let Some(node) = (first..first + count).map(|at| at % count).find(is_due) else { return };
        noting.attempts = noting.attempts.wrapping_add(1);
        let (attempt, step, held) = (noting.attempts, Step::Claiming, Vec::new());
        noting.newcomer = Some(Newcomer { node, attempt, step, held });
        // What was asked of it before is over.
        self.donors[node].calls = [Call::Look].into();
    }

    /// A node that is to be taken in told what it keeps of the volume.
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

    /// A node has answered a claim; the volume calls it `id`.
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

    /// A node cannot be taken in now.
    pub(super) fn newcomer_failed(&mut self, node: usize, why: String, now: Nanos) {
        self.donors[node].back_off(why, now);
        self.drop_newcomer(node, now);
    }

    /// The node that was being taken in is out again, if it is this one. Its lease ends by itself, or with the next
    /// claim.
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

    /// Notes what had to wait.
    fn note_held(&mut self, held: Vec<(u64, Vec<u8>, Then)>, now: Nanos) {
        held.into_iter().for_each(|(at, bytes, then)| self.note(at, bytes, then, now));
    }

    /// A session with a node has begun.
    pub(super) fn newcomer_reached(&mut self, node: usize, now: Nanos) {
        let Some(newcomer) = self.noting.as_mut().and_then(|noting| noting.newcomer.as_mut()) else { return };
        if newcomer.node == node && matches!(newcomer.step, Step::Claimed) {
            newcomer.step = Step::Copying { from: 0, is_under_way: false };
            self.donors[node].problem = Some("it is being taken into the volume".to_owned());
            self.copy_notes(now);
        }
    }

    /// Copies the next piece of notes, once nothing that overlaps it is under way; behind the last one members hear of
    /// the newcomer.
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

    /// A piece was read from a member, or written to the newcomer.
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

    /// A piece did not arrive: the newcomer is taken in from the beginning.
    pub(super) fn copy_failed(&mut self, tag: CopyTag, now: Nanos) {
        let newcomer = self.noting.as_ref().and_then(|noting| noting.newcomer.as_ref());
        if let Some(node) = newcomer.filter(|it| it.attempt == tag.attempt).map(|newcomer| newcomer.node) {
            self.link_down(node, "notes could not be copied to it".to_owned(), now);
        }
    }

    /// All members have a mark. If the newcomer is one of them, it is none any more.
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
