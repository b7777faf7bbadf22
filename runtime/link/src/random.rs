//! Random numbers: from the operating system for secrets, from a seed for everything else.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns bytes of the operating system's generator, for secrets, session ids and incarnations.
///
/// # Errors
/// If the system call fails. No secret can be created then, and the caller must abandon its operation.
pub fn os_random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0u8; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        // SAFETY: `rest` is a valid buffer of the length given.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => filled += got,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(bytes)
}

/// Source of secrets, session ids and first packet numbers.
#[derive(Clone, Debug, Default)]
pub enum Entropy {
    /// The operating system.
    #[default]
    System,
    /// A seed, with which a run can be repeated exactly. For simulation only: the seed determines the secrets.
    Seeded(Arc<Mutex<SplitMix64>>),
}

impl Entropy {
    /// Creates a source whose values all derive from one seed.
    pub fn seeded(seed: u64) -> Self {
        Self::Seeded(Arc::new(Mutex::new(SplitMix64::new(seed))))
    }

    /// Returns random bytes.
    ///
    /// # Errors
    /// Like [`os_random`].
    pub fn bytes<const N: usize>(&self) -> io::Result<[u8; N]> {
        let Self::Seeded(stream) = self else { return os_random() };
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::array::from_fn(|_| stream.next_u64() as u8))
    }
}

/// SplitMix64 by Steele, Lea and Flood: a seeded generator for jitter and for mixing keys. Not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates the generator with `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number of the sequence.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Self::mix(self.0)
    }

    /// The output function: a bijection of 64-bit words in which every input bit reaches every output bit.
    pub const fn mix(word: u64) -> u64 {
        let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number below `bound` (0 if `bound` is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_is_the_published_stream() {
        // First outputs of the reference implementation for seed 1234567.
        let mut rng = SplitMix64::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
        assert!((0..1_000).all(|_| rng.below(10) < 10) && rng.below(0) == 0);
    }

    #[test]
    fn a_seed_repeats_and_the_system_does_not() {
        let draw = |entropy: &Entropy| (entropy.bytes::<16>().unwrap(), entropy.bytes::<16>().unwrap());
        let (first, second) = draw(&Entropy::seeded(3));
        assert_eq!((first, second), draw(&Entropy::seeded(3)));
        assert_ne!(first, second);
        assert_ne!(draw(&Entropy::System), draw(&Entropy::System));
    }

    #[test]
    fn the_system_gives_different_numbers() {
        assert_ne!(os_random::<16>().unwrap(), os_random::<16>().unwrap());
    }
}
