//! A gRPC length-prefixed message: compressed flag, length, bytes.

use prost::Message;
use tonic::Status;

/// Length in bytes of the prefix of a message: one byte for the compressed flag and four for the length, big-endian.
pub(crate) const PREFIX_BYTES: usize = 5;
/// Maximum length of a received message in bytes, the default of tonic.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Appends a message and its prefix.
pub(crate) fn put(message: &impl Message, out: &mut Vec<u8>) {
    out.push(0);
    out.extend_from_slice(&(message.encoded_len() as u32).to_be_bytes());
    let _a_vector_grows = message.encode(out);
}

/// Decodes data that consists of exactly one message.
///
/// # Errors
/// Returns an error if the message is missing, incomplete, compressed, too long, invalid, or followed by more data.
pub(crate) fn read<M: Message + Default>(data: &[u8]) -> Result<M, Status> {
    let Some(([is_compressed, len @ ..], bytes)) = data.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(Status::internal("a message is missing"));
    };
    if *is_compressed != 0 {
        return Err(Status::unimplemented("a compressed message, although compression was not negotiated"));
    }
    let len = u32::from_be_bytes(*len) as usize;
    if len > MESSAGE_BYTES_MAX {
        let why = format!("a message of {len} bytes is longer than {MESSAGE_BYTES_MAX}");
        return Err(Status::out_of_range(why));
    }
    if bytes.len() != len {
        return Err(Status::internal(format!("{} bytes in place of one message of {len}", bytes.len())));
    }
    M::decode(bytes).map_err(|error| Status::internal(format!("a message cannot be decoded: {error}")))
}
