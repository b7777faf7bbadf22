//! The client's end of a connection: its queue pair, its slots, and the encoding of messages in them.

use std::sync::Arc;

use farcall_link::bootstrap::Welcome;
use farcall_link::{Connection, LocalSlice, PostRefused, Region, RegionId, Remote, Ticket};

use super::datagrams::DatagramResponses;
use crate::inbox::Inbox;
use crate::wire::{
    COMPACT_HEADER_BYTES, FirstWord, Form, RESPONSE_HEADER_BYTES, RequestHeader, ResponseFlags,
    ResponseHeader, Seq, Slots, TAIL_BYTES, TailKey,
};

/// The client's end of the open connection.
pub struct ClientConnection {
    pub(super) connection: Connection,
    pub(super) inbox: Inbox,
    /// Source of the responses, if they arrive as datagrams.
    pub(super) datagram_responses: Option<DatagramResponses>,
    /// Requests are composed here, and READs are stored here.
    pub(super) local: Arc<Region>,
    pub(super) local_id: RegionId,
    /// The server may WRITE here, and its SENDs are stored here.
    pub(super) replies: Arc<Region>,
    pub(super) welcome: Welcome,
    pub(super) tail_key: TailKey,
    pub(super) checksum: bool,
    /// `true` if the server accepts requests of compact form.
    pub(super) compact: bool,
    /// `true` if the server announces deferred answers.
    pub(super) server_notifies: bool,
    pub(super) requests: Slots,
    pub(super) responses: Slots,
    /// Offset, in the local region, of the slots that READs fill.
    pub(super) fetch_base: usize,
}

/// Memory that a response is read from.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// The slots that READs fill.
    Fetched,
    /// The slots that the server writes.
    Written,
    /// A receive slot in the same memory, filled by a SEND.
    Sent {
        /// Offset of the response.
        at: usize,
    },
}

/// Result of checking a response slot.
pub(super) enum ResponseCheck {
    /// The response has not arrived, or is incomplete.
    NotReady {
        /// `true` if the server's sleep flag is set.
        server_sleeps: bool,
    },
    /// The response has arrived, but exceeds the fetched bytes: this many bytes are needed.
    Longer(usize),
    /// The response is complete.
    Complete(ResponseHeader),
    /// The tail matches, but the checksum does not: the response is not completely placed yet, or corrupt.
    Corrupt,
    /// The slot contains no valid response.
    Invalid(String),
}

impl ClientConnection {
    /// WRITEs the message that was composed in its slot to the server's mailbox.
    ///
    /// # Errors
    /// Returns an error if the WRITE cannot be posted.
    #[inline]
    pub(crate) fn write_request(&mut self, message: FirstWord) -> Result<Ticket, PostRefused> {
        let piece = self.seal(message);
        let to = Remote { grant: &self.welcome.grants.messages, offset: piece.offset };
        self.connection.write(piece, to)
    }

    /// Announces a written message by the client's byte, if it has one: writes the low byte of the message's number, from
    /// the start of the message. Returns the ticket of the later WRITE.
    ///
    /// # Errors
    /// Returns an error if the WRITE cannot be posted.
    #[inline]
    pub(crate) fn announce_request(&mut self, seq: Seq, written: Ticket) -> Result<Ticket, PostRefused> {
        let Some(byte) = &self.welcome.mailbox_byte else { return Ok(written) };
        let piece = LocalSlice { region: self.local_id, offset: self.requests.offset(seq), len_bytes: 1 };
        let announced = self.connection.write(piece, Remote { grant: byte, offset: 0 })?;
        Ok(written.max(announced))
    }

    /// SENDs the message that was composed in its slot.
    ///
    /// # Errors
    /// Returns an error if the SEND cannot be posted.
    #[inline]
    pub(crate) fn send_request(&mut self, message: FirstWord) -> Result<Ticket, PostRefused> {
        let piece = self.seal(message);
        self.connection.send(piece)
    }

    /// Sends the message that was composed in its slot as a datagram.
    ///
    /// # Errors
    /// Returns an error if the SEND cannot be posted.
    #[inline]
    pub(crate) fn send_request_datagram(&mut self, message: FirstWord) -> Result<Ticket, PostRefused> {
        let piece = self.seal(message);
        self.connection.send_datagram(piece)
    }

    /// Completes the message that was composed in its slot with its checksum and its tail. Returns its location in the
    /// local region.
    #[inline]
    fn seal(&self, message: FirstWord) -> LocalSlice {
        let (at, len_bytes) = (self.requests.offset(message.seq), message.request_bytes());
        if self.checksum {
            self.store_checksum(at, message);
        }
        self.local.store_relaxed(at + len_bytes - TAIL_BYTES, self.tail_key.tail(message.seq));
        LocalSlice { region: self.local_id, offset: at, len_bytes }
    }

    /// Returns the words in front of a message's payload.
    pub(super) fn header_words(&self, at: usize, message: FirstWord) -> [u64; 6] {
        let mut words = [0u64; 6];
        for (i, word) in words.iter_mut().enumerate().take(message.form.request_words()) {
            *word = self.local.load_relaxed(at + 8 * i);
        }
        words
    }

    #[cold]
    fn store_checksum(&self, at: usize, message: FirstWord) {
        let words = RequestHeader::checked_words(&self.header_words(at, message));
        let (payload_at, payload_bytes) = (at + message.request_header_bytes(), message.len_bytes as usize);
        let crc = self.tail_key.checksum_in(&words, &self.local, payload_at, payload_bytes);
        self.store_words(at, message.form, &RequestHeader::with_crc(&words, crc));
    }

    /// Stores a header in the slot of its message.
    #[inline]
    pub(super) fn store_header(&self, at: usize, header: &RequestHeader) {
        self.store_words(at, header.form, &header.encode());
    }

    #[inline]
    fn store_words(&self, at: usize, form: Form, words: &[u64; 6]) {
        let store = |(i, word): (usize, &u64)| self.local.store_relaxed(at + 8 * i, *word);
        match form {
            Form::Full => words.iter().enumerate().for_each(store),
            Form::Compact => words[..COMPACT_HEADER_BYTES / 8].iter().enumerate().for_each(store),
        }
    }

    /// READs bytes of the server's responses, from `offset` on, to the same offset of the slots that READs fill. `tag`
    /// is that of the completion.
    ///
    /// # Errors
    /// Returns an error if the READ cannot be posted.
    #[inline]
    pub(super) fn read_responses(
        &mut self,
        offset: usize,
        len_bytes: usize,
        tag: u32,
    ) -> Result<Ticket, PostRefused> {
        let piece = LocalSlice { region: self.local_id, offset: self.fetch_base + offset, len_bytes };
        self.connection.read(piece, Remote { grant: &self.welcome.grants.results, offset }, tag)
    }

    /// Checks a response slot. Reads each word once before it is checked.
    #[inline]
    pub(super) fn check(&self, seq: Seq, source: Source, bytes_there: usize) -> ResponseCheck {
        let slots = &self.responses;
        let (region, at) = self.memory_of(seq, source);
        let first_word = region.load_acquire(at);
        let word1 = region.load_relaxed(at + 8);
        let not_yet = ResponseCheck::NotReady { server_sleeps: word1 & ResponseHeader::SLEEPING_BIT != 0 };
        let Some(first) = FirstWord::decode(first_word).filter(|first| first.seq == seq) else {
            return not_yet;
        };
        let len_bytes = first.len_bytes as usize;
        if len_bytes > slots.capacity() {
            return ResponseCheck::Invalid(format!("{len_bytes} bytes in a slot for {}", slots.capacity()));
        }
        let tail_at = slots.tail_at(len_bytes);
        if tail_at + TAIL_BYTES > bytes_there {
            return ResponseCheck::Longer(tail_at + TAIL_BYTES);
        }
        if region.load_acquire(at + tail_at) != self.tail_key.tail(seq) {
            return not_yet;
        }
        let words = [first_word, region.load_relaxed(at + 8), region.load_relaxed(at + 16)];
        match ResponseHeader::decode(&words) {
            // Without ordered placement, only the checksum shows whether the header words have been placed.
            Err(_) if self.checksum => ResponseCheck::Corrupt,
            Ok(header) if self.checksum && !checksum_matches(self.tail_key, &words, &header, region, at) => {
                ResponseCheck::Corrupt
            }
            Ok(header) => ResponseCheck::Complete(header),
            Err(why) => ResponseCheck::Invalid(why.to_string()),
        }
    }

    /// Appends the payload of a response to `out`.
    #[inline]
    pub(super) fn append_payload(
        &self,
        seq: Seq,
        header: &ResponseHeader,
        source: Source,
        out: &mut Vec<u8>,
    ) {
        let (region, at) = self.memory_of(seq, source);
        region.append_to(at + RESPONSE_HEADER_BYTES, header.len_bytes as usize, out);
    }

    /// Returns the region that holds a response, and its offset.
    #[inline]
    fn memory_of(&self, seq: Seq, source: Source) -> (&Region, usize) {
        match source {
            Source::Fetched => (&self.local, self.fetch_base + self.responses.offset(seq)),
            Source::Written => (&self.replies, self.responses.offset(seq)),
            Source::Sent { at } => (&self.replies, at),
        }
    }
}

#[cold]
fn checksum_matches(
    key: TailKey,
    words: &[u64; 3],
    header: &ResponseHeader,
    region: &Region,
    at: usize,
) -> bool {
    let len_bytes = header.len_bytes as usize;
    let crc = || {
        key.checksum_in(&ResponseHeader::checked_words(words), region, at + RESPONSE_HEADER_BYTES, len_bytes)
    };
    header.flags.contains(ResponseFlags::CHECKSUM) && header.crc == crc()
}
