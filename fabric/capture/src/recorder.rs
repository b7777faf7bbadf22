//! The capture file of a process.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::time::{SystemTime, UNIX_EPOCH};

use farcall_shm::{Mutex, trusted_variable};
use farcall_verbs::{Error, Result};
use farcall_wire::codec::icrc::Flow;
use farcall_wire::codec::{HEADERS_BYTES_MAX, ICRC_BYTES, encode, icrc, pad_bytes};
use farcall_wire::{AccessDenied, Packet};

use crate::frame;
use crate::pcapng;

/// Environment variable with the directory of the capture files.
pub const VARIABLE: &str = "FARCALL_CAPTURE";
/// Environment variable with the maximum number of recorded bytes per frame.
pub const SNAPLEN_VARIABLE: &str = "FARCALL_CAPTURE_SNAPLEN";
/// Default maximum number of recorded bytes per frame: all of them.
pub const SNAPLEN_BYTES: u32 = 262_144;

const OP: &str = "record a capture";
/// Length of buffered blocks in bytes at which they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// Source of recorded packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureSource {
    /// Synthesised from requests that used shared memory.
    SharedMemory = 0,
    /// RoCEv2.
    RoCE = 1,
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The process received it.
    In = 1,
    /// The process sent it.
    Out = 2,
}

/// The capture of this process. One system call writes the blocks of each call of the program that records packets, or
/// every quarter of a mebibyte. No recorded packet remains in memory after the call, so captures are complete even if
/// the process is killed.
pub struct Recorder {
    state: Mutex<State>,
    snaplen_bytes: usize,
}

struct State {
    file: File,
    /// Offset of the next block.
    at: u64,
    /// Offsets of the counts of dropped packets, by [`CaptureSource`].
    dropped_at: [u64; 2],
    dropped: [u64; 2],
    /// Blocks that are not written yet, and their number of packets by [`CaptureSource`].
    buffer: Vec<u8>,
    buffered: [u64; 2],
    /// Reused buffer for one packet.
    datagram: Vec<u8>,
    /// Timestamp of the last batch: the clock may be set back, but the timestamps of a file never decrease.
    last_ns: u64,
}

/// Packets that are recorded together, with one timestamp.
pub struct Batch<'a> {
    state: MutexGuard<'a, State>,
    snaplen_bytes: usize,
    now_ns: u64,
}

/// Creates a new file in a directory, readable by its owner alone.
fn create_in(directory: &Path) -> io::Result<File> {
    let mut count = 0;
    loop {
        // Processes of several containers may have the same pid.
        let name = format!("{}-{count}.pcapng", std::process::id());
        let mut options = File::options();
        options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        match options.open(directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && count < 10_000 => count += 1,
            result => return result,
        }
    }
}

impl Recorder {
    /// Creates the recorder that the environment configures. Returns `None` if it configures none, if the directory no
    /// longer exists because the capture has ended, or in a program that has more privileges than the user that started
    /// it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created or the variables are invalid: a program that should be captured
    /// must not run without its capture.
    pub fn configured() -> Result<Option<Self>> {
        let Some(directory) = trusted_variable(VARIABLE).map(PathBuf::from) else { return Ok(None) };
        let snaplen_bytes = match trusted_variable(SNAPLEN_VARIABLE) {
            None => SNAPLEN_BYTES,
            Some(text) => {
                text.to_str().and_then(|text| text.parse().ok()).filter(|bytes| *bytes > 0).ok_or_else(
                    || {
                        Error::invalid(
                            OP,
                            format!("{SNAPLEN_VARIABLE}={text:?}: it is a number of bytes, from 1"),
                        )
                    },
                )?
            }
        };
        match Self::create(&directory, snaplen_bytes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let what = format!("make a file in {}, which {VARIABLE} names", directory.display());
                Err(Error::os(OP, what, error))
            }
            Ok(recorder) => Ok(Some(recorder)),
        }
    }

    /// Creates the file of this process in a directory.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn create(directory: &Path, snaplen_bytes: u32) -> io::Result<Self> {
        Self::over(create_in(directory)?, snaplen_bytes)
    }

    fn over(file: File, snaplen_bytes: u32) -> io::Result<Self> {
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let process = format!("{} (process {})", name.trim_end(), std::process::id());
        let mut head = Vec::new();
        pcapng::section(
            &mut head,
            &format!("Packets that {process} sent and received through Farcall's software RNIC."),
        );
        pcapng::interface(
            &mut head,
            &format!("shared memory of {process}"),
            "synthesised from shared memory, not a network",
            "Synthesised from shared memory, not a network: the requests that this process posts to queue pairs of \
             this host, as the packets that RoCEv2 would carry them in, at the time of posting; their answers at the \
             time of polling.",
            snaplen_bytes,
        );
        pcapng::interface(
            &mut head,
            &format!("RoCEv2 of {process}"),
            "packets of RoCEv2 as sent and received; Ethernet and IP headers are made",
            "Packets as this process sent them (after the faults of FARCALL_WIRE_FAULTS) and received them. Ethernet \
             and IP headers are made from the addresses: a program does not see the link's.",
            snaplen_bytes,
        );
        let mut dropped_at = [0; 2];
        for (interface, at) in (0..).zip(&mut dropped_at) {
            *at = (head.len() + pcapng::DROPPED_AT) as u64;
            pcapng::statistics(&mut head, interface, 0, 0, 0);
        }
        file.write_all_at(&head, 0)?;
        let state = State {
            file,
            at: head.len() as u64,
            dropped_at,
            dropped: [0; 2],
            buffer: Vec::new(),
            buffered: [0; 2],
            datagram: Vec::new(),
            last_ns: 0,
        };
        Ok(Self { state: Mutex::new(state), snaplen_bytes: snaplen_bytes as usize })
    }

    /// Begins a batch with the current time. Other recording threads wait until the batch is dropped.
    pub fn batch(&self) -> Batch<'_> {
        let mut state = self.state.lock();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX).max(state.last_ns);
        state.last_ns = now_ns;
        Batch { state, snaplen_bytes: self.snaplen_bytes, now_ns }
    }
}

impl Batch<'_> {
    /// Records a packet as it was sent or received, including its CRC.
    pub fn datagram(&mut self, source: CaptureSource, direction: Direction, flow: &Flow, datagram: &[u8]) {
        let identification = icrc::identification(flow, datagram).unwrap_or_default();
        let State { buffer, .. } = &mut *self.state;
        pcapng::packet(buffer, source as u32, self.now_ns, direction as u32, self.snaplen_bytes, |to| {
            frame::append(to, flow, identification, datagram);
        });
        self.state.buffered[source as usize] += 1;
        if self.state.buffer.len() >= BUFFER_BYTES {
            self.state.write();
        }
    }

    /// Records a packet of a request that used shared memory; `gather` appends its payload of `payload_bytes`.
    ///
    /// # Errors
    /// Returns the error of `gather`; then nothing is recorded.
    pub(crate) fn packet(
        &mut self,
        direction: Direction,
        flow: &Flow,
        packet: &Packet,
        payload_bytes: usize,
        gather: impl FnOnce(&mut Vec<u8>) -> Result<(), AccessDenied>,
    ) -> Result<(), AccessDenied> {
        let mut datagram = std::mem::take(&mut self.state.datagram);
        datagram.clear();
        let mut headers = [0; HEADERS_BYTES_MAX];
        let headers_bytes = encode(packet, payload_bytes, &mut headers);
        datagram.extend_from_slice(&headers[..headers_bytes]);
        let result = gather(&mut datagram);
        if result.is_ok() {
            datagram.resize(headers_bytes + payload_bytes + pad_bytes(payload_bytes) + ICRC_BYTES, 0);
            icrc::seal(flow, &mut datagram);
            self.datagram(CaptureSource::SharedMemory, direction, flow, &datagram);
        }
        self.state.datagram = datagram;
        result
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.state.write();
    }
}

impl State {
    /// Writes the buffered blocks. Packets that cannot be written (full disk, size limit) are dropped and counted in
    /// blocks that the file already contains: a program does not fail because of its capture.
    fn write(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if self.file.write_all_at(&self.buffer, self.at).is_ok() {
            self.at += self.buffer.len() as u64;
        } else {
            // Discard what was partly written; if that fails too, the file ends with an incomplete block.
            let _ = self.file.set_len(self.at);
            for source in 0..2 {
                self.dropped[source] += self.buffered[source];
                let _ = self.file.write_all_at(&self.dropped[source].to_le_bytes(), self.dropped_at[source]);
            }
        }
        self.buffer.clear();
        self.buffered = [0; 2];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::merge_opened;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    /// A file that cannot grow, as on a full disk.
    #[test]
    fn packets_that_cannot_be_written_are_counted_in_the_file() {
        let file: File = memfd_create("capture", MemfdFlags::ALLOW_SEALING).unwrap().into();
        let recorder = Recorder::over(file.try_clone().unwrap(), SNAPLEN_BYTES).unwrap();
        let flow =
            Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 4791, dst_port: 4791 };
        let record = |source| recorder.batch().datagram(source, Direction::Out, &flow, &[0; 16]);
        record(CaptureSource::SharedMemory);
        fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        for source in [CaptureSource::SharedMemory, CaptureSource::RoCE, CaptureSource::RoCE] {
            record(source);
        }
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let mut whole = Vec::new();
        let merged = merge_opened([&bytes[..]], "full", &mut whole).unwrap();
        assert_eq!((merged.packets, merged.dropped), (1, 3));
    }
}
