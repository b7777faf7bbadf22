//! The blocks of pcapng (draft-ietf-opsawg-pcapng) that captures use. All numbers are little-endian.

use std::io::{self, Read};

/// Section header: begins a section of related blocks.
pub(crate) const SECTION: u32 = 0x0A0D_0D0A;
/// Interface description.
pub(crate) const INTERFACE: u32 = 1;
/// Interface statistics.
pub(crate) const STATISTICS: u32 = 5;
/// Enhanced packet.
pub(crate) const PACKET: u32 = 6;

/// Byte-order magic.
const MAGIC: u32 = 0x1A2B_3C4D;
const ETHERNET: u16 = 1;
/// Resolution of timestamps: 10^-9 s.
const NANOSECONDS: u8 = 9;
/// Maximum length of a block: frames are shorter than 5 KiB, and texts than 64 KiB.
const BLOCK_BYTES_MAX: usize = 1 << 18;

/// Length of the fields of a block around its body: type and length before it, the length again after it.
const AROUND_BYTES: usize = 12;
/// Offset of the count of dropped packets in a statistics block.
pub(crate) const DROPPED_AT: usize = 8 + 12 + (4 + 8) + 4;

const COMMENT: u16 = 1;

/// Appends a block; `fill` appends its body.
pub(crate) fn block(to: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = to.len();
    to.extend(kind.to_le_bytes());
    to.extend([0; 4]);
    fill(to);
    let len_bytes = (to.len() - at + 4) as u32;
    to.extend(len_bytes.to_le_bytes());
    to[at + 4..at + 8].copy_from_slice(&len_bytes.to_le_bytes());
}

fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    // A text may contain a program's name, so it is truncated to the maximum length of an option.
    let value = &value[..value.len().min(usize::from(u16::MAX) - 3)];
    to.extend(code.to_le_bytes());
    to.extend((value.len() as u16).to_le_bytes());
    to.extend(value);
    pad(to, value.len());
}

fn end_options(to: &mut Vec<u8>) {
    option(to, 0, &[]);
}

/// Pads a field of `len_bytes` to a multiple of four.
pub(crate) fn pad(to: &mut Vec<u8>, len_bytes: usize) {
    to.resize(to.len() + (len_bytes.wrapping_neg() & 3), 0);
}

/// Appends a section header.
pub(crate) fn section(to: &mut Vec<u8>, comment: &str) {
    const APPLICATION: u16 = 4;
    block(to, SECTION, |to| {
        to.extend(MAGIC.to_le_bytes());
        to.extend([1, 0, 0, 0]);
        // The section's length is unspecified.
        to.extend([0xFF; 8]);
        option(to, COMMENT, comment.as_bytes());
        option(to, APPLICATION, concat!("farcall ", env!("CARGO_PKG_VERSION")).as_bytes());
        end_options(to);
    });
}

/// Appends the description of an interface.
pub(crate) fn interface(to: &mut Vec<u8>, name: &str, description: &str, comment: &str, snaplen_bytes: u32) {
    const NAME: u16 = 2;
    const DESCRIPTION: u16 = 3;
    const RESOLUTION: u16 = 9;
    block(to, INTERFACE, |to| {
        to.extend(ETHERNET.to_le_bytes());
        to.extend([0; 2]);
        to.extend(snaplen_bytes.to_le_bytes());
        option(to, NAME, name.as_bytes());
        option(to, DESCRIPTION, description.as_bytes());
        option(to, COMMENT, comment.as_bytes());
        option(to, RESOLUTION, &[NANOSECONDS]);
        end_options(to);
    });
}

/// Appends a timestamp in the format of blocks: the upper half first.
fn time(to: &mut Vec<u8>, ns: u64) {
    to.extend(((ns >> 32) as u32).to_le_bytes());
    to.extend((ns as u32).to_le_bytes());
}

/// Appends the statistics of an interface.
pub(crate) fn statistics(to: &mut Vec<u8>, interface: u32, ns: u64, recorded: u64, dropped: u64) {
    const RECEIVED: u16 = 4;
    const DROPPED: u16 = 5;
    block(to, STATISTICS, |to| {
        to.extend(interface.to_le_bytes());
        time(to, ns);
        option(to, RECEIVED, &recorded.saturating_add(dropped).to_le_bytes());
        option(to, DROPPED, &dropped.to_le_bytes());
        end_options(to);
    });
}

/// Appends a frame, which `fill` writes and of which at most `snaplen_bytes` are recorded. `flags` contains its
/// direction.
pub(crate) fn packet(
    to: &mut Vec<u8>,
    interface: u32,
    ns: u64,
    flags: u32,
    snaplen_bytes: usize,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    const FLAGS: u16 = 2;
    block(to, PACKET, |to| {
        to.extend(interface.to_le_bytes());
        time(to, ns);
        let at = to.len();
        to.extend([0; 8]);
        fill(to);
        let len_bytes = to.len() - at - 8;
        let kept_bytes = len_bytes.min(snaplen_bytes);
        to.truncate(at + 8 + kept_bytes);
        to[at..at + 4].copy_from_slice(&(kept_bytes as u32).to_le_bytes());
        to[at + 4..at + 8].copy_from_slice(&(len_bytes as u32).to_le_bytes());
        pad(to, kept_bytes);
        option(to, FLAGS, &flags.to_le_bytes());
        end_options(to);
    });
}

/// Returns the interface and the time in nanoseconds from the body of a packet block.
pub(crate) fn interface_and_time(body: &[u8]) -> Option<(u32, u64)> {
    let (interface, rest) = split_u32(body)?;
    let (high, rest) = split_u32(rest)?;
    let (low, _) = split_u32(rest)?;
    Some((interface, u64::from(high) << 32 | u64::from(low)))
}

/// Returns the interface and the number of dropped packets from the body of a block that [`statistics`] wrote.
pub(crate) fn interface_and_dropped(body: &[u8]) -> Option<(u32, u64)> {
    let (interface, _) = split_u32(body)?;
    // The body does not include the block's type and length.
    let dropped = body.get(DROPPED_AT - 8..)?.first_chunk()?;
    Some((interface, u64::from_le_bytes(*dropped)))
}

fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}

/// Reads the next block into `body` and returns its type. Returns `None` at the end, and at an incomplete block, which
/// a killed process leaves at the end of its file.
///
/// # Errors
/// Returns an error if reading fails.
pub(crate) fn next_block(from: &mut impl Read, body: &mut Vec<u8>) -> io::Result<Option<u32>> {
    let mut head = [0; 8];
    if !fill(from, &mut head)? {
        return Ok(None);
    }
    let [kind, len_bytes] =
        [&head[..4], &head[4..]].map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let whole_bytes = len_bytes as usize;
    if !(AROUND_BYTES..=BLOCK_BYTES_MAX).contains(&whole_bytes) || !whole_bytes.is_multiple_of(4) {
        return Ok(None);
    }
    body.resize(whole_bytes - 8, 0);
    if !fill(from, body)? || body.split_off(whole_bytes - AROUND_BYTES) != len_bytes.to_le_bytes() {
        return Ok(None);
    }
    let is_ours = kind != SECTION || body.starts_with(&MAGIC.to_le_bytes());
    Ok(is_ours.then_some(kind))
}

/// Fills a buffer; returns false at the end of the file.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_blocks_up_to_the_first_incomplete_one() {
        let mut file = Vec::new();
        section(&mut file, "a comment");
        interface(&mut file, "name", "description", "comment", 96);
        packet(&mut file, 1, 7 << 32 | 9, 2, 3, |to| to.extend(b"frame"));
        statistics(&mut file, 1, 5, 10, 4);
        let whole = file.len();
        packet(&mut file, 0, 1, 1, 100, |to| to.extend(b"cut off"));
        for cut in whole..file.len() {
            let (mut from, mut body) = (&file[..cut], Vec::new());
            assert_eq!(next_block(&mut from, &mut body).unwrap(), Some(SECTION));
            assert_eq!(next_block(&mut from, &mut body).unwrap(), Some(INTERFACE));
            assert_eq!(next_block(&mut from, &mut body).unwrap(), Some(PACKET));
            assert_eq!(interface_and_time(&body), Some((1, 7 << 32 | 9)));
            assert_eq!(body[12..24], [3, 0, 0, 0, 5, 0, 0, 0, b'f', b'r', b'a', 0]);
            assert_eq!(next_block(&mut from, &mut body).unwrap(), Some(STATISTICS));
            assert_eq!(interface_and_dropped(&body), Some((1, 4)));
            assert_eq!(next_block(&mut from, &mut body).unwrap(), None);
        }
    }

    #[test]
    fn a_block_whose_two_lengths_differ_ends_a_file() {
        let mut file = Vec::new();
        statistics(&mut file, 1, 5, 10, 4);
        let last = file.len() - 4;
        assert_eq!(next_block(&mut &file[..], &mut Vec::new()).unwrap(), Some(STATISTICS));
        file[last] ^= 4;
        assert_eq!(next_block(&mut &file[..], &mut Vec::new()).unwrap(), None);
    }

    #[test]
    fn lengths_that_cannot_be_end_a_file() {
        for len_bytes in [0_u32, 8, 13, u32::MAX] {
            let mut file = PACKET.to_le_bytes().to_vec();
            file.extend(len_bytes.to_le_bytes());
            file.resize(64, 0);
            assert_eq!(next_block(&mut &file[..], &mut Vec::new()).unwrap(), None, "{len_bytes}");
        }
    }
}
