//! Encoding of messages as management datagrams of 256 bytes (volume 1, sections 13.4 and 12.6).

use crate::cm::MESSAGE_BYTES;
use crate::cm::fields::{BODY_BYTES, Body};
use crate::cm::layout::{self, attribute};
use crate::cm::message::Message;

/// Version of the MAD format.
const BASE_VERSION: u8 = 1;
/// Management class: communication management.
const CLASS: u8 = 0x07;
/// Version of the class.
const CLASS_VERSION: u8 = 2;
/// `Send`: the class has no other method.
const METHOD: u8 = 0x03;

const HEADER_BYTES: usize = MESSAGE_BYTES - BODY_BYTES;
const TRANSACTION_AT: usize = 8;
const ATTRIBUTE_AT: usize = 16;
const MODIFIER_AT: usize = 20;

/// Reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The length is not that of a MAD.
    #[error("{0} bytes are no management datagram: it has {MESSAGE_BYTES}")]
    Length(usize),
    /// The MAD is of another class, or the bytes are not a MAD.
    #[error("the bytes are not of a connection manager")]
    OtherClass,
    /// The version is unknown.
    #[error(
        "the message is of base version {base} and class version {class}; known are {BASE_VERSION} and {CLASS_VERSION}"
    )]
    Version {
        /// Version of the MAD format.
        base: u8,
        /// Version of the communication management class.
        class: u8,
    },
    /// The message type is unknown.
    #[error("there is no message with attribute ID {0:#06x}")]
    Kind(u16),
    /// The service is not a port of a port space.
    #[error("service ID {0:#018x} is not a port of a known port space")]
    Service(u64),
    /// A field has an invalid value.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
}

/// A message with its identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Transaction ID of the request, repeated in its reply.
    pub transaction_id: u64,
    /// The sender's communication ID; in a SIDR REQ its request ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID, 0 if the sender does not know it; in a SIDR REP the request ID.
    pub remote_comm_id: u32,
    /// Type and contents of the message.
    pub message: Message,
}

impl Mad {
    /// Returns the bytes of the message; values that exceed their field are clamped.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut mad = self.clone();
        mad.message.clamp();
        let (attribute, modifier, body) = layout::encode(&mad);
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD]);
        bytes[TRANSACTION_AT..][..8].copy_from_slice(&mad.transaction_id.to_be_bytes());
        bytes[ATTRIBUTE_AT..][..2].copy_from_slice(&attribute.to_be_bytes());
        bytes[MODIFIER_AT..][..4].copy_from_slice(&modifier.to_be_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(&body.0);
        bytes
    }

    /// Parses a message. Private data is returned with its maximum length, padded with zeros.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a message, or one of an unknown type.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| Malformed::Length(bytes.len()))?;
        let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().expect("a MAD has a header");
        let [base, class_of, class, method, ..] = *header;
        if (class_of, method) != (CLASS, METHOD) {
            return Err(Malformed::OtherClass);
        }
        if (base, class) != (BASE_VERSION, CLASS_VERSION) {
            return Err(Malformed::Version { base, class });
        }
        let body = Body(body.try_into().expect("a MAD is a header and a body"));
        let header = |at: usize, len: usize| {
            header[at..at + len].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let (kind, modifier) = (header(ATTRIBUTE_AT, 2) as u16, header(MODIFIER_AT, 4) as u32);
        let mut message = layout::decode(kind, modifier, &body)?;
        if let Some(field) = message.clamp() {
            return Err(Malformed::OutOfRange(field));
        }
        let transaction_id = header(TRANSACTION_AT, 8);
        let (local_comm_id, remote_comm_id) = match kind {
            attribute::REQ | attribute::SIDR_REQ => (body.u32(0), 0),
            attribute::SIDR_REP => (0, body.u32(0)),
            _ => (body.u32(0), body.u32(4)),
        };
        Ok(Self { transaction_id, local_comm_id, remote_comm_id, message })
    }
}

#[cfg(test)]
mod tests;
