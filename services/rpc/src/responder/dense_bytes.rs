//! The bytes by which clients tell of requests, side by side: one load looks at eight mailboxes.

use std::sync::Arc;

use farcall_link::bootstrap::{Refusal, RefusalKind};
use farcall_link::{Nic, Region, RemoteRegion};
use farcall_verbs::Access;

use crate::wire::Seq;

const BYTES_OF_WORD: usize = 8;

/// A byte of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DenseByte(u32);

/// All of them. Clients may write any byte of the region, at any time, also those of others: a byte only says that a
/// mailbox is worth a look.
#[derive(Default)]
pub(crate) struct DenseBytes {
    /// Registered for the first client that needs one.
    region: Option<Arc<Region>>,
    /// As the bytes are while no mailbox holds a message.
    quiet: Vec<u64>,
    /// The place of the connection that has the byte.
    owners: Vec<Option<u32>>,
}

impl DenseBytes {
    /// Words in which there are bytes of connections.
    #[inline]
    pub fn words(&self) -> usize {
        self.quiet.len()
    }

    /// Which bytes of a word tell of messages: those that are not 0.
    #[inline]
    pub fn told(&self, word: usize) -> u64 {
        self.region.as_ref().map_or(0, |region| region.load_acquire(BYTES_OF_WORD * word) ^ self.quiet[word])
    }

    /// Takes the first byte of `told`, and leaves the others. Whose it is, if it is anybody's.
    #[inline]
    pub fn next(&mut self, word: usize, told: &mut u64) -> Option<(DenseByte, usize)> {
        let at = told.trailing_zeros() as usize / BYTES_OF_WORD;
        let mask = 0xff << (BYTES_OF_WORD * at);
        let came = *told & mask;
        *told &= !mask;
        let byte = BYTES_OF_WORD * word + at;
        match self.owners[byte] {
            Some(owner) => Some((DenseByte(byte as u32), owner as usize)),
            None => {
                // Written after its connection ended.
                self.quiet[word] ^= came;
                None
            }
        }
    }

    /// The connection has taken all messages before `expect`.
    #[inline]
    pub fn follow(&mut self, byte: DenseByte, expect: Seq) {
        let (word, shift) = Self::place(byte);
        self.quiet[word] = self.quiet[word] & !(0xff << shift) | u64::from(last_before(expect)) << shift;
    }

    /// A byte for the connection at place `owner`, with `most` of them at most, and what its client needs to write it.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn add(
        &mut self,
        nic: &Nic,
        most: usize,
        owner: usize,
        expect: Seq,
    ) -> Result<(DenseByte, RemoteRegion), Refusal> {
        let region = match &self.region {
            Some(region) => Arc::clone(region),
            None => {
                let len_bytes = most.next_multiple_of(BYTES_OF_WORD);
                let region = Region::alloc(&*nic.pd, len_bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
                    .map_err(|error| {
                    RefusalKind::Resources.because(format!("bytes of mailboxes: {error}"))
                })?;
                Arc::clone(self.region.insert(Arc::new(region)))
            }
        };
        let free = self.owners.iter().position(Option::is_none);
        let at = free.unwrap_or(self.owners.len());
        if at >= region.len_bytes() {
            return Err(
                RefusalKind::TooManyConnections.because(format!("{at} clients tell of requests by a byte"))
            );
        }
        if at == self.owners.len() {
            self.owners.extend([None; BYTES_OF_WORD]);
            self.quiet.push(region.load_acquire(at));
        }
        self.owners[at] = Some(owner as u32);
        let byte = DenseByte(at as u32);
        region.store_byte_relaxed(at, last_before(expect));
        self.follow(byte, expect);
        let all = region.remote();
        Ok((byte, RemoteRegion { addr: all.addr + at as u64, len_bytes: 1, rkey: all.rkey }))
    }

    /// The connection at place `owner` is gone; those behind it move up.
    pub fn remove(&mut self, owner: usize) {
        for place in &mut self.owners {
            *place = match *place {
                Some(at) if at as usize == owner => None,
                Some(at) => Some(at - u32::from(at as usize > owner)),
                None => None,
            };
        }
    }

    fn place(DenseByte(byte): DenseByte) -> (usize, usize) {
        (byte as usize / BYTES_OF_WORD, byte as usize % BYTES_OF_WORD * 8)
    }
}

/// What the byte is while the next message has not come.
#[inline]
const fn last_before(expect: Seq) -> u8 {
    expect.0.wrapping_sub(1) as u8
}
