//! The sending side: bytes into the peer's ring, words beside it.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use farcall_link::{
    Connection, Operation, Piece, PostRefused, Region, RegionId, Remote, RemoteRegion, Ticket, WorkRequest,
};

use crate::receive_ring::OFFER_WORDS;
use crate::ring::Ring;
use crate::staging::Staging;
use crate::waking::Waker;
use crate::words::{END, IMM_OFFER, OFFER, Promise, WRITTEN, imm_of};

/// Sends that a stream may have outstanding.
pub(crate) const SEND_DEPTH: u32 = 128;
/// Bytes leave so many places in the send queue to words.
const FOR_WORDS: u32 = 16;
/// The longest single WRITE: the peer reads one piece while the next is copied.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// What goes inline where that costs a device memory for each request.
const SHORT_BYTES: u32 = 256;
/// Where, in our own memory, words are composed: one place for each send that can be outstanding, then the send ring.
const WORD_PLACES_BYTES: usize = 8 * SEND_DEPTH as usize;
/// Of those, and of one offer: no second one is said before the peer has answered.
pub(crate) const COMPOSED_BYTES: usize = WORD_PLACES_BYTES + 8 * OFFER_WORDS;

/// Bytes that go inline: whole pieces where the device takes them, as one that copies them while they are posted does.
/// They need no place in the send ring then.
pub(crate) const fn inline_bytes(device_max_bytes: u32) -> u32 {
    if device_max_bytes as usize >= PIECE_BYTES_MAX { PIECE_BYTES_MAX as u32 } else { SHORT_BYTES }
}

pub(crate) struct Outlet {
    local: Arc<Region>,
    local_id: RegionId,
    staging: Staging,
    next_word: usize,
    words: RemoteRegion,
    grant: RemoteRegion,
    ring: Ring,
    pub waker: Waker,
    /// Whether the peer takes what is sent. A server waits for the first word of its client.
    pub is_ready: bool,
    /// Posted.
    pub written: u64,
    /// Of that, read by the peer as far as is known.
    pub consumed: u64,
    /// From which byte on the ring is written, if the peer is still to be told; until then nothing more is written.
    pub turn: Option<Promise>,
    /// Whether nothing more is written.
    pub is_finished: bool,
    /// The WRITE that told the peer so.
    end: Option<Ticket>,
}

impl Outlet {
    pub fn new(
        local: Arc<Region>,
        local_id: RegionId,
        words: RemoteRegion,
        grant: RemoteRegion,
        waker: Waker,
        is_ready: bool,
    ) -> Self {
        let staging = Staging::new(local.len_bytes() - COMPOSED_BYTES, SEND_DEPTH as usize);
        let ring = Ring { base: 0, len_bytes: grant.len_bytes };
        Self {
            local,
            local_id,
            staging,
            next_word: 0,
            words,
            grant,
            ring,
            waker,
            is_ready,
            written: 0,
            consumed: 0,
            turn: None,
            is_finished: false,
            end: None,
        }
    }

    /// How many bytes may be written now, as far as the peer and the send queue are concerned.
    #[inline]
    pub fn room(&self, connection: &Connection) -> u64 {
        let is_held = !self.is_ready || self.is_finished || self.turn.is_some();
        if is_held || !self.waker.may_send() || connection.room() < FOR_WORDS {
            return 0;
        }
        self.ring.free(self.written, self.consumed)
    }

    /// Where in the peer's ring the next piece goes, of at most `most` bytes: offset, length.
    #[inline]
    fn target(&self, connection: &Connection, most: usize) -> (usize, usize) {
        let room = self.room(connection).min(most.min(PIECE_BYTES_MAX) as u64);
        if room == 0 { (0, 0) } else { self.ring.together(self.written, room) }
    }

    /// Where the next bytes are to be composed in our own memory, at most `most`: offset, length.
    #[inline]
    pub fn place(&mut self, connection: &Connection, most: usize) -> (usize, usize) {
        let (_, together) = self.target(connection, most);
        if together == 0 {
            return (COMPOSED_BYTES, 0);
        }
        self.staging.reclaim(|ticket| connection.is_done(ticket));
        let (at, len) = self.staging.place(together);
        (COMPOSED_BYTES + at, len)
    }

    /// The memory that [`Outlet::place`] is about.
    pub fn local(&self) -> &Arc<Region> {
        &self.local
    }

    /// Sends the first bytes of the place.
    #[inline]
    pub fn send(
        &mut self,
        connection: &mut Connection,
        at: usize,
        len_bytes: usize,
    ) -> Result<(), PostRefused> {
        if len_bytes == 0 {
            return Ok(());
        }
        let from = Piece { region: self.local_id, offset: at, len_bytes };
        let to = Remote { grant: &self.grant, offset: self.ring.offset(self.written) };
        let ticket = connection.write(from, to)?;
        self.staging.used(len_bytes, ticket);
        self.written += len_bytes as u64;
        self.say(connection, WRITTEN, self.written)
    }

    /// Sends as many bytes as there is room for.
    #[inline]
    pub fn put(&mut self, connection: &mut Connection, bytes: &[u8]) -> Result<usize, PostRefused> {
        let mut done = 0;
        while done < bytes.len() {
            let sent = self.put_piece(connection, &bytes[done..])?;
            if sent == 0 {
                break;
            }
            done += sent;
        }
        Ok(done)
    }

    /// Sends as many bytes as one piece has room for.
    #[inline]
    fn put_piece(&mut self, connection: &mut Connection, bytes: &[u8]) -> Result<usize, PostRefused> {
        let (offset, len) = self.target(connection, bytes.len());
        if len == 0 || len > connection.inline_max_bytes() as usize {
            let (at, len) = self.place(connection, len);
            self.local.copy_in(at, &bytes[..len]);
            self.send(connection, at, len)?;
            return Ok(len);
        }
        connection.write_bytes(&bytes[..len], Remote { grant: &self.grant, offset })?;
        self.written += len as u64;
        self.say(connection, WRITTEN, self.written)?;
        Ok(len)
    }

    /// WRITEs a word, with a wake-up if the peer wants one.
    #[inline]
    pub fn say(&mut self, connection: &mut Connection, word: usize, value: u64) -> Result<(), PostRefused> {
        let from = self.compose(value);
        let to = Remote { grant: &self.words, offset: word };
        if self.waker.wakes() {
            connection.write_imm(from, to, imm_of(self.written))?;
            self.waker.sent += 1;
        } else {
            connection.write(from, to)?;
        }
        Ok(())
    }

    /// Says that nothing more comes. The completion of that WRITE shows that all before it arrived, too.
    pub fn say_end(&mut self, connection: &mut Connection) -> Result<(), PostRefused> {
        let from = self.compose(self.written + 1);
        let imm = self.waker.wakes().then(|| imm_of(self.written));
        let request = WorkRequest {
            operation: Operation::Write(Remote { grant: &self.words, offset: END }),
            local: &[from],
            imm,
            is_signalled: true,
        };
        self.end = Some(connection.post(&request, 0)?);
        self.waker.sent += u64::from(imm.is_some());
        Ok(())
    }

    /// Offers a ring to the peer, which is woken in any case: only then may it read that.
    pub fn say_offer(
        &mut self,
        connection: &mut Connection,
        offer: [u64; OFFER_WORDS],
    ) -> Result<(), PostRefused> {
        for (at, word) in offer.into_iter().enumerate() {
            self.local.store_relaxed(WORD_PLACES_BYTES + 8 * at, word);
        }
        let from = Piece { region: self.local_id, offset: WORD_PLACES_BYTES, len_bytes: 8 * OFFER_WORDS };
        let to = Remote { grant: &self.words, offset: OFFER };
        connection.write_imm(from, to, imm_of(self.written) | IMM_OFFER)?;
        self.waker.sent += 1;
        Ok(())
    }

    /// What is written from now on goes into another ring, from other memory of our own if there is any.
    pub fn turn_to(
        &mut self,
        connection: &mut Connection,
        number: u16,
        grant: RemoteRegion,
        local: Option<Arc<Region>>,
    ) {
        if let Some(local) = local {
            // It is kept as long as WRITEs from it are under way.
            connection.detach(self.local_id);
            self.local_id = connection.attach(Arc::clone(&local));
            self.staging = Staging::new(local.len_bytes() - COMPOSED_BYTES, SEND_DEPTH as usize);
            self.local = local;
        }
        self.grant = grant;
        self.ring = Ring { base: self.written, len_bytes: grant.len_bytes };
        self.turn = Some(Promise { number, from: self.written });
    }

    fn compose(&mut self, value: u64) -> Piece {
        // There is a place for each send that can be outstanding, so this one is free.
        let place = self.next_word;
        self.next_word = (place + 8) % WORD_PLACES_BYTES;
        self.local.store_relaxed(place, value);
        // What was read from the ring was read before the peer learns that it may overwrite it.
        fence(Ordering::Release);
        Piece { region: self.local_id, offset: place, len_bytes: 8 }
    }

    /// Whether the peer was told that nothing more comes.
    pub const fn has_said_end(&self) -> bool {
        self.end.is_some()
    }

    /// Whether all that will ever be written is known to have arrived.
    pub fn is_complete(&self, connection: &Connection) -> bool {
        self.end.is_some_and(|end| connection.is_done(end))
    }
}
