//! Encoding of values: postcard, appended to reusable memory.

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Length of a fingerprint in bytes, in front of the arguments.
pub const FINGERPRINT_BYTES: usize = 4;

struct Appended<'a>(&'a mut Vec<u8>);

impl Flavor for Appended<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Appends a value.
///
/// # Errors
/// Returns an error if the value cannot be encoded, such as a sequence of unknown length.
#[inline]
pub fn encode<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), String> {
    postcard::serialize_with_flavor(value, Appended(out)).map_err(|error| error.to_string())
}

/// Decodes a value from all of `bytes`.
///
/// # Errors
/// Returns an error if the bytes are not one encoded value.
#[inline]
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut rest = bytes;
    let value = take(&mut rest)?;
    if rest.is_empty() { Ok(value) } else { Err(format!("{} bytes too many", rest.len())) }
}

/// Removes the first value of `rest` and returns it.
///
/// # Errors
/// Returns an error if `rest` does not begin with a value.
#[inline]
pub fn take<T: DeserializeOwned>(rest: &mut &[u8]) -> Result<T, String> {
    let (value, after) = postcard::take_from_bytes(rest).map_err(|error| error.to_string())?;
    *rest = after;
    Ok(value)
}

/// Encodes a request into `out`, which is cleared first: the fingerprint, then the arguments.
#[inline]
pub fn request<T: Serialize>(fingerprint: u32, arguments: &T, out: &mut Vec<u8>) -> Result<(), String> {
    out.clear();
    out.extend_from_slice(&fingerprint.to_le_bytes());
    encode(arguments, out)
}
