//! The refusal of memcached's binary protocol, in the format of that protocol.

/// First byte of a request; no text command begins with it.
pub(super) const MAGIC: u8 = 0x80;

pub(super) const HEADER_BYTES: usize = 24;

const TEXT: &[u8] = b"SERVER_ERROR the binary protocol is not spoken here: use the text protocol";

/// Returns the response to the request with this header, after which the connection is closed.
pub(super) fn refusal(request: &[u8; HEADER_BYTES]) -> [u8; HEADER_BYTES + TEXT.len()] {
    const RESPONSE: u8 = 0x81;
    const NOT_SUPPORTED: u16 = 0x83;
    let mut answer = [0; HEADER_BYTES + TEXT.len()];
    (answer[0], answer[1]) = (RESPONSE, request[1]);
    answer[6..8].copy_from_slice(&NOT_SUPPORTED.to_be_bytes());
    answer[8..12].copy_from_slice(&(TEXT.len() as u32).to_be_bytes());
    // The opaque field, by which the client identifies its request.
    answer[12..16].copy_from_slice(&request[12..16]);
    answer[HEADER_BYTES..].copy_from_slice(TEXT);
    answer
}
