//! A pool of registered memory, given out in pieces: offsets only, the memory is its owner's.

/// What is given out and taken back. First fit; neighbours that are free are one piece again, so when all is given
/// back, all of it can be given out at once.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// Free ranges, sorted, no two of them adjacent.
    free: Vec<(usize, usize)>,
    len_bytes: usize,
}

/// A piece of a [`Pieces`] pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Piece {
    /// Offset of its first byte.
    pub offset: usize,
    /// Its length; 0 if it is none.
    pub len_bytes: usize,
}

/// Pieces begin at cache lines.
const ALIGN_BYTES: usize = 64;

impl Pieces {
    /// A pool of `len_bytes`, rounded down to cache lines.
    pub fn new(len_bytes: usize) -> Self {
        let len_bytes = len_bytes / ALIGN_BYTES * ALIGN_BYTES;
        let free = if len_bytes > 0 { vec![(0, len_bytes)] } else { Vec::new() };
        Self { free, len_bytes }
    }

    /// How much there is, given out or not.
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Gives out at least `len_bytes` in one piece; of nothing, nothing.
    pub fn take(&mut self, len_bytes: usize) -> Option<Piece> {
        let len_bytes = len_bytes.checked_next_multiple_of(ALIGN_BYTES)?;
        if len_bytes == 0 {
            return Some(Piece::default());
        }
        let at = self.free.iter().position(|(start, end)| end - start >= len_bytes)?;
        let (start, end) = &mut self.free[at];
        let piece = Piece { offset: *start, len_bytes };
        *start += len_bytes;
        if start == end {
            self.free.remove(at);
        }
        Some(piece)
    }

    /// Takes a piece back.
    ///
    /// # Panics
    /// If it is not given out: our own error.
    pub fn give_back(&mut self, piece: Piece) {
        if piece.len_bytes == 0 {
            return;
        }
        let (start, end) = (piece.offset, piece.offset + piece.len_bytes);
        let at = self.free.partition_point(|free| free.0 < start);
        let before = at.checked_sub(1).map(|before| self.free[before].1);
        let after = self.free.get(at).map(|free| free.0);
        let is_out = before.is_none_or(|before| before <= start) && after.is_none_or(|after| end <= after);
        assert!(is_out && end <= self.len_bytes, "a piece that is not given out");
        match (before == Some(start), after == Some(end)) {
            (true, true) => self.free[at - 1].1 = self.free.remove(at).1,
            (true, false) => self.free[at - 1].1 = end,
            (false, true) => self.free[at].0 = start,
            (false, false) => self.free.insert(at, (start, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_never_overlap_and_all_comes_back(
            steps in prop::collection::vec((1..3000_usize, any::<u8>()), 1..80)
        ) {
            let mut pool = Pieces::new(16 << 10);
            let mut out: Vec<Piece> = Vec::new();
            for (len, choice) in steps {
                if choice % 2 == 0 && !out.is_empty() {
                    pool.give_back(out.swap_remove(usize::from(choice) % out.len()));
                } else if let Some(piece) = pool.take(len) {
                    prop_assert!(piece.len_bytes >= len && piece.offset % ALIGN_BYTES == 0);
                    prop_assert!(piece.offset + piece.len_bytes <= pool.len_bytes());
                    let end = |piece: &Piece| piece.offset + piece.len_bytes;
                    prop_assert!(out.iter().all(|other| end(other) <= piece.offset || end(&piece) <= other.offset));
                    out.push(piece);
                }
            }
            out.into_iter().for_each(|piece| pool.give_back(piece));
            prop_assert_eq!(pool.take(16 << 10), Some(Piece { offset: 0, len_bytes: 16 << 10 }));
        }
    }

    #[test]
    #[should_panic(expected = "not given out")]
    fn a_piece_does_not_come_back_twice() {
        let mut pool = Pieces::new(1024);
        let piece = pool.take(100).unwrap();
        pool.give_back(piece);
        pool.give_back(piece);
    }

    #[test]
    fn nothing_is_taken_from_an_empty_pool() {
        let mut pool = Pieces::new(63);
        assert_eq!((pool.take(1), pool.take(0)), (None, Some(Piece::default())));
        pool.give_back(Piece::default());
    }
}
