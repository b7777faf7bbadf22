//! The array of bytes by which clients announce requests: one load polls eight mailboxes.

use std::sync::Arc;

use farcall_link::bootstrap::{Refusal, RefusalKind};
use farcall_link::{Nic, Region, RemoteRegion};
use farcall_verbs::{Access, with_sources};

use crate::wire::Seq;

const BYTES_OF_WORD: usize = 8;

/// Index of a connection's byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DoorbellByte(u32);

/// All bytes. Clients may write any byte of the region at any time, including those of other clients: a byte is only a
/// hint that a mailbox should be polled.
#[derive(Default)]
pub(crate) struct DoorbellBytes {
    /// Registered for the first client that uses it.
    region: Option<Arc<Region>>,
    /// The values of the bytes while no mailbox holds a message.
    quiet: Vec<u64>,
    /// Index of the connection that uses each byte.
    owners: Vec<Option<u32>>,
}

impl DoorbellBytes {
    /// Returns the number of words that contain bytes of connections.
    #[inline]
    pub fn words(&self) -> usize {
        self.quiet.len()
    }

    /// Returns a word whose non-zero bytes announce messages.
    #[inline]
    pub fn pending(&self, word: usize) -> u64 {
        self.region.as_ref().map_or(0, |region| region.load_acquire(BYTES_OF_WORD * word) ^ self.quiet[word])
    }

    /// Clears the first non-zero byte of `pending`. Returns its index and its connection, if a connection uses it.
    #[inline]
    pub fn next(&mut self, word: usize, pending: &mut u64) -> Option<(DoorbellByte, usize)> {
        let at = pending.trailing_zeros() as usize / BYTES_OF_WORD;
        let mask = 0xff << (BYTES_OF_WORD * at);
        let came = *pending & mask;
        *pending &= !mask;
        let byte = BYTES_OF_WORD * word + at;
        match self.owners[byte] {
            Some(owner) => Some((DoorbellByte(byte as u32), owner as usize)),
            None => {
                // Written after the connection ended.
                self.quiet[word] ^= came;
                None
            }
        }
    }

    /// Records that the connection has handled all messages before `expect`.
    #[inline]
    pub fn follow(&mut self, byte: DoorbellByte, expect: Seq) {
        let (word, shift) = Self::location(byte);
        self.quiet[word] = self.quiet[word] & !(0xff << shift) | u64::from(last_before(expect)) << shift;
    }

    /// Allocates a byte for the connection with index `owner`, of at most `most` bytes. Returns it with the access
    /// that its client needs.
    ///
    /// # Errors
    /// Returns a refusal if there is no memory.
    pub fn add(
        &mut self,
        nic: &Nic,
        most: usize,
        owner: usize,
        expect: Seq,
    ) -> Result<(DoorbellByte, RemoteRegion), Refusal> {
        let region = match &self.region {
            Some(region) => Arc::clone(region),
            None => {
                let len_bytes = most.next_multiple_of(BYTES_OF_WORD);
                let region =
                    Region::alloc(&**nic.pd(), len_bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
                        .map_err(|error| {
                            RefusalKind::Resources
                                .because(format!("bytes of mailboxes: {}", with_sources(&error)))
                        })?;
                Arc::clone(self.region.insert(Arc::new(region)))
            }
        };
        let free = self.owners.iter().position(Option::is_none);
        let at = free.unwrap_or(self.owners.len());
        if at >= region.len_bytes() {
            return Err(
                RefusalKind::TooManyConnections.because(format!("{at} clients announce requests by a byte"))
            );
        }
        if at == self.owners.len() {
            self.owners.extend([None; BYTES_OF_WORD]);
            self.quiet.push(region.load_acquire(at));
        }
        self.owners[at] = Some(owner as u32);
        let byte = DoorbellByte(at as u32);
        region.store_byte_relaxed(at, last_before(expect));
        self.follow(byte, expect);
        let all = region.remote();
        Ok((byte, RemoteRegion { addr: all.addr + at as u64, len_bytes: 1, rkey: all.rkey }))
    }

    /// Removes the connection with index `owner`; the indexes of later connections decrease by one.
    pub fn remove(&mut self, owner: usize) {
        for place in &mut self.owners {
            *place = match *place {
                Some(at) if at as usize == owner => None,
                Some(at) => Some(at - u32::from(at as usize > owner)),
                None => None,
            };
        }
    }

    fn location(DoorbellByte(byte): DoorbellByte) -> (usize, usize) {
        (byte as usize / BYTES_OF_WORD, byte as usize % BYTES_OF_WORD * 8)
    }
}

/// Returns the value of the byte while the next message has not arrived.
#[inline]
const fn last_before(expect: Seq) -> u8 {
    expect.0.wrapping_sub(1) as u8
}
