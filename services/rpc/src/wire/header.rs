//! Version 1 of the headers, as words in little-endian order.

use bitflags::bitflags;
use thiserror::Error;

use super::{Seq, Status, message_bytes};

/// The version of the headers.
pub const VERSION: u8 = 1;

/// Bytes of a request's header.
pub const REQUEST_HEADER_BYTES: usize = 48;

/// Bytes of a request's header of compact form.
pub const COMPACT_HEADER_BYTES: usize = 24;

/// Bytes of a response's header.
pub const RESPONSE_HEADER_BYTES: usize = 24;

/// What the two-byte processing time of a response counts: it saturates at 4.19 ms.
pub const TIME_UNIT_NS: u64 = 64;

const READY: u64 = 1 << 63;
const COMPACT: u64 = 1 << 62;
const LEN_MASK: u64 = 0x3fff_ffff;

/// How much of its header a message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Form {
    /// All of it. Every response; of the requests the first of a session, and those that need it.
    #[default]
    Full,
    /// A request without the words that the server knows: session and incarnation are the connection's, the trace is
    /// none, and the call's number is as far from the message's as it was in the last request of full form. With up to
    /// 32 bytes of payload it is one cache line.
    Compact,
}

impl Form {
    /// Bytes of a request's header.
    #[inline]
    pub const fn request_header_bytes(self) -> usize {
        match self {
            Self::Full => REQUEST_HEADER_BYTES,
            Self::Compact => COMPACT_HEADER_BYTES,
        }
    }

    /// Words of a request's header.
    #[inline]
    pub const fn request_words(self) -> usize {
        self.request_header_bytes() / 8
    }

    /// Which word of a request's header holds its deadline and CRC.
    #[inline]
    const fn crc_word(self) -> usize {
        match self {
            Self::Full => 4,
            Self::Compact => 2,
        }
    }
}

/// The first word of a message: its number, its payload's length in 30 bits, its form, and a status bit that is set in
/// every message and in no fresh memory.
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
    /// As it travels.
    #[inline]
    pub const fn encode(self) -> u64 {
        let form = match self.form {
            Form::Full => 0,
            Form::Compact => COMPACT,
        };
        READY | form | (self.len_bytes as u64 & LEN_MASK) << 32 | self.seq.0 as u64
    }

    /// As it came; `None` if the status bit is not set.
    #[inline]
    pub const fn decode(word: u64) -> Option<Self> {
        if word & READY == 0 {
            return None;
        }
        let form = if word & COMPACT == 0 { Form::Full } else { Form::Compact };
        Some(Self { seq: Seq(word as u32), len_bytes: (word >> 32 & LEN_MASK) as u32, form })
    }

    /// Bytes in front of the payload, if it is a request.
    #[inline]
    pub const fn request_header_bytes(self) -> usize {
        self.form.request_header_bytes()
    }

    /// Bytes of the whole message, if it is a request.
    #[inline]
    pub const fn request_bytes(self) -> usize {
        message_bytes(self.request_header_bytes(), self.len_bytes as usize)
    }
}

/// How a client wants its response: the mode flag of RF-RPC, section 3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// It will READ it.
    #[default]
    Fetch,
    /// WRITE it to me: I poll.
    Reply,
    /// WRITE it to me and wake me.
    ReplyNotify,
}

bitflags! {
    /// Flags of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct RequestFlags: u8 {
        /// WRITE the response instead of keeping it for a READ.
        const REPLY = 1;
        /// Wake the client with it. Only with `REPLY`.
        const NOTIFY = 1 << 1;
        /// A part of a request: the payload begins with its offset and the total length (two u32).
        const PART = 1 << 2;
        /// Asks for a piece of a result: the payload is its offset and longest length (two u32).
        const CONTINUE = 1 << 3;
        /// Given up: do not execute (a request), or forget the result (`CONTINUE`).
        const CANCEL = 1 << 4;
        /// The CRC is valid.
        const CHECKSUM = 1 << 5;
        /// The payload is a batch of calls: see [`super::batch`]. The header's method means nothing.
        const BATCH = 1 << 6;
        /// Asks for the results of calls that were answered later: see [`super::collected`]. Nothing follows.
        const COLLECT = 1 << 7;
    }
}

bitflags! {
    /// Flags of a response.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct ResponseFlags: u8 {
        /// The result is longer than this payload; `total_len_bytes` says how long.
        const MORE = 1;
        /// The call failed: the payload is a text.
        const ERROR = 1 << 1;
        /// The server sleeps. Set in the slot of the *next* response, beside whatever that slot still holds.
        const SLEEPING = 1 << 2;
        /// The CRC is valid.
        const CHECKSUM = 1 << 3;
    }
}

/// Why a header is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// Another version.
    #[error("header version {0}; this side speaks {VERSION}")]
    Version(u8),
    /// Bits that mean nothing.
    #[error("flags {0:#04x} contain unknown bits")]
    UnknownFlags(u8),
    /// Bits that exclude each other.
    #[error("flags {0:#04x} contradict each other")]
    Contradiction(u8),
    /// The first word's status bit is missing.
    #[error("the status bit is not set")]
    NotReady,
    /// A response has one form.
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
    /// Its form. What the compact one lacks is 0 here until the server says what it is.
    pub form: Form,
    /// The method called.
    pub method: u16,
    /// Flags.
    pub flags: RequestFlags,
    /// All responses before this number were consumed.
    pub consumed: Seq,
    /// The call, unique in its session.
    pub call_id: u64,
    /// The session's tag.
    pub session: u32,
    /// Low half of the server's incarnation.
    pub incarnation: u32,
    /// Microseconds until the caller gives up; 0: never.
    pub deadline_us: u32,
    /// CRC-32C, if flagged.
    pub crc: u32,
    /// The caller's trace.
    pub trace_id: u64,
}

impl RequestHeader {
    /// Where a header of full form names its session, in bytes.
    pub const SESSION_AT: usize = 24;

    /// The first word of it.
    #[inline]
    pub const fn first(&self) -> FirstWord {
        FirstWord { seq: self.seq, len_bytes: self.len_bytes, form: self.form }
    }

    /// As it travels: [`Form::request_words`] of these.
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

    /// As it came; words beyond those of its form mean nothing.
    ///
    /// # Errors
    /// If no endpoint of this version sends such a header.
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

    /// The words that a checksum covers: all of its form, with the CRC zeroed. The others are 0.
    pub fn checked_words(words: &[u64; 6]) -> [u64; 6] {
        let form = FirstWord::decode(words[0]).map_or(Form::Full, |first| first.form);
        let mut checked = *words;
        checked[form.crc_word()] &= 0xffff_ffff;
        checked[form.request_words()..].fill(0);
        checked
    }

    /// A header as it travels, with this CRC.
    pub fn with_crc(words: &[u64; 6], crc: u32) -> [u64; 6] {
        let form = FirstWord::decode(words[0]).map_or(Form::Full, |first| first.form);
        let mut words = Self::checked_words(words);
        words[form.crc_word()] |= u64::from(crc) << 32;
        words
    }

    /// How the client wants its response.
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
    /// As flags of a request.
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
    /// How long the handler worked, in [`TIME_UNIT_NS`], rounded up; 0 is "not measured", `u16::MAX` "that long or
    /// longer".
    pub time_units: u16,
    /// Flags.
    pub flags: ResponseFlags,
    /// How the call ended.
    pub status: Status,
    /// How many messages the client may have in flight.
    pub credits: u16,
    /// Bytes of the whole result.
    pub total_len_bytes: u32,
    /// CRC-32C, if flagged.
    pub crc: u32,
}

impl ResponseHeader {
    /// The bit of word 1 that says that the server sleeps.
    pub const SLEEPING_BIT: u64 = (ResponseFlags::SLEEPING.bits() as u64) << 24;

    /// As it travels.
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

    /// As it came.
    ///
    /// # Errors
    /// If no endpoint of this version sends such a header.
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

    /// The words that a checksum covers: all, with the CRC and the sleep flag zeroed (the server may go to sleep after
    /// it answered).
    pub fn checked_words(words: &[u64; 3]) -> [u64; 3] {
        [words[0], words[1] & !Self::SLEEPING_BIT, words[2] & 0xffff_ffff]
    }

    /// The processing time in nanoseconds.
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
