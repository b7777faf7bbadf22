//! Encoding of metadata: a sequence of entries, each `[code][length][value]`.
//!
//! The code identifies a common name. After code 0 the name follows, preceded by its length. Entries that are the same
//! in every gRPC call are omitted: `te`, and a `content-type` of `application/grpc`.

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE, USER_AGENT};
use http::{HeaderMap, header};
use tonic::metadata::MetadataMap;

use super::{FrameError, Reader};

/// Maximum weight of a call's metadata or of its trailers: names, values, and [`ENTRY_BYTES`] for each entry.
pub const METADATA_BYTES_MAX: usize = 16 << 10;
/// Weight of an entry in addition to its name and value, as in HTTP/2: even a short entry costs memory.
pub const ENTRY_BYTES: usize = 32;

/// Names that have a code, which is the index in this list plus one. Later versions append.
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

/// Encoded trailers of a call that succeeded.
pub const SUCCESS: [u8; 4] = [1, 1, 0, b'0'];

static GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
static OK: HeaderValue = HeaderValue::from_static("0");

/// Returns the trailers that [`SUCCESS`] encodes.
pub fn success() -> HeaderMap {
    HeaderMap::from_iter([(NAMES[0].clone(), OK.clone())])
}

fn is_left_out(name: &HeaderName, value: &HeaderValue) -> bool {
    name == TE || name == CONTENT_TYPE && value == GRPC
}

/// Returns the weight of the metadata, counted against [`METADATA_BYTES_MAX`]. The result exceeds that if an entry
/// cannot be encoded.
pub fn weight(map: &HeaderMap) -> usize {
    let weigh = |(name, value): (&HeaderName, &HeaderValue)| {
        if name.as_str().len() > u8::MAX.into() {
            return METADATA_BYTES_MAX + 1;
        }
        name.as_str().len() + value.len() + ENTRY_BYTES
    };
    map.iter().map(weigh).sum()
}

/// Appends the entries of a map. Its weight must not exceed [`METADATA_BYTES_MAX`].
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

/// Decodes the entries of a block.
///
/// Status details that are not valid base64 are omitted.
///
/// # Errors
/// Returns an error if the encoding is invalid, or if the weight exceeds the limit.
pub fn read(block: &[u8]) -> Result<HeaderMap, FrameError> {
    let mut map = HeaderMap::new();
    let mut weight = 0;
    let mut reader = Reader(block);
    while !reader.0.is_empty() {
        let name = match reader.take(1)?[0] {
            0 => {
                let len = reader.take(1)?[0];
                let name = reader.take(len.into())?;
                HeaderName::from_lowercase(name)
                    .map_err(|_| FrameError("metadata with an impossible name"))?
            }
            code => NAMES
                .get(usize::from(code) - 1)
                .ok_or(FrameError("metadata with a code that stands for no name"))?
                .clone(),
        };
        let value = reader.block()?;
        weight += name.as_str().len() + value.len() + ENTRY_BYTES;
        if weight > METADATA_BYTES_MAX {
            return Err(FrameError("more metadata than allowed"));
        }
        let value = match value {
            b"0" => OK.clone(),
            value => {
                HeaderValue::from_bytes(value).map_err(|_| FrameError("metadata with an impossible value"))?
            }
        };
        map.append(name, value);
    }
    Ok(without_bad_details(map))
}

/// Removes status details that are not valid base64: `Status::from_header_map` panics on them, and a peer must not be
/// able to cause that.
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
