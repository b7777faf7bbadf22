//! A validated key with its hash, and the rule that determines the partition that owns it.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use thiserror::Error;

/// Maximum length of a key in bytes, as in memcached.
pub const KEY_MAX_BYTES: usize = 250;

/// Reasons for which bytes are not a valid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// A key has at least one byte.
    #[error("the key is empty; a key has 1 to {KEY_MAX_BYTES} bytes")]
    Empty,
    /// The key exceeds [`KEY_MAX_BYTES`].
    #[error("the key has {len_bytes} bytes; a key has 1 to {KEY_MAX_BYTES} bytes: shorten or hash it")]
    TooLong {
        /// The length of the refused key.
        len_bytes: usize,
    },
}

/// Checks that bytes are a valid key.
#[inline]
pub(crate) fn check(bytes: &[u8]) -> Result<(), KeyError> {
    match bytes.len() {
        0 => Err(KeyError::Empty),
        1..=KEY_MAX_BYTES => Ok(()),
        len_bytes => Err(KeyError::TooLong { len_bytes }),
    }
}

/// The seed of the key hash, shared by a server and its clients.
///
/// Clients need it to find the partition of a key. A server with untrusted clients draws it at random at the start, so
/// that clients cannot prepare keys that collide before they connect. Clients receive it in the reply to PING.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashSeed(pub u64);

impl Default for HashSeed {
    /// A fixed seed: the same keys land in the same partitions in every run.
    fn default() -> Self {
        HashSeed(0x6661_7263_616c_6c31)
    }
}

/// Hashes keys and determines their owners. Cheap to clone; two routers with equal seed and number of partitions
/// agree.
#[derive(Clone)]
pub struct Router {
    secrets: RapidSecrets,
    seed: HashSeed,
    partitions: u32,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("seed", &self.seed).field("partitions", &self.partitions).finish()
    }
}

impl Router {
    /// Creates a router for `partitions` partitions (zero counts as one).
    pub fn new(seed: HashSeed, partitions: u32) -> Self {
        Router { secrets: RapidSecrets::seed(seed.0), seed, partitions: partitions.max(1) }
    }

    /// Returns the seed of this router.
    pub fn seed(&self) -> HashSeed {
        self.seed
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Checks and hashes `bytes`.
    ///
    /// # Errors
    /// [`KeyError`] for an empty key or one longer than [`KEY_MAX_BYTES`].
    #[inline]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Result<Key<'a>, KeyError> {
        check(bytes)?;
        Ok(Key { bytes, hash: rapidhash_v3_seeded(bytes, &self.secrets) })
    }

    /// Returns the partition that owns `key`.
    #[inline]
    pub fn owner(&self, key: &Key<'_>) -> u32 {
        key.partition_of(self.partitions)
    }
}

/// A key of valid length together with its hash under the seed of one [`Router`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    bytes: &'a [u8],
    hash: u64,
}

// Each of the 64 hash bits has one use: the low half selects the bucket, bits 32..48 are the tag stored in the bucket,
// and the top bits select the partition, so that the keys of one partition still fill all its buckets.
impl<'a> Key<'a> {
    /// Returns the bytes of the key.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[cfg(feature = "server")]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    #[cfg(test)]
    pub(crate) fn with_hash(bytes: &'a [u8], hash: u64) -> Self {
        Self { bytes, hash }
    }

    /// Returns which of `partitions` partitions owns this key.
    #[inline]
    pub fn partition_of(&self, partitions: u32) -> u32 {
        (((self.hash >> 32) * u64::from(partitions)) >> 32) as u32
    }

    /// Returns which of `buckets` buckets of its partition may hold this key.
    #[inline]
    pub(crate) fn bucket_of(&self, buckets: u32) -> u32 {
        (((self.hash & 0xffff_ffff) * u64::from(buckets)) >> 32) as u32
    }

    /// Returns the tag, which is never zero: zero marks an empty slot.
    #[inline]
    pub(crate) fn tag(&self) -> u16 {
        ((self.hash >> 32) as u16).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        let router = Router::new(HashSeed::default(), 4);
        assert_eq!(router.key(b""), Err(KeyError::Empty));
        assert!(router.key(&[b'k'; KEY_MAX_BYTES]).is_ok());
        assert_eq!(router.key(&[b'k'; 251]), Err(KeyError::TooLong { len_bytes: 251 }));
    }

    #[test]
    fn spreads_keys_evenly_over_partitions_and_buckets() {
        let router = Router::new(HashSeed::default(), 4);
        let (mut owners, mut buckets) = ([0u32; 4], [0u32; 16]);
        for i in 0..40_000u32 {
            let text = format!("key{i}");
            let key = router.key(text.as_bytes()).unwrap();
            owners[router.owner(&key) as usize] += 1;
            if router.owner(&key) == 2 {
                buckets[key.bucket_of(16) as usize] += 1;
            }
        }
        assert!(owners.iter().all(|&n| (9_500..10_500).contains(&n)), "{owners:?}");
        assert!(buckets.iter().all(|&n| (500..750).contains(&n)), "{buckets:?}");
    }

    #[test]
    fn the_hash_is_part_of_the_protocol_and_never_changes() {
        let router = Router::new(HashSeed::default(), 1 << 16);
        let owners =
            ["a", "user1", "0123456789abcdef"].map(|k| router.owner(&router.key(k.as_bytes()).unwrap()));
        assert_eq!(owners, PINNED_OWNERS);
    }

    const PINNED_OWNERS: [u32; 3] = [1965, 39919, 32522];
}
