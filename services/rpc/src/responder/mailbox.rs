//! Messages in the mailbox of a connection: those that the client writes or sends, and those that arrived as datagrams
//! and were copied into their slots.

use super::ServerConnection;
use super::shared_ud_qp::Datagram;
use crate::wire::{
    COMPACT_HEADER_BYTES, FirstWord, Form, REQUEST_HEADER_BYTES, RequestFlags, RequestHeader, Seq, TAIL_BYTES,
};

/// Result of handling a datagram in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceivedRequest {
    /// A request to be executed; it has been copied into its slot.
    New,
    /// A request that was executed before.
    Duplicate(Seq),
    /// Not a valid message of the session's client.
    Invalid,
}

/// Number of checks of a message with a wrong checksum before the client is informed that it is corrupt.
const CORRUPT_CHECKS_MAX: u32 = 10_000;

impl ServerConnection {
    /// Copies the next message to `message` if its slot holds it completely. First word and tail are read once each and
    /// then checked. Later changes by the client do not affect the copy.
    ///
    /// # Errors
    /// Returns a description of the violation if the message violates the protocol.
    #[inline]
    pub(crate) fn take_written(&mut self, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        let seq = self.session.expect;
        let Some(first) = FirstWord::decode(self.watch.load_acquire()) else { return Ok(None) };
        if first.seq != seq {
            return Ok(None);
        }
        self.take_at(self.session.requests.offset(seq), first, message)
    }

    /// Copies the next message to `message` if it was received by SEND. A received SEND is complete: if it is not the
    /// next message, or is truncated, it never will be.
    ///
    /// # Errors
    /// Returns a description of the violation if the message violates the protocol.
    #[inline]
    pub(crate) fn take_sent(&mut self, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        let Some(at) = self.inbox.front() else { return Ok(None) };
        let seq = self.session.expect;
        let first = FirstWord::decode(self.session.mailbox.load_acquire(at)).filter(|first| first.seq == seq);
        let header = match first {
            Some(first) => self.take_at(at, first, message)?,
            None => None,
        };
        self.dedicated_qp.iter_mut().for_each(|qp| self.inbox.repost(&mut qp.connection));
        header
            .map(Some)
            .ok_or_else(|| format!("message {}: what was sent is another one, or not whole", seq.0))
    }

    /// Copies the next message, whose first word has been read, from offset `at` of the mailbox if it is complete.
    #[inline]
    fn take_at(
        &mut self,
        at: usize,
        first: FirstWord,
        message: &mut Vec<u8>,
    ) -> Result<Option<RequestHeader>, String> {
        let session = &self.session;
        let (slots, seq) = (&session.requests, session.expect);
        let len_bytes = first.len_bytes as usize;
        if len_bytes > slots.capacity() {
            let capacity = slots.capacity();
            return Err(format!("message {} claims {len_bytes} bytes; a slot holds {capacity}", seq.0));
        }
        let tail_at = first.request_bytes() - TAIL_BYTES;
        if session.mailbox.load_acquire(at + tail_at) != session.tail_key.tail(seq) {
            return Ok(None);
        }
        message.clear();
        let header_bytes = first.request_header_bytes();
        session.mailbox.append_to(at, header_bytes + len_bytes, message);
        let mut words = words_of(message, first.form);
        // The first word has been checked; the client may have changed it before the copy.
        words[0] = first.encode();
        if self.checksum {
            return self.check_message(&words, &message[header_bytes..]);
        }
        RequestHeader::decode(&words).map(Some).map_err(|why| format!("message {}: {why}", seq.0))
    }

    /// Returns whether the next slot holds the next message, or a message has arrived by SEND.
    #[inline]
    pub(super) fn has_mail(&self) -> bool {
        // The number is in the low half; the status bit is checked when the message is read.
        self.watch.load_acquire() as u32 == self.session.expect.0 || !self.inbox.is_empty()
    }

    /// Advances to the next message.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.session.expect = self.session.expect.next();
        self.watch.move_to(self.session.requests.offset(self.session.expect));
    }

    /// Returns the header of a message if its checksum matches. With unordered placement a mismatch may mean that the
    /// message is incomplete, but only for a bounded number of checks.
    #[cold]
    fn check_message(&mut self, words: &[u64; 6], payload: &[u8]) -> Result<Option<RequestHeader>, String> {
        if let Some(header) = self.checked_header(words, payload) {
            self.corrupt_checks = 0;
            return Ok(Some(header));
        }
        if self.corrupt_checks < CORRUPT_CHECKS_MAX {
            self.corrupt_checks += 1;
            return Ok(None);
        }
        let seq = self.session.expect.0;
        Err(format!("message {seq}: its checksum did not match in {CORRUPT_CHECKS_MAX} checks"))
    }

    /// Returns the header of a message if its checksum matches.
    fn checked_header(&self, words: &[u64; 6], payload: &[u8]) -> Option<RequestHeader> {
        let header = RequestHeader::decode(words).ok()?;
        let crc = || self.session.tail_key.checksum(&RequestHeader::checked_words(words), payload);
        (header.flags.contains(RequestFlags::CHECKSUM) && header.crc == crc()).then_some(header)
    }

    /// Returns whether the checksum of a private copy of a message matches.
    #[cold]
    fn checksum_matches(&self, message: &[u8], first: FirstWord) -> bool {
        let payload = &message[first.request_header_bytes()..][..first.len_bytes as usize];
        self.checked_header(&words_of(message, first.form), payload).is_some()
    }

    /// Handles a datagram that names this session. `message` is private memory for a copy.
    #[inline]
    pub(super) fn arrived(&mut self, datagram: &Datagram<'_>, message: &mut Vec<u8>) -> ReceivedRequest {
        let Datagram { memory, at, len_bytes: received_bytes } = *datagram;
        let (session, slots) = (&self.session, &self.session.requests);
        let Some(first) = FirstWord::decode(memory.load_relaxed(at)) else { return ReceivedRequest::Invalid };
        let (seq, whole_bytes) = (first.seq, first.request_bytes());
        // Bytes of the receive beyond the datagram's length are those of an earlier datagram, where the tail must not
        // be found.
        let is_complete = first.form == Form::Full
            && first.len_bytes as usize <= slots.capacity()
            && whole_bytes <= received_bytes
            && memory.load_relaxed(at + whole_bytes - TAIL_BYTES) == session.tail_key.tail(seq);
        if !is_complete {
            return ReceivedRequest::Invalid;
        }
        if seq.is_before(session.expect) {
            return ReceivedRequest::Duplicate(seq);
        }
        message.clear();
        memory.append_to(at, whole_bytes, message);
        let is_ahead = seq.distance_from(session.expect) >= u32::from(session.geometry.window);
        if is_ahead || (self.checksum && !self.checksum_matches(message, first)) {
            return ReceivedRequest::Invalid;
        }
        session.mailbox.copy_in(slots.offset(seq), message);
        ReceivedRequest::New
    }
}

/// Returns the words of a message's header; those that its form lacks are 0.
#[inline]
fn words_of(message: &[u8], form: Form) -> [u64; 6] {
    match form {
        Form::Full => first_words::<REQUEST_HEADER_BYTES>(message),
        Form::Compact => first_words::<COMPACT_HEADER_BYTES>(message),
    }
}

#[inline]
fn first_words<const BYTES: usize>(message: &[u8]) -> [u64; 6] {
    let mut words = [0; 6];
    for (word, bytes) in words.iter_mut().zip(message[..BYTES].chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}
