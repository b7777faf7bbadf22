//! The server side and the client side of a handshake.

use thiserror::Error;

use super::frame::{Frame, FrameReader};
use super::message::Message;
use super::{Hello, PostHandshakeMessage, Refusal, RefusalKind, VersionRange, Welcome};

/// Reasons for which a client's handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BootstrapError {
    /// The server refused the client.
    #[error("the server refuses: {0}")]
    Refused(Refusal),
    /// The client rejects the server's reply.
    #[error("the server's answer is no handshake: {0}")]
    Unusable(Refusal),
}

/// The server side of one handshake.
#[derive(Debug)]
pub struct Acceptor {
    pub(super) versions: VersionRange,
    reader: FrameReader,
    version: Option<u16>,
}

impl Acceptor {
    /// Creates the server side, which waits for a hello.
    pub fn new(versions: VersionRange) -> Self {
        Self { versions, reader: FrameReader::default(), version: None }
    }

    /// Returns the negotiated version; `None` before the hello was received.
    pub const fn version(&self) -> Option<u16> {
        self.version
    }

    /// Consumes bytes until the client's hello is complete. Returns the number of bytes consumed.
    ///
    /// # Errors
    /// Returns the refusal to send with [`Acceptor::refuse`] before the connection is closed.
    pub fn feed_hello(&mut self, bytes: &[u8]) -> Result<(usize, Option<Hello>), Refusal> {
        self.feed_first(bytes, |message| match message {
            Message::Hello(hello) => Some(*hello),
            _ => None,
        })
    }

    /// Consumes bytes until the first message is complete. Fails if `due` does not accept the message.
    pub(super) fn feed_first<T>(
        &mut self,
        bytes: &[u8],
        due: impl FnOnce(Message) -> Option<T>,
    ) -> Result<(usize, Option<T>), Refusal> {
        let (taken, Some(frame)) = self.reader.feed(bytes)? else {
            return Ok((bytes.len(), None));
        };
        let version = common(self.versions, frame.versions)?;
        match due(frame.message()?) {
            Some(first) if self.version.is_none() => {
                self.version = Some(version);
                Ok((taken, Some(first)))
            }
            _ => Err(RefusalKind::OutOfTurn.because("not the one hello that is due")),
        }
    }

    /// Consumes bytes until a message is complete. Returns the number of bytes consumed.
    ///
    /// # Errors
    /// Returns a refusal if the client sends any other message. The caller then closes the connection.
    pub fn feed_post_handshake(
        &mut self,
        bytes: &[u8],
    ) -> Result<(usize, Option<PostHandshakeMessage>), Refusal> {
        let (taken, Some(frame)) = self.reader.feed(bytes)? else {
            return Ok((bytes.len(), None));
        };
        match frame.message()? {
            Message::PostHandshake(notice) => Ok((taken, Some(notice))),
            _ => Err(RefusalKind::OutOfTurn.because("after the handshake only notices are due")),
        }
    }

    /// Encodes a welcome.
    pub fn welcome(&self, welcome: &Welcome) -> Vec<u8> {
        Frame::encode(self.versions, &Message::Welcome(Box::new(welcome.clone())))
    }

    /// Encodes a refusal.
    pub fn refuse(&self, refusal: &Refusal) -> Vec<u8> {
        Frame::encode(self.versions, &Message::Refuse(refusal.clone()))
    }

    /// Encodes a message after the handshake.
    pub fn notice(&self, notice: PostHandshakeMessage) -> Vec<u8> {
        Frame::encode(self.versions, &Message::PostHandshake(notice))
    }
}

/// The client side of one handshake.
#[derive(Debug)]
pub struct Initiator {
    pub(super) versions: VersionRange,
    reader: FrameReader,
}

impl Initiator {
    /// Creates the client side.
    pub fn new(versions: VersionRange) -> Self {
        Self { versions, reader: FrameReader::default() }
    }

    /// Encodes a hello.
    pub fn hello(&self, hello: &Hello) -> Vec<u8> {
        Frame::encode(self.versions, &Message::Hello(Box::new(hello.clone())))
    }

    /// Consumes bytes until the server's reply is complete. Returns the number of bytes consumed.
    ///
    /// # Errors
    /// Returns an error if the server refuses, or if its reply is not a welcome.
    pub fn feed_welcome(&mut self, bytes: &[u8]) -> Result<(usize, Option<Welcome>), BootstrapError> {
        self.feed_reply(bytes, |message| match message {
            Message::Welcome(welcome) => Some(*welcome),
            _ => None,
        })
    }

    /// Consumes bytes until the reply is complete. Fails if it is a refusal, or if `due` does not accept it.
    pub(super) fn feed_reply<T>(
        &mut self,
        bytes: &[u8],
        due: impl FnOnce(Message) -> Option<T>,
    ) -> Result<(usize, Option<T>), BootstrapError> {
        let (taken, Some(message)) = self.feed(bytes)? else { return Ok((bytes.len(), None)) };
        match due(message) {
            Some(answer) => Ok((taken, Some(answer))),
            None => Err(BootstrapError::Unusable(RefusalKind::OutOfTurn.because("a welcome is due"))),
        }
    }

    /// Consumes bytes received after the welcome until a message is complete. Returns the number of bytes consumed.
    ///
    /// # Errors
    /// Returns an error if the server sends a refusal (its reason for ending the connection) or any other message.
    pub fn feed_post_handshake(
        &mut self,
        bytes: &[u8],
    ) -> Result<(usize, Option<PostHandshakeMessage>), BootstrapError> {
        match self.feed(bytes)? {
            (taken, None) => Ok((taken, None)),
            (taken, Some(Message::PostHandshake(notice))) => Ok((taken, Some(notice))),
            _ => Err(BootstrapError::Unusable(RefusalKind::OutOfTurn.because("only notices are due"))),
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Message>), BootstrapError> {
        let (taken, frame) = self.reader.feed(bytes).map_err(BootstrapError::Unusable)?;
        let Some(frame) = frame else { return Ok((taken, None)) };
        let message = frame.message();
        // A refusal is decoded for any version, because the versions may be its reason.
        if let Ok(Message::Refuse(refusal)) = message {
            return Err(BootstrapError::Refused(refusal));
        }
        let message = common(self.versions, frame.versions).and(message);
        Ok((taken, Some(message.map_err(BootstrapError::Unusable)?)))
    }

    /// Encodes a message after the handshake.
    pub fn notice(&self, notice: PostHandshakeMessage) -> Vec<u8> {
        Frame::encode(self.versions, &Message::PostHandshake(notice))
    }
}

fn common(ours: VersionRange, theirs: VersionRange) -> Result<u16, Refusal> {
    ours.common(theirs).ok_or_else(|| {
        RefusalKind::Version.because(format!(
            "we speak versions {}..={}, the peer {}..={}",
            ours.min, ours.max, theirs.min, theirs.max
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Features, Grants, QpInfo, Secret, SessionId, SessionResumption};
    use super::*;
    use crate::{Plan, RemoteRegion};
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            provider: "softnic".into(),
            qp: QpInfo { qp_num: 7, psn: 9, gid: [3; 16], lid: 0, mtu_log2: 12 },
            grants: Grants {
                messages: RemoteRegion { addr: 4096, len_bytes: 64, rkey: 5 },
                ..Grants::default()
            },
            plan: Plan::default(),
            features: Features::KICK,
            thread: 2,
            resume: Some(SessionResumption {
                session: SessionId([1; 16]),
                secret: Secret([2; 16]),
                incarnation: 3,
                oldest_seq: 4,
            }),
            datagrams: Some(QpInfo { qp_num: 8, psn: 1, gid: [3; 16], lid: 0, mtu_log2: 12 }),
        }
    }

    fn welcome() -> Welcome {
        Welcome {
            provider: "softnic".into(),
            qp: hello().qp,
            grants: hello().grants,
            plan: Plan::default(),
            features: Features::KICK,
            incarnation: 11,
            threads: 4,
            session: SessionId([1; 16]),
            secret: Secret([2; 16]),
            tail_key: Secret(12),
            resumed: None,
            request_bytes_max: 13,
            result_bytes_max: 14,
            mailbox_byte: Some(RemoteRegion { addr: 4097, len_bytes: 1, rkey: 6 }),
        }
    }

    const V1: VersionRange = VersionRange { min: 1, max: 1 };
    const V12: VersionRange = VersionRange { min: 1, max: 2 };
    const V34: VersionRange = VersionRange { min: 3, max: 4 };

    #[test]
    fn hello_and_welcome_travel_between_neighbouring_versions() {
        for (client, server, agreed) in [(V1, V1, 1), (V1, V12, 1), (V12, V1, 1), (V12, V12, 2)] {
            let mut initiator = Initiator::new(client);
            let mut acceptor = Acceptor::new(server);
            let (_, said) = acceptor.feed_hello(&initiator.hello(&hello())).unwrap();
            assert_eq!(said, Some(hello()));
            assert_eq!(acceptor.version(), Some(agreed));
            let (_, said) = initiator.feed_welcome(&acceptor.welcome(&welcome())).unwrap();
            assert_eq!(said, Some(welcome()));
            assert_eq!(
                initiator.feed_post_handshake(&acceptor.notice(PostHandshakeMessage::GoingAway)).unwrap().1,
                Some(PostHandshakeMessage::GoingAway)
            );
            assert_eq!(
                acceptor.feed_post_handshake(&initiator.notice(PostHandshakeMessage::CloseNotify)).unwrap().1,
                Some(PostHandshakeMessage::CloseNotify)
            );
        }
    }

    #[test]
    fn an_unknown_version_is_refused_on_both_sides_in_words() {
        let mut initiator = Initiator::new(V12);
        let mut acceptor = Acceptor::new(V34);
        let refusal = acceptor.feed_hello(&initiator.hello(&hello())).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Version);
        let error = initiator.feed_welcome(&acceptor.refuse(&refusal)).unwrap_err();
        assert_eq!(error, BootstrapError::Refused(refusal));
        assert!(error.to_string().contains("3..=4") && error.to_string().contains("1..=2"));
    }

    #[test]
    fn fields_that_a_later_version_appends_are_ignored() {
        let body = [postcard::to_allocvec(&Message::Hello(Box::new(hello()))).unwrap(), b"more of 2".into()];
        let bytes = Frame { versions: V12, body: body.concat() }.to_bytes();
        assert_eq!(Acceptor::new(V1).feed_hello(&bytes).unwrap().1, Some(hello()));
    }

    #[test]
    fn frames_out_of_turn_are_refused() {
        let mut acceptor = Acceptor::new(V1);
        let bytes = acceptor.welcome(&welcome());
        assert_eq!(acceptor.feed_hello(&bytes).unwrap_err().kind, RefusalKind::OutOfTurn);
        let mut initiator = Initiator::new(V1);
        let bytes = initiator.hello(&hello());
        assert!(matches!(initiator.feed_welcome(&bytes), Err(BootstrapError::Unusable(_))));
    }

    #[test]
    fn secrets_are_not_printed() {
        let text = format!("{:?} {:?}", hello(), welcome());
        assert_eq!((text.matches("secret: ..").count(), text.matches("tail_key: ..").count()), (2, 1));
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..400), kind in 0u8..5) {
            let bytes = Frame { versions: V1, body: [&[kind], &body[..]].concat() }.to_bytes();
            let _ = Acceptor::new(V1).feed_hello(&bytes);
            let _ = Initiator::new(V1).feed_welcome(&bytes);
            let _ = Acceptor::new(V1).feed_post_handshake(&bytes);
        }

        #[test]
        fn a_flipped_byte_is_read_or_refused(at in 0usize..200, byte in any::<u8>()) {
            let mut bytes = Initiator::new(V1).hello(&hello());
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = Acceptor::new(V1).feed_hello(&bytes);
        }
    }
}
