//! Arbitrary bytes, split arbitrarily, to both sides of a handshake: no panic, nothing buffered beyond one frame, the
//! same outcome as for unsplit bytes, and an accepted message has the same meaning after it is encoded again.

use farcall_link::bootstrap::{
    Acceptor, BootstrapError, FRAME_BYTES_MAX, Hello, Initiator, Refusal, StreamEnd, StreamReply,
    VersionRange, Welcome,
};

const VERSIONS: VersionRange = VersionRange { min: 1, max: 2 };

/// Returns the server's result for bytes that are received in chunks of `pace`.
fn hello(bytes: &[u8], pace: usize) -> Result<Option<Hello>, Refusal> {
    let mut acceptor = Acceptor::new(VERSIONS);
    for piece in bytes.chunks(pace) {
        let (taken, said) = acceptor.feed_hello(piece)?;
        assert!(taken <= piece.len());
        if said.is_some() {
            return Ok(said);
        }
        assert_eq!(taken, piece.len(), "without a whole frame every byte is taken");
    }
    Ok(None)
}

/// Returns the client's result for such bytes.
fn welcome(bytes: &[u8], pace: usize) -> Result<Option<Welcome>, BootstrapError> {
    let mut initiator = Initiator::new(VERSIONS);
    for piece in bytes.chunks(pace) {
        let (taken, said) = initiator.feed_welcome(piece)?;
        assert!(taken <= piece.len());
        if said.is_some() {
            return Ok(said);
        }
        assert_eq!(taken, piece.len(), "without a whole frame every byte is taken");
    }
    Ok(None)
}

/// Returns the results of server and client of streams for such bytes.
fn streams(bytes: &[u8], pace: usize) -> (Option<StreamEnd>, Option<StreamReply>) {
    let (mut acceptor, mut initiator) = (Acceptor::new(VERSIONS), Initiator::new(VERSIONS));
    let asked = bytes.chunks(pace).map(|piece| acceptor.feed_open_stream(piece));
    let asked = asked.map_while(Result::ok).find_map(|(_, said)| said);
    let opened = bytes.chunks(pace).map(|piece| initiator.feed_stream_opened(piece));
    (asked, opened.map_while(Result::ok).find_map(|(_, said)| said))
}

/// Passes the bytes to either side after the handshake.
fn notices(bytes: &[u8]) {
    let (mut acceptor, mut rest) = (Acceptor::new(VERSIONS), bytes);
    while let Ok((taken @ 1.., _)) = acceptor.feed_post_handshake(rest) {
        rest = &rest[taken..];
    }
    let (mut initiator, mut rest) = (Initiator::new(VERSIONS), bytes);
    while let Ok((taken @ 1.., _)) = initiator.feed_post_handshake(rest) {
        rest = &rest[taken..];
    }
}

/// Returns whether two outcomes are alike. The text of a refusal may quote the number of received bytes, but its kind
/// does not depend on it.
fn is_alike<T: PartialEq, E>(a: &Result<T, E>, b: &Result<T, E>, kind: impl Fn(&E) -> String) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => a == b,
        (Err(a), Err(b)) => kind(a) == kind(b),
        _ => false,
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((&pace, bytes)) = input.split_first() else { return };
    let (pace, whole) = (usize::from(pace) + 1, bytes.len().max(1));

    let said = hello(bytes, whole);
    assert!(is_alike(&said, &hello(bytes, pace), |refusal| format!("{:?}", refusal.kind)));
    if let Ok(Some(said)) = &said {
        let again = Initiator::new(VERSIONS).hello(said);
        assert!(again.len() <= FRAME_BYTES_MAX);
        assert_eq!(hello(&again, pace), Ok(Some(said.clone())));
        // The plan of a peer is checked before any memory is allocated for it.
        let _ = (said.plan.geometry.check(), said.plan.preset());
    }

    let said = welcome(bytes, whole);
    let kind = |error: &BootstrapError| match error {
        BootstrapError::Refused(refusal) => format!("refused {:?}", refusal.kind),
        BootstrapError::Unusable(refusal) => format!("unusable {:?}", refusal.kind),
    };
    assert!(is_alike(&said, &welcome(bytes, pace), kind));
    if let Ok(Some(said)) = &said {
        let again = Acceptor::new(VERSIONS).welcome(said);
        assert_eq!(welcome(&again, pace), Ok(Some(said.clone())));
    }

    let (asked, opened) = streams(bytes, whole);
    assert_eq!((asked.clone(), opened.clone()), streams(bytes, pace));
    let told = match opened {
        Some(StreamReply::Opened(end)) => Some(*end),
        Some(StreamReply::OverChannel) => {
            // All following bytes belong to the stream: none of them may be consumed.
            let (answer, mut client) =
                (Acceptor::new(VERSIONS).stream_over_channel(), Initiator::new(VERSIONS));
            let taken = client.feed_stream_opened(&[&answer, bytes].concat());
            assert_eq!(taken, Ok((answer.len(), Some(StreamReply::OverChannel))));
            None
        }
        None => None,
    };
    if let Some(end) = asked.or(told) {
        let asked = streams(&Initiator::new(VERSIONS).open_stream(&end), pace).0;
        let opened = streams(&Acceptor::new(VERSIONS).stream_opened(&end), pace).1;
        assert_eq!((asked, opened), (Some(end.clone()), Some(StreamReply::Opened(Box::new(end)))));
    }

    notices(bytes);
}
