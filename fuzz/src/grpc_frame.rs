//! Arbitrary bytes as frames of gRPC over streams: no panic, nothing longer than allowed, and an accepted frame has
//! the same meaning after it is encoded again.

use farcall_grpc::frame::hello::HELLO_BYTES;
use farcall_grpc::frame::{
    Frame, HEAD_BYTES, Head, Hello, Kind, PAYLOAD_BYTES_MAX, Writer, metadata, reason,
};

/// Encodes the same frame again.
fn written(head: Head, frame: Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::begin(&mut out, head.kind, head.call);
    let ends = match frame {
        Frame::Call { path, metadata, data, is_end } => {
            writer.path(path);
            writer.block(|out| out.extend_from_slice(metadata));
            writer.put(data);
            is_end
        }
        Frame::Response { http_status, metadata, trailers, data, is_end } => {
            writer.u16(http_status);
            writer.block(|out| out.extend_from_slice(metadata));
            writer.block(|out| out.extend_from_slice(trailers));
            writer.put(data);
            is_end
        }
        Frame::Data { data, is_end } => {
            writer.put(data);
            is_end
        }
        Frame::Trailers { trailers } => {
            writer.put(trailers);
            false
        }
        Frame::Reset { code, reason: why } => {
            writer.put(&[code]);
            writer.put(reason(why).as_bytes());
            false
        }
        Frame::Window { more_bytes } => {
            writer.put(&more_bytes.to_le_bytes());
            false
        }
        Frame::Goodbye { reason: why } => {
            writer.put(reason(why).as_bytes());
            false
        }
    };
    if ends {
        writer.end();
    }
    writer.finish(0);
    out
}

/// Checks that an accepted block of metadata has the same meaning after it is encoded again.
fn check_metadata(block: &[u8]) {
    let Ok(map) = metadata::read(block) else { return };
    assert!(metadata::weight(&map) <= metadata::METADATA_BYTES_MAX);
    let mut again = Vec::new();
    metadata::write(&map, &mut again);
    let again = metadata::read(&again).expect("what was written can be read");
    assert!(again.iter().all(|(name, value)| map.get_all(name).iter().any(|other| other == value)));
}

/// Runs one input: a hello, then frames.
pub fn run(input: &[u8]) {
    let mut rest = input;
    if let Some(bytes) = input.first_chunk::<HELLO_BYTES>()
        && let Ok(hello) = Hello::parse(bytes)
    {
        assert_eq!(Hello::parse(&hello.encode()), Ok(hello));
        rest = &input[HELLO_BYTES..];
    }
    while let Some(head) = rest.first_chunk::<HEAD_BYTES>() {
        let Ok(head) = Head::parse(head) else { return };
        assert!(head.len_bytes <= PAYLOAD_BYTES_MAX);
        let Some(payload) = rest.get(HEAD_BYTES..HEAD_BYTES + head.len_bytes) else { return };
        let Ok(frame) = Frame::parse(head, payload) else { return };
        assert_eq!(written(head, frame), rest[..HEAD_BYTES + payload.len()]);
        match frame {
            Frame::Call { metadata, .. } => check_metadata(metadata),
            Frame::Response { metadata, trailers, .. } => {
                check_metadata(metadata);
                check_metadata(trailers);
            }
            Frame::Trailers { trailers } => check_metadata(trailers),
            _ => assert!(matches!(head.kind, Kind::Data | Kind::Reset | Kind::Window | Kind::Goodbye)),
        }
        rest = &rest[HEAD_BYTES + head.len_bytes..];
    }
}
