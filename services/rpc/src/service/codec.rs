//! Values as bytes: postcard, appended to memory that is used again.

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a fingerprint, in front of the arguments.
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
/// If it has no form: a sequence of unknown length, say.
#[inline]
pub fn encode<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), String> {
    postcard::serialize_with_flavor(value, Appended(out)).map_err(|error| error.to_string())
}

/// The value that `bytes` are, all of them.
///
/// # Errors
/// If they are none.
#[inline]
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut rest = bytes;
    let value = take(&mut rest)?;
    if rest.is_empty() { Ok(value) } else { Err(format!("{} bytes too many", rest.len())) }
}

/// Takes the first value off `rest`.
///
/// # Errors
/// If there is none.
#[inline]
pub fn take<T: DeserializeOwned>(rest: &mut &[u8]) -> Result<T, String> {
    let (value, after) = postcard::take_from_bytes(rest).map_err(|error| error.to_string())?;
    *rest = after;
    Ok(value)
}

/// A request: the fingerprint, then the arguments. `out` is emptied before.
#[inline]
pub fn request<T: Serialize>(fingerprint: u32, arguments: &T, out: &mut Vec<u8>) -> Result<(), String> {
    out.clear();
    out.extend_from_slice(&fingerprint.to_le_bytes());
    encode(arguments, out)
}
