//! Requests by WRITE into a mailbox of slots, which the server polls.

use farcall_link::{PostRefused, Remote, Ticket};

use super::RequestPath;
use crate::caller::ClientConnection;
use crate::responder::ServerConnection;
use crate::wire::{
    COMPACT_HEADER_BYTES, FirstWord, Form, REQUEST_HEADER_BYTES, RequestFlags, RequestHeader, TAIL_BYTES,
};

/// Each client has a mailbox in the server's memory, with one slot for each message of its window.
#[derive(Debug)]
pub struct WriteMailbox;

impl RequestPath for WriteMailbox {
    const AXIS: farcall_link::RequestPath = farcall_link::RequestPath::WriteMailbox;
    const WAKES: bool = false;

    /// Posts one WRITE of exactly the message.
    #[inline]
    fn post(end: &mut ClientConnection, message: FirstWord) -> Result<Ticket, PostRefused> {
        let piece = end.seal(message);
        let to = Remote { grant: &end.welcome.grants.messages, offset: piece.offset };
        end.connection.write(piece, to)
    }

    /// First word and tail are read once each and then checked. Later changes by the client do not affect the copy.
    #[inline]
    fn take(end: &mut ServerConnection, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        let seq = end.session.expect;
        let Some(first) = FirstWord::decode(end.watch.load_acquire()) else { return Ok(None) };
        if first.seq != seq {
            return Ok(None);
        }
        end.take_at(end.session.requests.offset(seq), first, message)
    }
}

/// Number of checks of a message with a wrong checksum before the client is informed that it is corrupt.
const CORRUPT_CHECKS_MAX: u32 = 10_000;

/// The server's part.
impl ServerConnection {
    /// Copies the next message, whose first word has been read, from offset `at` of the mailbox if it is complete.
    #[inline]
    pub(crate) fn take_at(
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
    pub(crate) fn has_mail(&self) -> bool {
        // The number is in the low half; the status bit is checked when the message is read.
        self.watch.load_acquire() as u32 == self.session.expect.0 || !self.inbox.is_empty()
    }

    /// Advances to the next message.
    #[inline]
    pub(crate) fn advance(&mut self) {
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
    pub(crate) fn checksum_matches(&self, message: &[u8], first: FirstWord) -> bool {
        let payload = &message[first.request_header_bytes()..][..first.len_bytes as usize];
        self.checked_header(&words_of(message, first.form), payload).is_some()
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
