use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;

fn made(write: impl FnOnce(&mut Vec<u8>)) -> (Head, Vec<u8>) {
    let mut out = Vec::new();
    write(&mut out);
    let head = Head::parse(out.first_chunk().unwrap()).unwrap();
    assert_eq!(head.len_bytes, out.len() - HEAD_BYTES);
    (head, out.split_off(HEAD_BYTES))
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(*name, HeaderValue::from_str(value).unwrap());
    }
    map
}

#[test]
fn calls_are_read_as_they_were_written() {
    for path in [Path::Known(7), Path::Defined(0, "/a/b"), Path::Literal("/a/b")] {
        let (head, payload) = made(|out| {
            let mut writer = Writer::begin(out, Kind::Call, 65_535);
            writer.path(path);
            writer.block(|out| out.extend_from_slice(b"block"));
            writer.put(b"data");
            writer.end();
            writer.finish(0);
        });
        assert_eq!((head.kind, head.call), (Kind::Call, 65_535));
        let expected = Frame::Call { path, metadata: b"block", data: b"data", is_end: true };
        assert_eq!(Frame::parse(head, &payload), Ok(expected));
    }
}

#[test]
fn a_frame_that_is_cut_is_refused() {
    let (head, payload) = made(|out| {
        let mut writer = Writer::begin(out, Kind::Response, 1);
        writer.u16(200);
        writer.block(|out| metadata::write(&headers(&[("x-a", "b")]), out));
        writer.block(|_| {});
        writer.finish(0);
    });
    assert!(Frame::parse(head, &payload).is_ok());
    for len in 0..payload.len() {
        assert!(Frame::parse(head, &payload[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn heads_of_no_frame_are_refused() {
    for bytes in [
        [0, 0, 0, 0, 0, 0, 0, 0],
        [8, 0, 0, 0, 0, 0, 0, 0],
        // Flags that this type of frame does not have.
        [3, 2, 0, 0, 0, 0, 0, 0],
        [6, 1, 0, 0, 0, 0, 0, 0],
        // One byte too long.
        [3, 0, 0, 0, 1, 0, 1, 0],
    ] {
        assert!(Head::parse(&bytes).is_err(), "{bytes:?}");
    }
    assert!(Head::parse(&[3, 0, 0, 0, 0, 0, 1, 0]).is_ok());
}

#[test]
fn preserves_metadata_and_omits_constant_headers() {
    let said = headers(&[
        ("grpc-status", "0"),
        ("grpc-timeout", "1S"),
        ("x-twice", "one"),
        ("x-twice", "two"),
        ("x-empty", ""),
        ("content-type", "application/grpc+proto"),
    ]);
    let mut block = Vec::new();
    metadata::write(&said, &mut block);
    assert_eq!(metadata::read(&block), Ok(said));

    for (details, expected) in [("AAEC", 1), ("!", 0)] {
        block.clear();
        metadata::write(&headers(&[("grpc-status-details-bin", details)]), &mut block);
        assert_eq!(metadata::read(&block).unwrap().len(), expected, "{details}");
    }

    block.clear();
    metadata::write(&headers(&[("te", "trailers"), ("content-type", "application/grpc")]), &mut block);
    assert_eq!(block, []);
}

#[test]
fn metadata_that_cannot_be_is_refused() {
    for block in [&[255, 0, 0][..], &[1, 5, 0, b'x'], &[0, 1, b'A', 0, 0], &[0, 0, 0, 0], &[1, 1, 0, b'\n']] {
        assert!(metadata::read(block).is_err(), "{block:?}");
    }
    // Many short entries weigh more than their bytes.
    let short = [0, 1, b'a', 0, 0].repeat(metadata::METADATA_BYTES_MAX / metadata::ENTRY_BYTES);
    assert_eq!(metadata::read(&short), Err(FrameError("more metadata than allowed")));
}

#[test]
fn what_cannot_be_sent_weighs_too_much() {
    let mut map = HeaderMap::new();
    map.insert(HeaderName::from_bytes(&[b'a'; 300]).unwrap(), HeaderValue::from_static(""));
    assert!(metadata::weight(&map) > metadata::METADATA_BYTES_MAX);
    assert_eq!(metadata::weight(&headers(&[("x-a", "bc")])), 3 + 2 + metadata::ENTRY_BYTES);
}

#[test]
fn ends_use_the_newest_version_that_both_speak() {
    let speaks = |version_min, version_max| Hello { version_min, version_max, calls_max: 1, window_bytes: 1 };
    assert_eq!(speaks(1, 3).version_with(speaks(2, 5)), Some(3));
    assert_eq!(speaks(1, 1).version_with(speaks(1, 1)), Some(1));
    assert_eq!(speaks(1, 1).version_with(speaks(2, 3)), None);
    assert_eq!(Hello::parse(&speaks(1, 3).encode()), Ok(speaks(1, 3)));
    for bad in
        [Hello { calls_max: 0, ..speaks(1, 1) }, Hello { window_bytes: 0, ..speaks(1, 1) }, speaks(2, 1)]
    {
        assert!(Hello::parse(&bad.encode()).is_err(), "{bad:?}");
    }
}

#[test]
fn a_reason_is_cut_between_characters() {
    let long = "ä".repeat(REASON_BYTES_MAX);
    assert_eq!(reason(&long).len(), REASON_BYTES_MAX);
    assert_eq!(reason(&format!("x{long}")).len(), REASON_BYTES_MAX - 1);
}
