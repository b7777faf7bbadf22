//! Merging of the files of all processes into one, ordered by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;

use crate::pcapng::{self, INTERFACE, PACKET, SECTION, STATISTICS};

/// Maximum number of files that are merged; all of them are open at the same time.
pub const PARTS_MAX: usize = 1024;
/// Read buffer of each file in bytes.
const AHEAD_BYTES: usize = 32 << 10;
/// Maximum number of interfaces of a file; a recorder writes two.
const INTERFACES_MAX: usize = 8;

/// Contents of a merged capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Number of processes that opened the device.
    pub processes: usize,
    /// Number of packets in the file.
    pub packets: u64,
    /// Number of packets that could not be recorded.
    pub dropped: u64,
    /// Number of processes beyond [`PARTS_MAX`].
    pub left_out: usize,
}

/// Packet counts of an interface.
#[derive(Clone, Copy, Default)]
struct Counts {
    packets: u64,
    dropped: u64,
}

/// The file of a process, positioned at one of its packets.
struct Part<R> {
    from: R,
    interfaces: Vec<Vec<u8>>,
    counts: Vec<Counts>,
    /// Body of the packet's block, followed by its interface and its time.
    body: Vec<u8>,
    interface: usize,
    ns: u64,
}

impl<R: Read> Part<R> {
    /// Opens a file; returns `None` if it is not a capture: its process has not written to it yet, or it is an
    /// unrelated file.
    fn open(mut from: R) -> io::Result<Option<Self>> {
        let mut body = Vec::new();
        if pcapng::next_block(&mut from, &mut body)? != Some(SECTION) {
            return Ok(None);
        }
        Ok(Some(Self { from, interfaces: Vec::new(), counts: Vec::new(), body, interface: 0, ns: 0 }))
    }

    fn has_packets(&self) -> bool {
        self.counts.iter().any(|counts| counts.packets > 0)
    }

    /// Advances to the next packet; returns false at the end, or at a block that a recorder does not write.
    fn advance(&mut self) -> io::Result<bool> {
        loop {
            match pcapng::next_block(&mut self.from, &mut self.body)? {
                // Interfaces are numbered in the merged file before its first packet.
                Some(INTERFACE) if self.interfaces.len() < INTERFACES_MAX && !self.has_packets() => {
                    self.interfaces.push(self.body.clone());
                    self.counts.push(Counts::default());
                }
                Some(STATISTICS) => {
                    if let Some((interface, dropped)) = pcapng::interface_and_dropped(&self.body)
                        && let Some(counts) = self.counts.get_mut(interface as usize)
                    {
                        counts.dropped = dropped;
                    }
                }
                Some(PACKET) => {
                    let Some((interface, ns)) = pcapng::interface_and_time(&self.body) else {
                        return Ok(false);
                    };
                    let Some(counts) = self.counts.get_mut(interface as usize) else { return Ok(false) };
                    counts.packets += 1;
                    (self.interface, self.ns) = (interface as usize, ns);
                    return Ok(true);
                }
                _ => return Ok(false),
            }
        }
    }
}

/// Merges the files of several processes. `comment` describes the merged capture.
///
/// # Errors
/// Returns an error if reading or writing fails.
pub fn merge(parts: &[PathBuf], comment: &str, to: &mut impl Write) -> io::Result<Merged> {
    let mut opened = Vec::new();
    for path in parts.iter().take(PARTS_MAX) {
        opened.push(BufReader::with_capacity(AHEAD_BYTES, File::open(path)?));
    }
    let left_out = parts.len() - opened.len();
    merge_opened(opened, comment, to).map(|merged| Merged { left_out, ..merged })
}

/// Like [`merge`], with opened files.
///
/// # Errors
/// Returns the errors of [`merge`].
#[doc(hidden)]
pub fn merge_opened<R: Read>(
    opened: impl IntoIterator<Item = R>,
    comment: &str,
    to: &mut impl Write,
) -> io::Result<Merged> {
    let mut parts: Vec<Part<R>> = Vec::new();
    let mut next = BinaryHeap::new();
    for from in opened {
        let Some(mut part) = Part::open(from)? else { continue };
        if part.advance()? {
            next.push(Reverse((part.ns, parts.len())));
        }
        parts.push(part);
    }
    let mut block = Vec::new();
    pcapng::section(&mut block, comment);
    // Number of the first interface of each part.
    let mut first = Vec::with_capacity(parts.len());
    let mut interfaces = 0;
    for part in &parts {
        first.push(interfaces);
        interfaces += part.interfaces.len() as u32;
        for body in &part.interfaces {
            pcapng::block(&mut block, INTERFACE, |to| to.extend(body));
        }
    }
    let mut merged = Merged { processes: parts.len(), ..Merged::default() };
    let mut last_ns = 0;
    while let Some(Reverse((ns, at))) = next.pop() {
        let part = &mut parts[at];
        let interface = first[at] + part.interface as u32;
        part.body[..4].copy_from_slice(&interface.to_le_bytes());
        pcapng::block(&mut block, PACKET, |to| to.extend(&part.body));
        to.write_all(&block)?;
        block.clear();
        merged.packets += 1;
        last_ns = ns;
        if part.advance()? {
            next.push(Reverse((part.ns, at)));
        }
    }
    for (part, first) in parts.iter().zip(first) {
        for (interface, counts) in (first..).zip(&part.counts) {
            merged.dropped = merged.dropped.saturating_add(counts.dropped);
            pcapng::statistics(&mut block, interface, last_ns, counts.packets, counts.dropped);
        }
    }
    to.write_all(&block)?;
    to.flush()?;
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file of one interface with a packet, and the blocks that `then` appends.
    fn part(then: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut file = Vec::new();
        pcapng::section(&mut file, "a process");
        pcapng::interface(&mut file, "first", "", "", 96);
        pcapng::packet(&mut file, 0, 1, 1, 96, |to| to.extend(b"frame"));
        then(&mut file);
        file
    }

    #[test]
    fn stops_reading_a_part_at_an_interface_after_a_packet() {
        let late = part(|to| {
            pcapng::interface(to, "late", "", "", 96);
            pcapng::packet(to, 1, 2, 1, 96, |to| to.extend(b"of the late one"));
        });
        let other = part(|to| pcapng::packet(to, 0, 3, 1, 96, |to| to.extend(b"of the other part")));
        let mut whole = Vec::new();
        let merged = merge_opened([&late[..], &other[..]], "", &mut whole).unwrap();
        assert_eq!((merged.processes, merged.packets), (2, 3));
        let (mut from, mut body, mut interfaces) = (&whole[..], Vec::new(), Vec::new());
        while let Some(kind) = pcapng::next_block(&mut from, &mut body).unwrap() {
            if kind == PACKET {
                interfaces.push(pcapng::interface_and_time(&body).unwrap());
            }
        }
        assert_eq!(interfaces, [(0, 1), (1, 1), (1, 3)]);
    }
}
