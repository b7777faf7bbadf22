//! Journal of the connections with other hosts of all processes of a user. It is a file that outlives the processes,
//! so that another process can notify the peers of a killed process.
//!
//! Each process has a section of the file, and a lock that is released when the process exits.

use std::fs::File;
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::byte_lock::{self, Holder};

/// Maximum number of processes that share the port.
const PROCESSES: usize = 1 << 7;
/// Maximum number of journaled connections of one process. The peers of further connections are not notified if it is
/// killed.
const CONNECTIONS_MAX: usize = 4_096;
const BYTES: usize = 32;
/// Offset of the sections. The bytes before them indicate which sections are used.
const SECTIONS_AT: usize = 4_096;
/// Maximum time for which another process may hold the lock of a section: it reads that of an exited process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// A connection whose peer must be notified of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournaledConnection {
    pub peer: Ipv6Addr,
    /// The communication IDs of both endpoints.
    pub local: u32,
    pub remote: u32,
    /// The peer's queue pair.
    pub qp_num: u32,
}

impl JournaledConnection {
    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..16].copy_from_slice(&self.peer.octets());
        for (at, number) in [(16, self.local), (20, self.remote), (24, self.qp_num)] {
            bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        bytes[28] = 1;
        bytes
    }

    /// Returns `None` for an empty record.
    fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let peer: [u8; 16] = bytes[..16].try_into().expect("sixteen bytes");
        (bytes[28] == 1).then(|| Self {
            peer: peer.into(),
            local: number(16),
            remote: number(20),
            qp_num: number(24),
        })
    }
}

/// Position of a connection in the section of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordIndex(usize);

/// The journal, opened by the process with number `slot` among those that share the port.
pub struct ConnectionJournal {
    file: File,
    slot: usize,
    free: Vec<RecordIndex>,
}

impl ConnectionJournal {
    /// Opens the journal. Also returns the records of the previous process with this slot, if it exited without
    /// removing them.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn open(path: &Path, slot: u32) -> io::Result<(Self, Vec<(RecordIndex, JournaledConnection)>)> {
        let slot = slot as usize % PROCESSES;
        let mut this = Self { file: byte_lock::open(path)?, slot, free: Vec::new() };
        let began = Instant::now();
        while !this.lock(slot, libc::F_WRLCK)? {
            if began.elapsed() > LOCK_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(PAUSE);
        }
        this.file.write_all_at(&[1], slot as u64)?;
        let left = this.section(slot)?;
        let places = (0..CONNECTIONS_MAX).rev().map(RecordIndex);
        this.free = places.filter(|place| left.iter().all(|(left, _)| left != place)).collect();
        Ok((this, left))
    }

    /// Records a connection. Returns `None` if the section is full.
    pub fn add(&mut self, record: &JournaledConnection) -> Option<RecordIndex> {
        let place = self.free.pop()?;
        self.write(place, &record.encode());
        Some(place)
    }

    /// Removes the record of a connection.
    pub fn remove(&mut self, place: RecordIndex) {
        self.write(place, &[0; BYTES]);
        self.free.push(place);
    }

    fn write(&self, place: RecordIndex, bytes: &[u8; BYTES]) {
        if let Err(error) = self.file.write_all_at(bytes, at(self.slot, place)) {
            tracing::warn!("connections with other hosts cannot be noted: {error}");
        }
    }

    /// Returns the next exited process that left records, and the records. It is locked until
    /// [`ConnectionJournal::remove_process`].
    pub fn next_dead_process(&self) -> Option<(usize, Vec<JournaledConnection>)> {
        let mut used = [0; PROCESSES];
        let len_bytes = self.file.read_at(&mut used, 0).ok()?;
        let others = (0..len_bytes).filter(|slot| used[*slot] == 1 && *slot != self.slot);
        let dead = others.into_iter().find(|slot| self.lock(*slot, libc::F_WRLCK).unwrap_or(false))?;
        let left = self.section(dead).unwrap_or_default();
        Some((dead, left.into_iter().map(|(_, record)| record).collect()))
    }

    /// Removes the records of an exited process.
    pub fn remove_process(&self, dead: usize) {
        for (place, _) in self.section(dead).unwrap_or_default() {
            let _ = self.file.write_all_at(&[0; BYTES], at(dead, place));
        }
        let _ = self.file.write_all_at(&[0], dead as u64);
        let _ = self.lock(dead, libc::F_UNLCK);
    }

    /// Reads the records of a process. Another process of this user wrote them, and may have been killed while
    /// writing.
    fn section(&self, slot: usize) -> io::Result<Vec<(RecordIndex, JournaledConnection)>> {
        let mut bytes = vec![0; CONNECTIONS_MAX * BYTES];
        let len_bytes = self.file.read_at(&mut bytes, at(slot, RecordIndex(0)))?;
        let (records, _) = bytes[..len_bytes].as_chunks::<BYTES>();
        let record = records.iter().enumerate();
        Ok(record
            .filter_map(|(place, record)| Some((RecordIndex(place), JournaledConnection::decode(record)?)))
            .collect())
    }

    fn lock(&self, slot: usize, kind: libc::c_int) -> io::Result<bool> {
        byte_lock::lock(&self.file, Holder::Process, kind, slot as i64)
    }
}

fn at(slot: usize, place: RecordIndex) -> u64 {
    (SECTIONS_AT + (slot * CONNECTIONS_MAX + place.0) * BYTES) as u64
}
