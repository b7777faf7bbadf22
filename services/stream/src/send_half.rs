//! The sending side: WRITEs of bytes into the peer's ring and of the control words next to it.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use farcall_link::{
    Connection, LocalSlice, Operation, PostRefused, Region, RegionId, Remote, RemoteRegion, Ticket,
    WorkRequest,
};

use crate::receive_ring::OFFER_WORDS;
use crate::ring::Ring;
use crate::send_ring::SendRing;
use crate::waking::WakeSender;
use crate::words::{END, IMM_OFFER, OFFER, WRITTEN, WakeAck, imm_of};

/// Maximum number of outstanding sends of a stream.
pub(crate) const SEND_DEPTH: u32 = 128;
/// Number of send-queue entries reserved for control words.
const FOR_WORDS: u32 = 16;
/// Maximum length of a single WRITE in bytes: the peer reads one segment while the next is copied.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// Inline limit in bytes for devices that reserve memory for inline data in each request.
const SHORT_BYTES: u32 = 256;
/// Length in bytes of the area in which control words are composed: one slot per send that can be outstanding. It is
/// the beginning of the local region; the send ring follows.
const WORD_PLACES_BYTES: usize = 8 * SEND_DEPTH as usize;
/// Offset of the send ring in the local region: the slots of control words and of one offer. A second offer is not
/// sent before the peer has replied to the first.
pub(crate) const COMPOSED_BYTES: usize = WORD_PLACES_BYTES + 8 * OFFER_WORDS;

/// Returns the inline limit to request in bytes. If the device accepts complete segments (it copies them during the
/// post), all segments are sent inline and need no space in the send ring.
pub(crate) const fn inline_bytes(device_max_bytes: u32) -> u32 {
    if device_max_bytes as usize >= PIECE_BYTES_MAX { PIECE_BYTES_MAX as u32 } else { SHORT_BYTES }
}

pub(crate) struct SendHalf {
    local: Arc<Region>,
    local_id: RegionId,
    send_ring: SendRing,
    next_word: usize,
    words: RemoteRegion,
    grant: RemoteRegion,
    ring: Ring,
    pub wake_sender: WakeSender,
    /// `true` if the peer can receive. A server waits for the first control word of its client.
    pub is_ready: bool,
    /// Number of bytes posted.
    pub written: u64,
    /// Number of bytes that the peer is known to have read.
    pub consumed: u64,
    /// Position from which on the new ring is written, until it has been sent to the peer; no bytes are written before
    /// that.
    pub turn: Option<WakeAck>,
    /// `true` once the application has ended the stream.
    pub is_finished: bool,
    /// The WRITE of [`END`], once it is posted.
    end: Option<Ticket>,
}

impl SendHalf {
    pub fn new(
        local: Arc<Region>,
        local_id: RegionId,
        words: RemoteRegion,
        grant: RemoteRegion,
        wake_sender: WakeSender,
        is_ready: bool,
    ) -> Self {
        let send_ring = SendRing::new(local.len_bytes() - COMPOSED_BYTES, SEND_DEPTH as usize);
        let ring = Ring { base: 0, len_bytes: grant.len_bytes };
        Self {
            local,
            local_id,
            send_ring,
            next_word: 0,
            words,
            grant,
            ring,
            wake_sender,
            is_ready,
            written: 0,
            consumed: 0,
            turn: None,
            is_finished: false,
            end: None,
        }
    }

    /// Returns the number of bytes that the peer's ring and the send queue have space for.
    #[inline]
    pub fn room(&self, connection: &Connection) -> u64 {
        let is_held = !self.is_ready || self.is_finished || self.turn.is_some();
        if is_held || !self.wake_sender.may_send() || connection.room() < FOR_WORDS {
            return 0;
        }
        self.ring.free(self.written, self.consumed)
    }

    /// Returns offset and length of the next segment in the peer's ring, of at most `most` bytes.
    #[inline]
    fn target(&self, connection: &Connection, most: usize) -> (usize, usize) {
        let room = self.room(connection).min(most.min(PIECE_BYTES_MAX) as u64);
        if room == 0 { (0, 0) } else { self.ring.contiguous(self.written, room) }
    }

    /// Returns offset and length in the local region where up to `most` of the next bytes can be composed.
    #[inline]
    pub fn reserve(&mut self, connection: &Connection, most: usize) -> (usize, usize) {
        let (_, together) = self.target(connection, most);
        if together == 0 {
            return (COMPOSED_BYTES, 0);
        }
        self.send_ring.reclaim(|ticket| connection.is_done(ticket));
        let (at, len) = self.send_ring.reserve(together);
        (COMPOSED_BYTES + at, len)
    }

    /// Returns the region to which the offsets of [`SendHalf::reserve`] refer.
    pub fn local(&self) -> &Arc<Region> {
        &self.local
    }

    /// Sends the first `len_bytes` bytes of the space that [`SendHalf::reserve`] returned.
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
        let from = LocalSlice { region: self.local_id, offset: at, len_bytes };
        let to = Remote { grant: &self.grant, offset: self.ring.offset(self.written) };
        let ticket = connection.write(from, to)?;
        self.send_ring.used(len_bytes, ticket);
        self.written += len_bytes as u64;
        self.write_word(connection, WRITTEN, self.written)
    }

    /// Sends as many of `bytes` as there is space for. Returns their number.
    #[inline]
    pub fn put(&mut self, connection: &mut Connection, bytes: &[u8]) -> Result<usize, PostRefused> {
        let mut done = 0;
        while done < bytes.len() {
            let sent = self.put_segment(connection, &bytes[done..])?;
            if sent == 0 {
                break;
            }
            done += sent;
        }
        Ok(done)
    }

    /// Sends up to one segment. Returns its length.
    #[inline]
    fn put_segment(&mut self, connection: &mut Connection, bytes: &[u8]) -> Result<usize, PostRefused> {
        let (offset, len) = self.target(connection, bytes.len());
        if len == 0 || len > connection.inline_max_bytes() as usize {
            let (at, len) = self.reserve(connection, len);
            self.local.copy_in(at, &bytes[..len]);
            self.send(connection, at, len)?;
            return Ok(len);
        }
        connection.write_bytes(&bytes[..len], Remote { grant: &self.grant, offset })?;
        self.written += len as u64;
        self.write_word(connection, WRITTEN, self.written)?;
        Ok(len)
    }

    /// WRITEs a control word, as a wake-up if the peer has requested wake-ups.
    #[inline]
    pub fn write_word(
        &mut self,
        connection: &mut Connection,
        word: usize,
        value: u64,
    ) -> Result<(), PostRefused> {
        let from = self.compose(value);
        let to = Remote { grant: &self.words, offset: word };
        if self.wake_sender.wakes() {
            connection.write_imm(from, to, imm_of(self.written))?;
            self.wake_sender.sent += 1;
        } else {
            connection.write(from, to)?;
        }
        Ok(())
    }

    /// Sends the end of the stream. The completion of its WRITE shows that all earlier bytes have arrived.
    pub fn send_end(&mut self, connection: &mut Connection) -> Result<(), PostRefused> {
        let from = self.compose(self.written + 1);
        let imm = self.wake_sender.wakes().then(|| imm_of(self.written));
        let request = WorkRequest {
            operation: Operation::Write(Remote { grant: &self.words, offset: END }),
            local: &[from],
            imm,
            is_signalled: true,
        };
        self.end = Some(connection.post(&request, 0)?);
        self.wake_sender.sent += u64::from(imm.is_some());
        Ok(())
    }

    /// Offers a ring to the peer. The offer is always a wake-up: the peer reads the words of the offer only after its
    /// immediate data.
    pub fn send_offer(
        &mut self,
        connection: &mut Connection,
        offer: [u64; OFFER_WORDS],
    ) -> Result<(), PostRefused> {
        for (at, word) in offer.into_iter().enumerate() {
            self.local.store_relaxed(WORD_PLACES_BYTES + 8 * at, word);
        }
        let from =
            LocalSlice { region: self.local_id, offset: WORD_PLACES_BYTES, len_bytes: 8 * OFFER_WORDS };
        let to = Remote { grant: &self.words, offset: OFFER };
        connection.write_imm(from, to, imm_of(self.written) | IMM_OFFER)?;
        self.wake_sender.sent += 1;
        Ok(())
    }

    /// Directs further bytes into another ring of the peer, and into a new send ring `local` if there is one.
    pub fn switch_to(
        &mut self,
        connection: &mut Connection,
        number: u16,
        grant: RemoteRegion,
        local: Option<Arc<Region>>,
    ) {
        if let Some(local) = local {
            // The connection keeps the region registered until the outstanding WRITEs from it complete.
            connection.detach(self.local_id);
            self.local_id = connection.attach(Arc::clone(&local));
            self.send_ring = SendRing::new(local.len_bytes() - COMPOSED_BYTES, SEND_DEPTH as usize);
            self.local = local;
        }
        self.grant = grant;
        self.ring = Ring { base: self.written, len_bytes: grant.len_bytes };
        self.turn = Some(WakeAck { number, from: self.written });
    }

    fn compose(&mut self, value: u64) -> LocalSlice {
        // There is a slot for each send that can be outstanding, so this slot is free.
        let place = self.next_word;
        self.next_word = (place + 8) % WORD_PLACES_BYTES;
        self.local.store_relaxed(place, value);
        // Orders the reads of the ring before the WRITE of the credit, which permits the peer to overwrite the ring.
        fence(Ordering::Release);
        LocalSlice { region: self.local_id, offset: place, len_bytes: 8 }
    }

    /// Returns whether the end of the stream was sent.
    pub const fn end_sent(&self) -> bool {
        self.end.is_some()
    }

    /// Returns whether the stream has ended and all its bytes are known to have arrived.
    pub fn is_complete(&self, connection: &Connection) -> bool {
        self.end.is_some_and(|end| connection.is_done(end))
    }
}
