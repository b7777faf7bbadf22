//! The handshake of byte streams: each side announces the memory into which the other may WRITE.

use super::frame::Frame;
use super::message::{Message, StreamEnd};
use super::{Acceptor, BootstrapError, Initiator, Refusal};

/// The server's reply to a request for a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamReply {
    /// The server's end: both sides WRITE.
    Opened(Box<StreamEnd>),
    /// All later bytes on the channel of the handshake are the stream.
    OverChannel,
}

impl Initiator {
    /// Encodes a request for a stream.
    pub fn open_stream(&self, ours: &StreamEnd) -> Vec<u8> {
        Frame::encode(self.versions, &Message::OpenStream(Box::new(ours.clone())))
    }

    /// Consumes bytes until the server's reply is complete. Returns the number of bytes consumed.
    ///
    /// # Errors
    /// Returns an error if the server refuses, or if its reply is not one of these.
    pub fn feed_stream_opened(
        &mut self,
        bytes: &[u8],
    ) -> Result<(usize, Option<StreamReply>), BootstrapError> {
        self.feed_reply(bytes, |message| match message {
            Message::StreamOpened(theirs) => Some(StreamReply::Opened(theirs)),
            Message::StreamOverChannel => Some(StreamReply::OverChannel),
            _ => None,
        })
    }
}

impl Acceptor {
    /// Consumes bytes until the client's request for a stream is complete. Returns the number of bytes consumed.
    ///
    /// # Errors
    /// Returns the refusal to send with [`Acceptor::refuse`] before the connection is closed.
    pub fn feed_open_stream(&mut self, bytes: &[u8]) -> Result<(usize, Option<StreamEnd>), Refusal> {
        self.feed_first(bytes, |message| match message {
            Message::OpenStream(theirs) => Some(*theirs),
            _ => None,
        })
    }

    /// Encodes the reply that the stream is open.
    pub fn stream_opened(&self, ours: &StreamEnd) -> Vec<u8> {
        Frame::encode(self.versions, &Message::StreamOpened(Box::new(ours.clone())))
    }

    /// Encodes the reply that the channel carries the stream from here on.
    pub fn stream_over_channel(&self) -> Vec<u8> {
        Frame::encode(self.versions, &Message::StreamOverChannel)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{QpInfo, RefusalKind, VersionRange};
    use super::*;
    use crate::RemoteRegion;
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
        // In two segments.
        assert_eq!(acceptor.feed_open_stream(&asked[..20]).unwrap(), (20, None));
        assert_eq!(acceptor.feed_open_stream(&asked[20..]).unwrap(), (asked.len() - 20, Some(end())));
        let answer = acceptor.stream_opened(&end());
        let opened = Some(StreamReply::Opened(Box::new(end())));
        assert_eq!(initiator.feed_stream_opened(&answer).unwrap(), (answer.len(), opened));
    }

    #[test]
    fn leaves_the_first_stream_byte_behind_the_reply() {
        let acceptor = Acceptor::new(VersionRange::CURRENT);
        let mut initiator = Initiator::new(VersionRange::CURRENT);
        let answer = acceptor.stream_over_channel();
        let bytes = [&answer[..], b"FCL1 and more"].concat();
        let taken = (answer.len(), Some(StreamReply::OverChannel));
        assert_eq!(initiator.feed_stream_opened(&bytes).unwrap(), taken);
    }

    #[test]
    fn rejects_a_stream_request_at_a_call_server() {
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
