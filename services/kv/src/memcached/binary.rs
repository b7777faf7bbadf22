//! The refusal of memcached's binary protocol, in that protocol.

/// The first byte of a request; no text command starts so.
pub(super) const MAGIC: u8 = 0x80;

pub(super) const HEADER_BYTES: usize = 24;

const TEXT: &[u8] = b"SERVER_ERROR the binary protocol is not spoken here: use the text protocol";

/// The answer to the request with this header; then the connection ends.
pub(super) fn refusal(request: &[u8; HEADER_BYTES]) -> [u8; HEADER_BYTES + TEXT.len()] {
    const RESPONSE: u8 = 0x81;
    const NOT_SUPPORTED: u16 = 0x83;
    let mut answer = [0; HEADER_BYTES + TEXT.len()];
    (answer[0], answer[1]) = (RESPONSE, request[1]);
    answer[6..8].copy_from_slice(&NOT_SUPPORTED.to_be_bytes());
    answer[8..12].copy_from_slice(&(TEXT.len() as u32).to_be_bytes());
    // The opaque field, by which the client knows its request.
    answer[12..16].copy_from_slice(&request[12..16]);
    answer[HEADER_BYTES..].copy_from_slice(TEXT);
    answer
}
