//! The connections with other hosts that the processes of a user have, noted in a file that outlives each of them: so
//! the peers of a process that was killed can be told by another one.
//!
//! Each process has a part of the file, and a lock that ends with it.

use std::fs::File;
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::byte_lock::{self, Holder};

/// Processes that share the port at most.
const PROCESSES: usize = 1 << 7;
/// Connections of one process that are noted. Of more, nobody is told when it is killed.
const CONNECTIONS_MAX: usize = 4_096;
const BYTES: usize = 32;
/// The parts of the processes, behind the bytes that say which of them are used.
const PARTS_AT: usize = 4_096;
/// How long another process may take to read the part of the one that had it before.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// A connection whose peer waits to be told of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    pub peer: Ipv6Addr,
    /// Its communication IDs at both ends.
    pub local: u32,
    pub remote: u32,
    /// The peer's queue pair.
    pub qp_num: u32,
}

impl Noted {
    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..16].copy_from_slice(&self.peer.octets());
        for (at, number) in [(16, self.local), (20, self.remote), (24, self.qp_num)] {
            bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        bytes[28] = 1;
        bytes
    }

    /// `None` where nothing is noted.
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

/// Where a connection of this process is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(usize);

/// The file, as the process sees it that is `slot` among those that share the port.
pub struct Connections {
    file: File,
    slot: usize,
    free: Vec<Place>,
}

impl Connections {
    /// Opens the file. Also returns what the process had noted that was this slot before, and died.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(path: &Path, slot: u32) -> io::Result<(Self, Vec<(Place, Noted)>)> {
        let slot = slot as usize % PROCESSES;
        let mut this = Self { file: byte_lock::open(path)?, slot, free: Vec::new() };
        let began = Instant::now();
        while !this.lock(slot, libc::F_WRLCK)? {
            if began.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(PAUSE);
        }
        this.file.write_all_at(&[1], slot as u64)?;
        let left = this.part(slot)?;
        let places = (0..CONNECTIONS_MAX).rev().map(Place);
        this.free = places.filter(|place| left.iter().all(|(left, _)| left != place)).collect();
        Ok((this, left))
    }

    /// Notes a connection; `None` if there is no place.
    pub fn add(&mut self, noted: &Noted) -> Option<Place> {
        let place = self.free.pop()?;
        self.write(place, &noted.encode());
        Some(place)
    }

    /// Forgets a connection.
    pub fn remove(&mut self, place: Place) {
        self.write(place, &[0; BYTES]);
        self.free.push(place);
    }

    fn write(&self, place: Place, bytes: &[u8; BYTES]) {
        if let Err(error) = self.file.write_all_at(bytes, at(self.slot, place)) {
            tracing::warn!("connections with other hosts cannot be noted: {error}");
        }
    }

    /// The next process that died, and what it had noted. It is kept for us until [`Connections::forget`].
    pub fn next_dead(&self) -> Option<(usize, Vec<Noted>)> {
        let mut used = [0; PROCESSES];
        let len_bytes = self.file.read_at(&mut used, 0).ok()?;
        let others = (0..len_bytes).filter(|slot| used[*slot] == 1 && *slot != self.slot);
        let dead = others.into_iter().find(|slot| self.lock(*slot, libc::F_WRLCK).unwrap_or(false))?;
        let left = self.part(dead).unwrap_or_default();
        Some((dead, left.into_iter().map(|(_, noted)| noted).collect()))
    }

    /// Forgets a process that died.
    pub fn forget(&self, dead: usize) {
        for (place, _) in self.part(dead).unwrap_or_default() {
            let _ = self.file.write_all_at(&[0; BYTES], at(dead, place));
        }
        let _ = self.file.write_all_at(&[0], dead as u64);
        let _ = self.lock(dead, libc::F_UNLCK);
    }

    /// What a process has noted. Another process of our user wrote it, or died while it did.
    fn part(&self, slot: usize) -> io::Result<Vec<(Place, Noted)>> {
        let mut bytes = vec![0; CONNECTIONS_MAX * BYTES];
        let len_bytes = self.file.read_at(&mut bytes, at(slot, Place(0)))?;
        let (records, _) = bytes[..len_bytes].as_chunks::<BYTES>();
        let noted = records.iter().enumerate();
        Ok(noted.filter_map(|(place, record)| Some((Place(place), Noted::decode(record)?))).collect())
    }

    fn lock(&self, slot: usize, kind: libc::c_int) -> io::Result<bool> {
        byte_lock::lock(&self.file, Holder::Process, kind, slot as i64)
    }
}

fn at(slot: usize, place: Place) -> u64 {
    (PARTS_AT + (slot * CONNECTIONS_MAX + place.0) * BYTES) as u64
}
