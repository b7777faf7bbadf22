//! Random numbers, all derived from one seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Purpose of a stream of random numbers. Each purpose has its own stream, so that drawing more numbers for one (for
/// example with another loss rate) does not change the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// Delays, loss, duplication and reordering of packets.
    Network,
    /// The cutting of payload into chunks, and their order of placement.
    Placement,
    /// Numbers and keys of objects, initial delays of tasks.
    World,
    /// Bootstrap pipes.
    Pipes,
    /// The choice of packets that are marked as having met congestion.
    Marks,
    /// Random numbers of the simulated programs.
    Program(u32),
}

impl Purpose {
    const fn stream(self) -> u64 {
        match self {
            Self::Network => 1,
            Self::Placement => 2,
            Self::World => 3,
            Self::Pipes => 4,
            Self::Marks => 5,
            Self::Program(number) => 1 << 32 | number as u64,
        }
    }
}

/// One seeded stream: the same for a seed and purpose on every machine and in every version.
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// Creates the stream of a purpose.
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(purpose.stream());
        Self(rng)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound` (0 if `bound` is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Returns true with a probability of `ppm` millionths.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        // A probability of zero draws no number, so that a disabled fault does not change the others.
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Fills a slice with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_purpose() {
        let draw = |seed, purpose| Stream::new(seed, purpose).next_u64();
        assert_eq!(draw(7, Purpose::Network), draw(7, Purpose::Network));
        assert_ne!(draw(7, Purpose::Network), draw(7, Purpose::Placement));
        assert_ne!(draw(7, Purpose::Network), draw(8, Purpose::Network));
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut stream = Stream::new(3, Purpose::World);
        assert!((0..1_000).all(|_| (5..=9).contains(&stream.between(5, 9))));
        assert!((0..1_000).all(|_| !stream.chance_ppm(0) && stream.chance_ppm(1_000_000)));
        let mut list: Vec<u32> = (0..100).collect();
        stream.shuffle(&mut list);
        assert_ne!(list, (0..100).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..100).collect::<Vec<_>>());
    }
}
