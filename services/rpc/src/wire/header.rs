//! Version 1 of the headers, as little-endian 64-bit words.

use bitflags::bitflags;
use thiserror::Error;

use super::{Seq, Status, message_bytes};

/// The version of the headers.
pub const VERSION: u8 = 1;

/// Length of a request header in bytes.
pub const REQUEST_HEADER_BYTES: usize = 48;

/// Length of a compact request header in bytes.
pub const COMPACT_HEADER_BYTES: usize = 24;

/// Length of a response header in bytes.
pub const RESPONSE_HEADER_BYTES: usize = 24;

/// Unit of the two-byte processing time of a response, which saturates at 4.19 ms.
pub const TIME_UNIT_NS: u64 = 64;

const READY: u64 = 1 << 63;
const COMPACT: u64 = 1 << 62;
const LEN_MASK: u64 = 0x3fff_ffff;

/// Form of a message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Form {
    /// All words. Used by every response, by the first request of a session, and by requests that need all words.
    #[default]
    Full,
    /// A request without the words that the server already knows. Session and incarnation are those of the connection,
    /// there is no trace, and the call's number has the same distance to the message's number as in the last request
    /// of full form. With up to 32 bytes of payload the message is one cache line.
    Compact,
}

impl Form {
    /// Returns the length of a request header in bytes.
    #[inline]
    pub const fn request_header_bytes(self) -> usize {
        match self {
            Self::Full => REQUEST_HEADER_BYTES,
            Self::Compact => COMPACT_HEADER_BYTES,
        }
    }

    /// Returns the length of a request header in words.
    #[inline]
    pub const fn request_words(self) -> usize {
        self.request_header_bytes() / 8
    }

    /// Returns the index of the word of a request header that holds the deadline and the CRC.
    #[inline]
    const fn crc_word(self) -> usize {
        match self {
            Self::Full => 4,
            Self::Compact => 2,
        }
    }
}

/// The first word of a message: its number, its payload's length in 30 bits, its form, and a status bit that is set in
/// every message and clear in zeroed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstWord {
    /// The message's number.
    pub seq: Seq,
    /// Bytes of payload in this slot.
    pub len_bytes: u32,
    /// Its form.
    pub form: Form,
}

impl FirstWord {
    /// Encodes the word.
    #[inline]
    pub const fn encode(self) -> u64 {
        let form = match self.form {
            Form::Full => 0,
            Form::Compact => COMPACT,
        };
        READY | form | (self.len_bytes as u64 & LEN_MASK) << 32 | self.seq.0 as u64
    }

    /// Decodes the word; `None` if the status bit is not set.
    #[inline]
    pub const fn decode(word: u64) -> Option<Self> {
        if word & READY == 0 {
            return None;
        }
        let form = if word & COMPACT == 0 { Form::Full } else { Form::Compact };
        Some(Self { seq: Seq(word as u32), len_bytes: (word >> 32 & LEN_MASK) as u32, form })
    }

    /// Returns the number of bytes in front of the payload, if the message is a request.
    #[inline]
    pub const fn request_header_bytes(self) -> usize {
        self.form.request_header_bytes()
    }

    /// Returns the length of the message in bytes, if it is a request.
    #[inline]
    pub const fn request_bytes(self) -> usize {
        message_bytes(self.request_header_bytes(), self.len_bytes as usize)
    }
}

/// How the server returns the response to a client: the mode flag of RF-RPC, section 3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// The client fetches it by READ.
    #[default]
    Fetch,
    /// The server writes it; the client polls.
    Reply,
    /// The server writes it and wakes the client.
    ReplyNotify,
}

bitflags! {
    /// Flags of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct RequestFlags: u8 {
        /// WRITE the response instead of keeping it for a READ.
        const REPLY = 1;
        /// Wake the client with the response. Only with `REPLY`.
        const NOTIFY = 1 << 1;
        /// One part of a request: the payload begins with its offset and the total length (two u32).
        const PART = 1 << 2;
        /// Requests a segment of a result: the payload is its offset and maximum length (two u32).
        const CONTINUE = 1 << 3;
        /// Cancelled: do not execute (a request), or release the result (`CONTINUE`).
        const CANCEL = 1 << 4;
        /// The CRC is valid.
        const CHECKSUM = 1 << 5;
        /// The payload is a batch of calls: see [`super::batch`]. The header's method is not used.
        const BATCH = 1 << 6;
        /// Requests the results of deferred calls: see [`super::collected`]. There is no payload.
        const COLLECT = 1 << 7;
    }
}

bitflags! {
    /// Flags of a response.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct ResponseFlags: u8 {
        /// The result is longer than this payload; `total_len_bytes` is its length.
        const MORE = 1;
        /// The call failed: the payload is a text.
        const ERROR = 1 << 1;
        /// The server sleeps. Set in the slot of the *next* response, in addition to the slot's previous contents.
        const SLEEPING = 1 << 2;
        /// The CRC is valid.
        const CHECKSUM = 1 << 3;
    }
}

/// Why a header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// An unsupported version.
    #[error("header version {0}; this side speaks {VERSION}")]
    Version(u8),
    /// Unknown flags are set.
    #[error("flags {0:#04x} contain unknown bits")]
    UnknownFlags(u8),
    /// The flags are mutually exclusive.
    #[error("flags {0:#04x} contradict each other")]
    Contradiction(u8),
    /// The first word's status bit is missing.
    #[error("the status bit is not set")]
    NotReady,
    /// A response has compact form, which only requests have.
    #[error("a response of compact form")]
    CompactResponse,
}

/// A request's header.
///
/// | word | low → high |
/// |---|---|
/// | 0 | seq u32, length 30 bits, compact bit, status bit |
/// | 1 | method u16, version u8, flags u8, consumed u32 |
/// | 2 | call id u64 |
/// | 3 | session u32, incarnation u32 |
/// | 4 | remaining deadline µs u32 (0: none), CRC-32C u32 |
/// | 5 | trace id u64 |
///
/// The compact form has words 0, 1 and 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RequestHeader {
    /// The message's number.
    pub seq: Seq,
    /// Bytes of payload in this slot.
    pub len_bytes: u32,
    /// Its form. Fields that the compact form lacks are 0 until the server fills them in.
    pub form: Form,
    /// The method called.
    pub method: u16,
    /// Flags.
    pub flags: RequestFlags,
    /// All responses with lower numbers have been consumed.
    pub consumed: Seq,
    /// The call, unique in its session.
    pub call_id: u64,
    /// The session's tag.
    pub session: u32,
    /// Low half of the server's incarnation.
    pub incarnation: u32,
    /// Microseconds until the caller's deadline; 0: none.
    pub deadline_us: u32,
    /// CRC-32C, if flagged.
    pub crc: u32,
    /// The caller's trace id.
    pub trace_id: u64,
}

impl RequestHeader {
    /// Offset of the session in a header of full form, in bytes.
    pub const SESSION_AT: usize = 24;

    /// Returns the first word.
    #[inline]
    pub const fn first(&self) -> FirstWord {
        FirstWord { seq: self.seq, len_bytes: self.len_bytes, form: self.form }
    }

    /// Encodes the header; the first [`Form::request_words`] words are sent.
    #[inline]
    pub const fn encode(&self) -> [u64; 6] {
        let first = self.first().encode();
        let second = self.method as u64
            | (VERSION as u64) << 16
            | (self.flags.bits() as u64) << 24
            | (self.consumed.0 as u64) << 32;
        let deadline = self.deadline_us as u64 | (self.crc as u64) << 32;
        match self.form {
            Form::Compact => [first, second, deadline, 0, 0, 0],
            Form::Full => [
                first,
                second,
                self.call_id,
                self.session as u64 | (self.incarnation as u64) << 32,
                deadline,
                self.trace_id,
            ],
        }
    }

    /// Decodes a header. Words that its form does not have are ignored.
    ///
    /// # Errors
    /// Returns [`HeaderError`] if no endpoint of this version sends such a header.
    #[inline]
    pub fn decode(words: &[u64; 6]) -> Result<Self, HeaderError> {
        let Some(FirstWord { seq, len_bytes, form }) = FirstWord::decode(words[0]) else {
            return Err(HeaderError::NotReady);
        };
        let (version, bits) = ((words[1] >> 16) as u8, (words[1] >> 24) as u8);
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let flags = RequestFlags::from_bits(bits).ok_or(HeaderError::UnknownFlags(bits))?;
        let not_continued = RequestFlags::PART | RequestFlags::BATCH;
        let is_both = flags.contains(RequestFlags::CONTINUE) && flags.intersects(not_continued);
        let lone_notify = flags.contains(RequestFlags::NOTIFY) && !flags.contains(RequestFlags::REPLY);
        let not_collected =
            RequestFlags::PART | RequestFlags::BATCH | RequestFlags::CONTINUE | RequestFlags::CANCEL;
        let is_more = flags.contains(RequestFlags::COLLECT) && flags.intersects(not_collected);
        if is_both || is_more || lone_notify {
            return Err(HeaderError::Contradiction(bits));
        }
        let (deadline, [call_id, session, trace_id]) = match form {
            Form::Compact => (words[2], [0; 3]),
            Form::Full => (words[4], [words[2], words[3], words[5]]),
        };
        Ok(Self {
            seq,
            len_bytes,
            form,
            method: words[1] as u16,
            flags,
            consumed: Seq((words[1] >> 32) as u32),
            call_id,
            session: session as u32,
            incarnation: (session >> 32) as u32,
            deadline_us: deadline as u32,
            crc: (deadline >> 32) as u32,
            trace_id,
        })
    }

    /// Returns the words that the checksum covers: all words of the form, with the CRC zeroed. The others are 0.
    pub fn checked_words(words: &[u64; 6]) -> [u64; 6] {
        let form = FirstWord::decode(words[0]).map_or(Form::Full, |first| first.form);
        let mut checked = *words;
        checked[form.crc_word()] &= 0xffff_ffff;
        checked[form.request_words()..].fill(0);
        checked
    }

    /// Returns an encoded header with its CRC replaced by `crc`.
    pub fn with_crc(words: &[u64; 6], crc: u32) -> [u64; 6] {
        let form = FirstWord::decode(words[0]).map_or(Form::Full, |first| first.form);
        let mut words = Self::checked_words(words);
        words[form.crc_word()] |= u64::from(crc) << 32;
        words
    }

    /// Returns how the server is to return the response.
    #[inline]
    pub fn mode(&self) -> Mode {
        match (self.flags.contains(RequestFlags::REPLY), self.flags.contains(RequestFlags::NOTIFY)) {
            (false, _) => Mode::Fetch,
            (true, false) => Mode::Reply,
            (true, true) => Mode::ReplyNotify,
        }
    }
}

impl Mode {
    /// Returns the request flags of the mode.
    #[inline]
    pub const fn flags(self) -> RequestFlags {
        match self {
            Self::Fetch => RequestFlags::empty(),
            Self::Reply => RequestFlags::REPLY,
            Self::ReplyNotify => RequestFlags::REPLY.union(RequestFlags::NOTIFY),
        }
    }
}

/// A response's header.
///
/// | word | low → high |
/// |---|---|
/// | 0 | seq u32, length 30 bits, compact bit (0), status bit |
/// | 1 | processing time u16 (64 ns units), version u8, flags u8, status u16, credits u16 |
/// | 2 | total length u32, CRC-32C u32 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ResponseHeader {
    /// The request's number.
    pub seq: Seq,
    /// Bytes of payload in this slot.
    pub len_bytes: u32,
    /// Processing time of the handler in [`TIME_UNIT_NS`], rounded up; 0 is "not measured", `u16::MAX` "that long or
    /// longer".
    pub time_units: u16,
    /// Flags.
    pub flags: ResponseFlags,
    /// Outcome of the call.
    pub status: Status,
    /// Number of messages that the client may have in flight.
    pub credits: u16,
    /// Length of the complete result in bytes.
    pub total_len_bytes: u32,
    /// CRC-32C, if flagged.
    pub crc: u32,
}

impl ResponseHeader {
    /// The bit of word 1 that indicates that the server sleeps.
    pub const SLEEPING_BIT: u64 = (ResponseFlags::SLEEPING.bits() as u64) << 24;

    /// Encodes the header.
    #[inline]
    pub const fn encode(&self) -> [u64; 3] {
        [
            FirstWord { seq: self.seq, len_bytes: self.len_bytes, form: Form::Full }.encode(),
            self.time_units as u64
                | (VERSION as u64) << 16
                | (self.flags.bits() as u64) << 24
                | (self.status.0 as u64) << 32
                | (self.credits as u64) << 48,
            self.total_len_bytes as u64 | (self.crc as u64) << 32,
        ]
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// Returns [`HeaderError`] if no endpoint of this version sends such a header.
    #[inline]
    pub fn decode(words: &[u64; 3]) -> Result<Self, HeaderError> {
        let Some(FirstWord { seq, len_bytes, form }) = FirstWord::decode(words[0]) else {
            return Err(HeaderError::NotReady);
        };
        if form != Form::Full {
            return Err(HeaderError::CompactResponse);
        }
        let (version, bits) = ((words[1] >> 16) as u8, (words[1] >> 24) as u8);
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let flags = ResponseFlags::from_bits(bits).ok_or(HeaderError::UnknownFlags(bits))?;
        Ok(Self {
            seq,
            len_bytes,
            time_units: words[1] as u16,
            flags,
            status: Status((words[1] >> 32) as u16),
            credits: (words[1] >> 48) as u16,
            total_len_bytes: words[2] as u32,
            crc: (words[2] >> 32) as u32,
        })
    }

    /// Returns the words that the checksum covers: all, with the CRC and the sleep flag zeroed (the server may set
    /// that flag after it sent the response).
    pub fn checked_words(words: &[u64; 3]) -> [u64; 3] {
        [words[0], words[1] & !Self::SLEEPING_BIT, words[2] & 0xffff_ffff]
    }

    /// Returns the processing time in nanoseconds; `None` if it was not measured.
    pub const fn time_ns(&self) -> Option<u64> {
        match self.time_units {
            0 => None,
            units => Some(units as u64 * TIME_UNIT_NS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> RequestHeader {
        RequestHeader {
            seq: Seq(5),
            len_bytes: 64,
            form: Form::Full,
            method: 3,
            flags: Mode::ReplyNotify.flags() | RequestFlags::CHECKSUM,
            consumed: Seq(4),
            call_id: 9,
            session: 10,
            incarnation: 11,
            deadline_us: 12,
            crc: 13,
            trace_id: 14,
        }
    }

    #[test]
    fn impossible_flags_are_refused() {
        let with = |bits: u8| {
            let mut words = request().encode();
            words[1] = words[1] & !(0xff << 24) | u64::from(bits) << 24;
            RequestHeader::decode(&words)
        };
        assert_eq!(with(0x80).map(|header| header.flags), Ok(RequestFlags::COLLECT));
        for other in [0x84, 0x88, 0x90, 0xc0] {
            assert_eq!(with(other), Err(HeaderError::Contradiction(other)));
        }
        let mut words = ResponseHeader::default().encode();
        words[1] |= 0x80 << 24;
        assert_eq!(ResponseHeader::decode(&words), Err(HeaderError::UnknownFlags(0x80)));
        assert_eq!(with(0x0c), Err(HeaderError::Contradiction(0x0c)));
        assert_eq!(with(0x48), Err(HeaderError::Contradiction(0x48)));
        assert_eq!(with(0x02), Err(HeaderError::Contradiction(0x02)));
        let mut words = request().encode();
        words[1] ^= 0x3 << 16;
        assert_eq!(RequestHeader::decode(&words), Err(HeaderError::Version(2)));
        assert_eq!(RequestHeader::decode(&[0; 6]), Err(HeaderError::NotReady));
        assert_eq!(ResponseHeader::decode(&[0; 3]), Err(HeaderError::NotReady));
        let mut words = ResponseHeader::default().encode();
        words[0] |= COMPACT;
        assert_eq!(ResponseHeader::decode(&words), Err(HeaderError::CompactResponse));
    }

    #[test]
    fn a_compact_request_of_32_bytes_is_a_cache_line() {
        let first = FirstWord { seq: Seq(5), len_bytes: 32, form: Form::Compact };
        assert_eq!((first.request_header_bytes(), first.request_bytes()), (24, 64));
    }

    #[test]
    fn a_checksum_covers_the_words_of_the_form() {
        for (form, crc_word) in [(Form::Full, 4), (Form::Compact, 2)] {
            let words = RequestHeader { form, ..request() }.encode();
            let signed = RequestHeader::with_crc(&words, 0xdead_beef);
            assert_eq!(signed[crc_word] >> 32, 0xdead_beef);
            assert_eq!(RequestHeader::checked_words(&signed), RequestHeader::checked_words(&words));
            for word in 0..6 {
                let mut other = words;
                other[word] ^= 1 << 8;
                let is_covered = RequestHeader::checked_words(&other) != RequestHeader::checked_words(&words);
                assert_eq!(is_covered, word < form.request_words(), "word {word} of {form:?}");
            }
        }
    }

    #[test]
    fn a_sleeper_does_not_spoil_a_checksum() {
        let mut words = ResponseHeader { seq: Seq(1), ..ResponseHeader::default() }.encode();
        let before = ResponseHeader::checked_words(&words);
        words[1] |= ResponseHeader::SLEEPING_BIT;
        assert_eq!(ResponseHeader::checked_words(&words), before);
        assert!(ResponseHeader::decode(&words).unwrap().flags.contains(ResponseFlags::SLEEPING));
    }

    proptest! {
        #[test]
        fn requests_travel(seq: u32, len in 0u32..1 << 30, method: u16, consumed: u32, call_id: u64, session: u32,
                incarnation: u32, deadline_us: u32, crc: u32, trace_id: u64, mode in 0usize..3) {
            let header = RequestHeader {
                seq: Seq(seq), len_bytes: len, form: Form::Full, method, consumed: Seq(consumed), call_id, session,
                incarnation, deadline_us, crc, trace_id,
                flags: [Mode::Fetch, Mode::Reply, Mode::ReplyNotify][mode].flags(),
            };
            prop_assert_eq!(RequestHeader::decode(&header.encode()), Ok(header));
            let compact = RequestHeader {
                form: Form::Compact, call_id: 0, session: 0, incarnation: 0, trace_id: 0, ..header
            };
            let mut words = RequestHeader { form: Form::Compact, ..header }.encode();
            words[Form::Compact.request_words()..].fill(call_id);
            prop_assert_eq!(RequestHeader::decode(&words), Ok(compact));
        }

        #[test]
        fn responses_travel(seq: u32, len in 0u32..1 << 30, time_units: u16, status: u16, credits: u16, total: u32,
                crc: u32, flags in 0u8..16) {
            let header = ResponseHeader {
                seq: Seq(seq), len_bytes: len, time_units, status: Status(status), credits, total_len_bytes: total, crc,
                flags: ResponseFlags::from_bits_truncate(flags),
            };
            prop_assert_eq!(ResponseHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn any_words_decode_or_are_refused(words: [u64; 6]) {
            if let Ok(header) = RequestHeader::decode(&words) {
                let words_of_it = header.form.request_words();
                prop_assert_eq!(&header.encode()[..words_of_it], &words[..words_of_it]);
            }
            let _ = ResponseHeader::decode(&[words[0], words[1], words[2]]);
        }
    }
}
