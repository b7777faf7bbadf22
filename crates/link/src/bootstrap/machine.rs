//! The two sides of a conversation.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{
    Frame, FrameKind, FrameReader, Hello, Notice, Refusal, RefusalKind, VersionRange, Welcome, encode_frame,
};

/// Why a client's handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BootstrapError {
    /// The server refused us.
    #[error("the server says: {0}")]
    Refused(Refusal),
    /// We refuse what the server sent.
    #[error("the server's answer is no handshake: {0}")]
    Unusable(Refusal),
}

fn encode<T: Serialize>(versions: VersionRange, kind: FrameKind, body: &T) -> Vec<u8> {
    // Vectors grow: serialising plain data into one cannot fail.
    let body = postcard::to_allocvec(body).unwrap_or_default();
    encode_frame(versions, kind, &body)
}

fn decode<T: DeserializeOwned>(frame: &Frame) -> Result<T, Refusal> {
    match postcard::take_from_bytes(&frame.body) {
        Ok((body, _appended_by_a_later_version)) => Ok(body),
        Err(error) => {
            Err(RefusalKind::Malformed.because(format!("the body of a {:?} frame: {error}", frame.kind)))
        }
    }
}

/// The server's side of one conversation.
#[derive(Debug)]
pub struct Acceptor {
    versions: VersionRange,
    reader: FrameReader,
    version: Option<u16>,
}

/// What a client said.
type Said<T> = (usize, Option<T>);

impl Acceptor {
    /// Waits for a hello.
    pub fn new(versions: VersionRange) -> Self {
        Self { versions, reader: FrameReader::default(), version: None }
    }

    /// The version agreed on, once a hello came.
    pub const fn version(&self) -> Option<u16> {
        self.version
    }

    /// Takes bytes in until the client's hello is whole. Returns how many it took.
    ///
    /// # Errors
    /// What to send back with [`Acceptor::refuse`] before closing.
    pub fn feed_hello(&mut self, bytes: &[u8]) -> Result<Said<Hello>, Refusal> {
        let (taken, Some(frame)) = self.reader.feed(bytes)? else {
            return Ok((bytes.len(), None));
        };
        if frame.kind != FrameKind::Hello || self.version.is_some() {
            return Err(
                RefusalKind::OutOfTurn.because(format!("a {:?} frame instead of a hello", frame.kind))
            );
        }
        self.version = Some(common(self.versions, frame.versions)?);
        Ok((taken, Some(decode(&frame)?)))
    }

    /// Takes bytes in until a notice is whole. Returns how many it took.
    ///
    /// # Errors
    /// If the client says anything else; close the conversation.
    pub fn feed_notice(&mut self, bytes: &[u8]) -> Result<Said<Notice>, Refusal> {
        notice(&mut self.reader, bytes)
    }

    /// The bytes of a welcome.
    pub fn welcome(&self, welcome: &Welcome) -> Vec<u8> {
        encode(self.versions, FrameKind::Welcome, welcome)
    }

    /// The bytes of a refusal.
    pub fn refuse(&self, refusal: &Refusal) -> Vec<u8> {
        encode(self.versions, FrameKind::Refuse, refusal)
    }

    /// The bytes of a notice.
    pub fn notice(&self, notice: Notice) -> Vec<u8> {
        encode(self.versions, FrameKind::Notice, &notice)
    }
}

/// The client's side.
#[derive(Debug)]
pub struct Initiator {
    versions: VersionRange,
    reader: FrameReader,
}

impl Initiator {
    /// Starts a conversation.
    pub fn new(versions: VersionRange) -> Self {
        Self { versions, reader: FrameReader::default() }
    }

    /// The bytes of a hello.
    pub fn hello(&self, hello: &Hello) -> Vec<u8> {
        encode(self.versions, FrameKind::Hello, hello)
    }

    /// Takes bytes in until the server's answer is whole. Returns how many it took.
    ///
    /// # Errors
    /// If the server refuses or its answer is none.
    pub fn feed_welcome(&mut self, bytes: &[u8]) -> Result<Said<Welcome>, BootstrapError> {
        let (taken, frame) = self.reader.feed(bytes).map_err(BootstrapError::Unusable)?;
        let Some(frame) = frame else { return Ok((taken, None)) };
        match frame.kind {
            // A refusal is readable whatever the version: it may be about the version.
            FrameKind::Refuse => {
                Err(BootstrapError::Refused(decode(&frame).map_err(BootstrapError::Unusable)?))
            }
            FrameKind::Welcome => {
                common(self.versions, frame.versions).map_err(BootstrapError::Unusable)?;
                Ok((taken, Some(decode(&frame).map_err(BootstrapError::Unusable)?)))
            }
            other => Err(BootstrapError::Unusable(
                RefusalKind::OutOfTurn.because(format!("a {other:?} frame instead of a welcome")),
            )),
        }
    }

    /// Takes bytes in, after the welcome, until a notice is whole. Returns how many it took.
    ///
    /// # Errors
    /// If the server says why it ends the connection, or anything that it should not.
    pub fn feed_later(&mut self, bytes: &[u8]) -> Result<Said<Notice>, BootstrapError> {
        let (taken, frame) = self.reader.feed(bytes).map_err(BootstrapError::Unusable)?;
        let Some(frame) = frame else { return Ok((taken, None)) };
        match frame.kind {
            FrameKind::Refuse => {
                Err(BootstrapError::Refused(decode(&frame).map_err(BootstrapError::Unusable)?))
            }
            FrameKind::Notice => Ok((taken, Some(decode(&frame).map_err(BootstrapError::Unusable)?))),
            other => Err(BootstrapError::Unusable(
                RefusalKind::OutOfTurn.because(format!("a {other:?} frame after the handshake")),
            )),
        }
    }

    /// The bytes of a notice.
    pub fn notice(&self, notice: Notice) -> Vec<u8> {
        encode(self.versions, FrameKind::Notice, &notice)
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

fn notice(reader: &mut FrameReader, bytes: &[u8]) -> Result<Said<Notice>, Refusal> {
    let (taken, frame) = reader.feed(bytes)?;
    let Some(frame) = frame else { return Ok((taken, None)) };
    if frame.kind != FrameKind::Notice {
        return Err(RefusalKind::OutOfTurn.because(format!("a {:?} frame after the handshake", frame.kind)));
    }
    Ok((taken, Some(decode(&frame)?)))
}

#[cfg(test)]
mod tests {
    use super::super::{Features, Grants, QpInfo, Resume, SessionId};
    use super::*;
    use crate::{Plan, RemoteRegion};
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            provider: "softnic".into(),
            qp: QpInfo { qp_num: 7, psn: 9, gid: [3; 16], lid: 0, mtu_log2: 12 },
            grants: Grants {
                inbox: RemoteRegion { addr: 4096, len_bytes: 64, rkey: 5 },
                ..Grants::default()
            },
            plan: Plan::default(),
            features: Features::KICK,
            thread: 2,
            resume: Some(Resume {
                session: SessionId([1; 16]),
                secret: [2; 16],
                incarnation: 3,
                oldest_seq: 4,
            }),
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
            secret: [2; 16],
            tail_key: 12,
            resumed: None,
            request_bytes_max: 13,
            result_bytes_max: 14,
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
                initiator.feed_later(&acceptor.notice(Notice::GoingAway)).unwrap().1,
                Some(Notice::GoingAway)
            );
            assert_eq!(
                acceptor.feed_notice(&initiator.notice(Notice::Goodbye)).unwrap().1,
                Some(Notice::Goodbye)
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
        let mut body = postcard::to_allocvec(&hello()).unwrap();
        body.extend_from_slice(b"more of version 2");
        let bytes = encode_frame(V12, FrameKind::Hello, &body);
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
        assert!(!text.contains("secret") && !text.contains("tail_key"));
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..400), kind in 1u8..5) {
            let kind = [FrameKind::Hello, FrameKind::Welcome, FrameKind::Refuse, FrameKind::Notice][usize::from(kind - 1)];
            let bytes = encode_frame(V1, kind, &body);
            let _ = Acceptor::new(V1).feed_hello(&bytes);
            let _ = Initiator::new(V1).feed_welcome(&bytes);
            let _ = Acceptor::new(V1).feed_notice(&bytes);
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
