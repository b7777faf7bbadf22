//! The handshake of byte streams: each side says where the other may WRITE.

use serde::{Deserialize, Serialize};

use super::frame::Frame;
use super::message::Message;
use super::{Acceptor, BootstrapError, Initiator, QpInfo, Refusal};
use crate::RemoteRegion;

/// One end of a byte stream, told to the other: the client's first message, and the server's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnd {
    /// Its provider's name.
    pub provider: String,
    /// Its queue pair.
    pub qp: QpInfo,
    /// Where the other end WRITEs words: how far it wrote and read, and what it wishes.
    pub words: RemoteRegion,
    /// Where the other end WRITEs bytes: a ring.
    pub ring: RemoteRegion,
    /// Whether WRITEs to both land in order. If not, every word must come with immediate data.
    pub is_in_order: bool,
    /// Whether the channel of the handshake may carry the stream, where no device does.
    pub may_use_channel: bool,
}

/// What a server answers who is asked for a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamAnswer {
    /// Its end: both WRITE.
    Opened(Box<StreamEnd>),
    /// All that follows on the channel of the handshake is the stream.
    OverChannel,
}

impl Initiator {
    /// The bytes that ask for a stream.
    pub fn open_stream(&self, ours: &StreamEnd) -> Vec<u8> {
        Frame::encode(self.versions, &Message::OpenStream(Box::new(ours.clone())))
    }

    /// Takes bytes in until the server's answer is whole. Returns how many it took.
    ///
    /// # Errors
    /// If the server refuses or its answer is none.
    pub fn feed_stream_opened(
        &mut self,
        bytes: &[u8],
    ) -> Result<(usize, Option<StreamAnswer>), BootstrapError> {
        self.feed_answer(bytes, |message| match message {
            Message::StreamOpened(theirs) => Some(StreamAnswer::Opened(theirs)),
            Message::StreamOverChannel => Some(StreamAnswer::OverChannel),
            _ => None,
        })
    }
}

impl Acceptor {
    /// Takes bytes in until the client has asked for a stream. Returns how many it took.
    ///
    /// # Errors
    /// What to send back with [`Acceptor::refuse`] before closing.
    pub fn feed_open_stream(&mut self, bytes: &[u8]) -> Result<(usize, Option<StreamEnd>), Refusal> {
        self.feed_first(bytes, |message| match message {
            Message::OpenStream(theirs) => Some(*theirs),
            _ => None,
        })
    }

    /// The bytes that say that the stream is open.
    pub fn stream_opened(&self, ours: &StreamEnd) -> Vec<u8> {
        Frame::encode(self.versions, &Message::StreamOpened(Box::new(ours.clone())))
    }

    /// The bytes that say that the channel carries the stream from here on.
    pub fn stream_over_channel(&self) -> Vec<u8> {
        Frame::encode(self.versions, &Message::StreamOverChannel)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RefusalKind, VersionRange};
    use super::*;
    use proptest::prelude::*;

    fn end() -> StreamEnd {
        let region = |addr| RemoteRegion { addr, len_bytes: 4_096, rkey: 9 };
        StreamEnd {
            provider: "softnic".into(),
            qp: QpInfo { qp_num: 7, psn: 9, gid: [3; 16], lid: 0, mtu_log2: 12 },
            words: region(4_096),
            ring: region(8_192),
            is_in_order: true,
            may_use_channel: true,
        }
    }

    #[test]
    fn both_ends_of_a_stream_travel() {
        let (mut acceptor, mut initiator) =
            (Acceptor::new(VersionRange::CURRENT), Initiator::new(VersionRange::CURRENT));
        let asked = initiator.open_stream(&end());
        // In two pieces.
        assert_eq!(acceptor.feed_open_stream(&asked[..20]).unwrap(), (20, None));
        assert_eq!(acceptor.feed_open_stream(&asked[20..]).unwrap(), (asked.len() - 20, Some(end())));
        let answer = acceptor.stream_opened(&end());
        let opened = Some(StreamAnswer::Opened(Box::new(end())));
        assert_eq!(initiator.feed_stream_opened(&answer).unwrap(), (answer.len(), opened));
    }

    #[test]
    fn the_first_byte_behind_the_answer_is_left_where_the_channel_carries_the_stream() {
        let acceptor = Acceptor::new(VersionRange::CURRENT);
        let mut initiator = Initiator::new(VersionRange::CURRENT);
        let answer = acceptor.stream_over_channel();
        let bytes = [&answer[..], b"FCL1 and more"].concat();
        let taken = (answer.len(), Some(StreamAnswer::OverChannel));
        assert_eq!(initiator.feed_stream_opened(&bytes).unwrap(), taken);
    }

    #[test]
    fn who_asks_for_a_stream_where_calls_are_served_is_refused_in_words() {
        let (mut acceptor, mut initiator) =
            (Acceptor::new(VersionRange::CURRENT), Initiator::new(VersionRange::CURRENT));
        let refusal = acceptor.feed_hello(&initiator.open_stream(&end())).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::OutOfTurn);
        let error = initiator.feed_stream_opened(&acceptor.refuse(&refusal)).unwrap_err();
        assert_eq!(error, BootstrapError::Refused(refusal));
    }

    proptest! {
        #[test]
        fn a_flipped_byte_is_read_or_refused(at in 0usize..200, byte in any::<u8>()) {
            let mut bytes = Initiator::new(VersionRange::CURRENT).open_stream(&end());
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = Acceptor::new(VersionRange::CURRENT).feed_open_stream(&bytes);
            let _ = Initiator::new(VersionRange::CURRENT).feed_stream_opened(&bytes);
        }
    }
}
