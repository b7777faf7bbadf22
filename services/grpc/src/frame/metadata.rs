//! Metadata as it goes over a stream: entries one behind another, each `[code][length][value]`.
//!
//! The code stands for a name that many calls have; with code 0 the name follows it, after its length. What is the same
//! in every call of gRPC is left out: `te`, and a `content-type` that says `application/grpc`.

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE, USER_AGENT};
use http::{HeaderMap, header};
use tonic::metadata::MetadataMap;

use super::{Garbled, Reader};

/// The most that a call's metadata, or its trailers, may be: names, values, and [`ENTRY_BYTES`] for each entry.
pub const METADATA_BYTES_MAX: usize = 16 << 10;
/// What an entry counts beside its name and value, as in HTTP/2: it costs memory even if both are short.
pub const ENTRY_BYTES: usize = 32;

/// Names that have a code: their place here, from 1 on. Later versions append.
static NAMES: [HeaderName; 9] = [
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-message"),
    HeaderName::from_static("grpc-status-details-bin"),
    HeaderName::from_static("grpc-timeout"),
    HeaderName::from_static("grpc-encoding"),
    HeaderName::from_static("grpc-accept-encoding"),
    USER_AGENT,
    header::AUTHORIZATION,
    CONTENT_TYPE,
];

/// The trailers of a call that succeeded, as they go over a stream.
pub const SUCCESS: [u8; 4] = [1, 1, 0, b'0'];

static GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
static OK: HeaderValue = HeaderValue::from_static("0");

/// What [`SUCCESS`] stands for.
pub fn success() -> HeaderMap {
    HeaderMap::from_iter([(NAMES[0].clone(), OK.clone())])
}

fn is_left_out(name: &HeaderName, value: &HeaderValue) -> bool {
    name == TE || name == CONTENT_TYPE && value == GRPC
}

/// How much of [`METADATA_BYTES_MAX`] it uses, or more than that if an entry cannot be sent at all.
pub fn weight(map: &HeaderMap) -> usize {
    let weigh = |(name, value): (&HeaderName, &HeaderValue)| {
        if name.as_str().len() > u8::MAX.into() {
            return METADATA_BYTES_MAX + 1;
        }
        name.as_str().len() + value.len() + ENTRY_BYTES
    };
    map.iter().map(weigh).sum()
}

/// Appends the entries of a map that weighs no more than allowed.
pub fn write(map: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in map.iter().filter(|(name, value)| !is_left_out(name, value)) {
        match NAMES.iter().position(|known| known == name) {
            Some(at) => out.push(at as u8 + 1),
            None => {
                out.extend_from_slice(&[0, name.as_str().len() as u8]);
                out.extend_from_slice(name.as_str().as_bytes());
            }
        }
        out.extend_from_slice(&(value.len() as u16).to_le_bytes());
        out.extend_from_slice(value.as_bytes());
    }
}

/// Reads the entries of a block.
///
/// Details of a status that are not base64 are left out.
///
/// # Errors
/// If they are none, or weigh more than allowed.
pub fn read(block: &[u8]) -> Result<HeaderMap, Garbled> {
    let mut map = HeaderMap::new();
    let mut weight = 0;
    let mut reader = Reader(block);
    while !reader.0.is_empty() {
        let name = match reader.take(1)?[0] {
            0 => {
                let len = reader.take(1)?[0];
                let name = reader.take(len.into())?;
                HeaderName::from_lowercase(name).map_err(|_| Garbled("metadata with an impossible name"))?
            }
            code => NAMES
                .get(usize::from(code) - 1)
                .ok_or(Garbled("metadata with a code that stands for no name"))?
                .clone(),
        };
        let value = reader.block()?;
        weight += name.as_str().len() + value.len() + ENTRY_BYTES;
        if weight > METADATA_BYTES_MAX {
            return Err(Garbled("more metadata than allowed"));
        }
        let value = match value {
            b"0" => OK.clone(),
            value => {
                HeaderValue::from_bytes(value).map_err(|_| Garbled("metadata with an impossible value"))?
            }
        };
        map.append(name, value);
    }
    Ok(without_bad_details(map))
}

/// `Status::from_header_map` panics at details that are not base64: a peer must not be able to do that.
fn without_bad_details(map: HeaderMap) -> HeaderMap {
    const DETAILS: &str = "grpc-status-details-bin";
    if !map.contains_key(DETAILS) {
        return map;
    }
    let metadata = MetadataMap::from_headers(map);
    let is_bad = metadata.get_all_bin(DETAILS).iter().any(|details| details.to_bytes().is_err());
    let mut map = metadata.into_headers();
    if is_bad {
        map.remove(DETAILS);
    }
    map
}
