//! The peer's grants: those passed when the session connects, and later ones. Requests look them up without a lock.

use std::sync::{Mutex, OnceLock, PoisonError};

use farcall_link::RemoteRegion;

/// Number of grants in the first chunk; each further chunk has twice as many as the one before.
const FIRST: usize = 16;
const CHUNKS: usize = 20;

/// List that grows without moving its elements.
pub(crate) struct Grants {
    chunks: [OnceLock<Box<[OnceLock<RemoteRegion>]>>; CHUNKS],
    count: Mutex<u32>,
}

impl Grants {
    pub fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS], count: Mutex::new(0) }
    }

    /// Adds a grant. Returns its number; `None` if the list is full.
    pub fn push(&self, grant: RemoteRegion) -> Option<u32> {
        // A panic leaves the list consistent, since the count is changed last.
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let (chunk, at) = place(*count);
        let chunk_len = FIRST << chunk;
        let chunk = self.chunks.get(chunk)?.get_or_init(|| (0..chunk_len).map(|_| OnceLock::new()).collect());
        chunk[at].set(grant).ok()?;
        *count += 1;
        Some(*count - 1)
    }

    /// Returns the grant with this number, if there is one.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&RemoteRegion> {
        let (chunk, at) = place(number);
        self.chunks.get(chunk)?.get()?.get(at)?.get()
    }
}

/// Returns the chunk of a grant, and its index in the chunk.
const fn place(number: u32) -> (usize, usize) {
    let from_first = number as usize + FIRST;
    let chunk = (from_first.ilog2() - FIRST.ilog2()) as usize;
    (chunk, from_first - (FIRST << chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_number_of_each_grant() {
        let grants = Grants::new();
        assert!(grants.get(0).is_none() && grants.get(u32::MAX).is_none());
        let grant = |rkey| RemoteRegion { addr: 0, len_bytes: 1, rkey };
        assert!((0..1_000).all(|number| grants.push(grant(number + 7)) == Some(number)));
        assert!((0..1_000).all(|number| grants.get(number) == Some(&grant(number + 7))));
        assert!(grants.get(1_000).is_none());
    }
}
