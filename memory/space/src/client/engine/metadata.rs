//! Replication of the volume metadata. A metadata write is sent to all members and is committed when all of them have
//! it.
//!
//! A member that is unreachable for too long is removed by a new view ([`Mark`]). When it replies again, it joins like
//! a new node (`joining_node.rs`). A client that has too few members left is *fenced*: another client may hold the
//! volume.

use std::collections::BTreeMap;
use std::ops::Range;

use farcall_io::{Buffer, Direction, Request};
use farcall_link::RemoteRegion;
use farcall_verbs::Nanos;

use super::joining_node::Newcomer;
use super::members::Marks;
use super::operation::Operation;
use super::{Engine, Tag};
use crate::client::config::{IoError, Refused, VolumeConfig};
use crate::client::extent::{Home, Replica};
use crate::client::history::History;
use crate::client::node_client::Call;
use crate::client::volume_metadata::{Entry, Layout, Placed, PlacedReplica};
use crate::wire::{Mark, Request as Asked};

/// Length in bytes of the chunks in which metadata is sent to a node.
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// Maximum number of chunks of user metadata in progress.
pub(super) const PIECES_MAX: usize = 256;

/// Action when a metadata write is committed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    /// The operation may store its page.
    Intent { operation: u32 },
    /// The run may store its pages.
    Run { run: u32 },
    /// A chunk of a placement is committed.
    Placement,
    /// A chunk of a user metadata write is committed.
    User { token: u64 },
}

struct NoteWrite {
    at: u64,
    bytes: Vec<u8>,
    /// Nodes that do not have it yet.
    left: Vec<usize>,
    then: Then,
}

/// A node's copy of the metadata.
pub(super) struct Copy {
    /// Identifier of the node within the volume.
    pub node: u64,
    pub region: RemoteRegion,
    /// Number of the region in the open session; `None` if there is none.
    pub grant: Option<u32>,
}

pub(super) struct Noting {
    volume: VolumeConfig,
    layout: Layout,
    /// Copies by index of the node; `None` for a node without one.
    copies: Vec<Option<Copy>>,
    pub(super) marks: Marks,
    /// The node that is joining.
    pub(super) newcomer: Option<Newcomer>,
    /// Number of attempts to add a node so far.
    pub(super) attempts: u32,
    writes: BTreeMap<u32, NoteWrite>,
    last_write: u32,
    generation: u64,
    /// Number of chunks of a placement in progress.
    placing: usize,
    /// Operations that wait until the placement is committed.
    waiting: Vec<u32>,
    /// Number of chunks left of each user metadata write, by token.
    asked: BTreeMap<u64, usize>,
    is_fenced: bool,
}

impl Noting {
    pub(super) const fn is_read_only(&self) -> bool {
        self.volume.is_read_only
    }

    pub(super) const fn history(&self) -> &History {
        &self.volume.history
    }

    pub const fn new(
        volume: VolumeConfig,
        layout: Layout,
        copies: Vec<Option<Copy>>,
        mark: Mark,
        generation: u64,
    ) -> Self {
        Self {
            volume,
            layout,
            copies,
            marks: Marks::new(mark),
            newcomer: None,
            attempts: 0,
            writes: BTreeMap::new(),
            last_write: 0,
            generation,
            placing: 0,
            waiting: Vec::new(),
            asked: BTreeMap::new(),
            is_fenced: false,
        }
    }

    /// Adds a node that is not part of the volume.
    pub fn add_stranger(&mut self) {
        self.copies.push(None);
    }

    pub(super) const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) const fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// Returns the message of a call to a joining node.
    pub(super) fn request(&self, call: Call, name: &str) -> Option<Asked> {
        match call {
            Call::Look => Some(self.volume.look()),
            Call::Claim { id } => Some(self.volume.claim(name, self.marks.now().epoch, id, &self.layout)),
            _ => None,
        }
    }

    /// Sets the copy of a node.
    pub(super) fn set_copy(&mut self, at: usize, copy: Copy) {
        self.copies[at] = Some(copy);
    }

    /// Returns the number of a node's copy in the session with it.
    pub(super) fn grant(&self, at: usize) -> Option<u32> {
        self.copies[at].as_ref()?.grant
    }

    /// Returns whether a write in progress overlaps the chunk.
    pub(super) fn is_noted_at(&self, piece: &Range<u64>) -> bool {
        let overlaps =
            |write: &NoteWrite| write.at < piece.end && piece.start < write.at + write.bytes.len() as u64;
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
        let members = &self.marks.now().members;
        (0..self.copies.len()).filter(|at| self.id(*at).is_some_and(|id| members.contains(&id)))
    }

    /// Stops waiting for nodes that are neither members nor joining. Returns the writes that are committed by that.
    pub(super) fn wait_for_members_only(&mut self) -> Vec<u32> {
        let newcomer = self.newcomer.as_ref().map(Newcomer::node);
        let awaited: Vec<usize> = self.members().chain(newcomer).collect();
        let mut over = Vec::new();
        for (serial, write) in &mut self.writes {
            write.left.retain(|at| awaited.contains(at));
            over.extend(write.left.is_empty().then_some(*serial));
        }
        over
    }
}

impl Engine {
    /// Returns whether this client has permanently lost the volume.
    pub fn is_fenced(&self) -> bool {
        self.noting.as_ref().is_some_and(|noting| noting.is_fenced)
    }

    /// Returns whether the placement on which completed requests depend is committed.
    pub(super) fn is_placement_noted(&self) -> bool {
        let is_noted = |noting: &Noting| noting.placing == 0 && !self.is_placement_new;
        self.noting.as_ref().is_none_or(|noting| noting.is_read_only() || is_noted(noting))
    }

    /// Returns whether the placement must not change (read-only mounts): replicas of absent nodes count again when
    /// these return.
    pub(super) fn is_placement_fixed(&self) -> bool {
        self.noting.as_ref().is_some_and(Noting::is_read_only)
    }

    pub(super) fn note(&mut self, at: u64, bytes: Vec<u8>, then: Then, now: Nanos) {
        let Some(noting) = &mut self.noting else { return };
        let newcomer = noting.newcomer.as_mut();
        let (takes, held) = match newcomer {
            Some(newcomer) => (newcomer.takes(at), newcomer.hold(at, bytes, then)),
            None => (None, Some((bytes, then))),
        };
        let Some((bytes, then)) = held else { return };
        noting.last_write = noting.last_write.wrapping_add(1);
        let (serial, left) = (noting.last_write, noting.members().chain(takes).collect::<Vec<_>>());
        noting.writes.insert(serial, NoteWrite { at, bytes, left: left.clone(), then });
        left.into_iter().for_each(|node| self.post_note(serial, node, now));
    }

    /// Sends a write to a member if there is a session with it. It is sent again when another session is opened.
    fn post_note(&mut self, serial: u32, node: usize, now: Nanos) {
        let Some(noting) = &self.noting else { return };
        let (Some(write), Some(copy)) = (noting.writes.get(&serial), &noting.copies[node]) else { return };
        let (Some(grant), Some(session)) = (copy.grant, self.donors[node].session()) else { return };
        let request = Request {
            direction: Direction::Write,
            grant,
            offset: write.at,
            buffer: Buffer::Owned(write.bytes.clone()),
            context: Tag::Note { write: serial, node },
        };
        if let Err(refused) = session.submit(request) {
            self.link_down(node, refused.why.to_string(), now);
        }
    }

    /// Sends pending writes to a node after a session with it was opened.
    pub(super) fn notes_reached(&mut self, node: usize, now: Nanos) {
        let Some(noting) = &mut self.noting else { return };
        if let (Some(copy), Some(session)) = (&mut noting.copies[node], self.donors[node].session()) {
            copy.grant = session.grant(copy.region).ok();
        }
        let due = noting.writes.iter().filter(|(_, write)| write.left.contains(&node));
        let due: Vec<u32> = due.map(|(serial, _)| *serial).collect();
        due.into_iter().for_each(|serial| self.post_note(serial, node, now));
        self.newcomer_reached(node, now);
    }

    /// Records that the session with a node has ended.
    pub(super) fn notes_left(&mut self, node: usize) {
        if let Some(copy) = self.noting.as_mut().and_then(|noting| noting.copies[node].as_mut()) {
            copy.grant = None;
        }
    }

    /// Records that a node has a write.
    pub(super) fn noted(&mut self, serial: u32, node: usize, now: Nanos) {
        let Some(write) = self.noting.as_mut().and_then(|noting| noting.writes.get_mut(&serial)) else {
            return;
        };
        write.left.retain(|left| *left != node);
        if write.left.is_empty() {
            self.note_over(serial, now);
        }
    }

    pub(super) fn note_over(&mut self, serial: u32, now: Nanos) {
        let Some(noting) = &mut self.noting else { return };
        let Some(write) = noting.writes.remove(&serial) else { return };
        match write.then {
            Then::Intent { operation } => {
                if let Some(of) = &mut self.operations[operation as usize] {
                    of.intent_noted();
                }
                self.ready.push_back(operation);
            }
            Then::Run { run } => self.run_noted(run, now),
            Then::Placement => {
                noting.placing -= 1;
                if noting.placing == 0 {
                    self.ready.extend(noting.waiting.drain(..));
                }
            }
            Then::User { token } => {
                if let Some(left) = noting.asked.get_mut(&token) {
                    *left -= 1;
                    if *left == 0 {
                        noting.asked.remove(&token);
                        self.requests.note_ended(token, Ok(Vec::new()));
                    }
                }
            }
        }
    }

    /// Writes the entry of a page before the page is stored anywhere. Returns whether the entry is committed.
    pub(super) fn note_page(&mut self, id: u32, operation: &mut Operation, now: Nanos) -> bool {
        if self.noting.is_none() || operation.is_noted() {
            return true;
        }
        if operation.is_noting() {
            return false;
        }
        if !self.is_placement_noted() {
            // A page stored at a location that is not committed would be lost.
            if let Some(noting) = self.noting.as_mut().filter(|noting| !noting.waiting.contains(&id)) {
                noting.waiting.push(id);
            }
            return false;
        }
        let page = Self::page_of(operation);
        let (extent, at) = self.place(page);
        let (sum, generation) = (self.sum_of(operation), self.pages_of(extent).next_generation(at));
        if let Some(noting) = &self.noting {
            let (place, bytes) = noting.layout.entry(page, Entry { sum, generation });
            operation.begin_noting();
            self.note(place, bytes.to_vec(), Then::Intent { operation: id }, now);
        }
        false
    }

    /// Writes the entries of the pages of a run, with these checksums, before the pages are stored anywhere.
    pub(super) fn note_run(&mut self, run: u32, pages: Range<u64>, sums: &[u64], now: Nanos) {
        let (extent, at) = self.place(pages.start);
        self.pages_of(extent);
        let table = &self.extents[extent].pages;
        let entries = sums.iter().zip(at..).map(|(sum, at)| {
            let (held, generation) = table.entry(at);
            let now = (generation > 0).then_some(Entry { sum: held, generation });
            (now, Entry { sum: *sum, generation: table.next_generation(at) })
        });
        let Some(noting) = &self.noting else { return };
        let (place, bytes) = noting.layout.entries(pages.start, entries);
        self.note(place, bytes, Then::Run { run }, now);
    }

    /// Returns whether a changed placement must be written, and can be written now.
    pub(super) fn is_placement_due(&self) -> bool {
        self.is_placement_new
            && !self.is_placement_fixed()
            && self.noting.as_ref().is_some_and(|noting| noting.placing == 0 && !noting.is_fenced)
    }

    /// Writes the placement if it has changed.
    pub(super) fn note_placement(&mut self, now: Nanos) {
        if !self.is_placement_due() {
            return;
        }
        self.is_placement_new = false;
        let Some(noting) = &self.noting else { return };
        let generation = noting.generation + 1;
        let Some((at, bytes)) = noting.layout.placement(&self.placed(noting), generation) else {
            tracing::error!("where pages are is too long to be noted: the volume is given up");
            return self.fence(now);
        };
        let pieces: Vec<(u64, Vec<u8>)> = bytes
            .chunks(PIECE_BYTES)
            .map(<[u8]>::to_vec)
            .zip(0..)
            .map(|(piece, number)| (at + number * PIECE_BYTES as u64, piece))
            .collect();
        if let Some(noting) = &mut self.noting {
            (noting.generation, noting.placing) = (generation, pieces.len());
        }
        pieces.into_iter().for_each(|(at, piece)| self.note(at, piece, Then::Placement, now));
    }

    fn placed(&self, noting: &Noting) -> Placed {
        let in_sync = self.extents.iter().zip(0..).flat_map(|(extent, number)| {
            let replicas = extent.replicas.iter().filter(|replica| replica.is_in_sync());
            replicas.filter_map(move |replica| Some((number, replica.home_at_node()?)))
        });
        let replicas =
            in_sync.map(|(extent, (donor, slab))| PlacedReplica { extent, node: donor as u16, slab });
        Placed {
            size_bytes: self.config.size_bytes,
            slab_bytes: self.config.slab_bytes,
            last_serial: self.last_serial,
            last_slab: self.last_slab,
            nodes: noting.copies.iter().map(|copy| copy.as_ref().map_or(0, |copy| copy.node)).collect(),
            replicas: replicas.collect(),
        }
    }

    /// Accepts a write of user metadata.
    pub(super) fn submit_note(
        &mut self,
        token: u64,
        offset: u64,
        bytes: &[u8],
        now: Nanos,
    ) -> Result<(), Refused> {
        let (len_bytes, pieces) = (bytes.len(), bytes.len().div_ceil(PIECE_BYTES));
        let Some(noting) = &mut self.noting else {
            return Err(Refused::Range { offset, len_bytes, size_bytes: 0 });
        };
        let place = noting.layout.user(offset, len_bytes).filter(|_| len_bytes > 0);
        let size_bytes = noting.layout.user_bytes();
        let place = place.ok_or(Refused::Range { offset, len_bytes, size_bytes })?;
        let under_way: usize = noting.asked.values().sum();
        if under_way + pieces > PIECES_MAX {
            return Err(Refused::Full { pages: under_way, pages_max: PIECES_MAX });
        }
        if noting.is_fenced {
            self.requests.note_ended(token, Err(IoError::Fenced));
            return Ok(());
        }
        noting.asked.insert(token, pieces);
        for (piece, number) in bytes.chunks(PIECE_BYTES).zip(0..) {
            self.note(place + number * PIECE_BYTES as u64, piece.to_vec(), Then::User { token }, now);
        }
        Ok(())
    }

    /// Fences this client, since another one may hold the volume: from now on all requests fail.
    pub(super) fn fence(&mut self, now: Nanos) {
        let Some(noting) = &mut self.noting else { return };
        tracing::error!("the volume is lost to this client: too many nodes did not hear of it in time");
        noting.is_fenced = true;
        noting.newcomer = None;
        noting.writes.clear();
        noting.waiting.clear();
        for token in std::mem::take(&mut noting.asked).into_keys() {
            self.requests.note_ended(token, Err(IoError::Fenced));
        }
        for (operation, id) in self.operations.iter_mut().zip(0..) {
            if let Some(operation) = operation {
                operation.intent_noted();
                self.ready.push_back(id);
            }
        }
        self.close();
        self.end_runs_to_be_noted(now);
        for node in 0..self.donors.len() {
            self.link_down(node, "the volume is lost to this client".to_owned(), now);
        }
    }
}

impl Replica {
    /// Returns its node, and the number of its slab there.
    const fn home_at_node(&self) -> Option<(usize, u64)> {
        match self.home {
            Home::Node { donor, slab, .. } | Home::Away { donor, slab } => Some((donor, slab)),
            Home::File { .. } => None,
        }
    }
}
