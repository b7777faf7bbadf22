//! A bucket of eight slots in one cache line, with the exact order of use inside it.

use super::region::Plain;

/// Number of slots in a bucket (RF-RPC, section 5.1).
pub(crate) const SLOTS: usize = 8;

/// Location of an item: its first granule in the arena. Zero means no item.
pub(crate) type ItemRef = u32;

/// One bucket: exactly one cache line, so that a lookup that misses costs one memory access.
#[repr(C, align(64))]
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    items: [ItemRef; SLOTS],
    tags: [u16; SLOTS],
    /// Recency: eight nibbles, a permutation of the slots XOR [`ORDER_BASE`]; the lowest nibble is the most recently
    /// used slot.
    order: u32,
    /// Lower bound of the expiration times here in seconds (0: none expires), by which the sweep skips buckets.
    earliest_expiry_s: u32,
    _unused: u64,
}

// SAFETY: all fields are integers, and zero is the empty bucket: no items, order equal to ORDER_BASE.
unsafe impl Plain for Bucket {}

/// The order that is stored as zero, so that newly mapped memory is a valid empty bucket.
const ORDER_BASE: u32 = 0x7654_3210;
const EVERY_NIBBLE: u32 = 0x1111_1111;

impl Bucket {
    /// Returns the slots whose tag equals `tag`, as a bit set.
    #[inline]
    pub(crate) fn matches(&self, tag: u16) -> u32 {
        let mut set = 0;
        for (slot, &own) in self.tags.iter().enumerate() {
            set |= u32::from(own == tag) << slot;
        }
        set
    }

    /// Returns the item in `slot`, zero if it is empty.
    #[inline]
    pub(crate) fn item(&self, slot: usize) -> ItemRef {
        self.items[slot]
    }

    /// Returns the slot that holds `item`.
    pub(crate) fn slot_of(&self, item: ItemRef) -> Option<usize> {
        self.items.iter().position(|&own| own == item)
    }

    /// Returns a slot without an item.
    pub(crate) fn empty_slot(&self) -> Option<usize> {
        self.slot_of(0)
    }

    /// Returns the occupied slots with their items.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (usize, ItemRef)> + use<> {
        self.items.into_iter().enumerate().filter(|&(_, item)| item != 0)
    }

    /// Stores `item` in `slot` and makes it the most recently used.
    pub(crate) fn fill(&mut self, slot: usize, item: ItemRef, tag: u16) {
        self.items[slot] = item;
        self.tags[slot] = tag;
        self.bump(slot);
    }

    /// Changes the location of the item in `slot`, for example after it grew.
    pub(crate) fn relocate(&mut self, slot: usize, item: ItemRef) {
        self.items[slot] = item;
    }

    /// Empties `slot`.
    pub(crate) fn clear(&mut self, slot: usize) {
        self.items[slot] = 0;
        self.tags[slot] = 0;
    }

    /// Makes `slot` the most recently used. Branch-free: finds its nibble and rotates the part below it.
    #[inline]
    pub(crate) fn bump(&mut self, slot: usize) {
        let order = self.order ^ ORDER_BASE;
        let difference = order ^ (slot as u32 * EVERY_NIBBLE);
        // The lowest zero nibble of `difference` is the position of the slot; borrows only affect nibbles above it.
        let zero = difference.wrapping_sub(EVERY_NIBBLE) & !difference & (EVERY_NIBBLE << 3);
        let shift = zero.trailing_zeros() & 0b11100;
        let newer = order & ((1 << shift) - 1);
        let older = order & !(((1u64 << (shift + 4)) - 1) as u32);
        self.order = (older | (newer << 4) | slot as u32) ^ ORDER_BASE;
    }

    /// Returns the least recently used slot. Meaningful only if the bucket is full.
    pub(crate) fn least_recent(&self) -> usize {
        ((self.order ^ ORDER_BASE) >> 28) as usize
    }

    /// Records that an item here expires at `expires_ms` (0: never).
    pub(crate) fn note_expiry(&mut self, expires_ms: u64) {
        if expires_ms == 0 {
            return;
        }
        // Rounded down: the hint may be early, never late. Zero stays reserved for "none".
        let second = u32::try_from(expires_ms / 1000).unwrap_or(u32::MAX).max(1);
        if self.earliest_expiry_s == 0 || second < self.earliest_expiry_s {
            self.earliest_expiry_s = second;
        }
    }

    /// Returns whether an item here may have expired at `now_ms`.
    pub(crate) fn may_have_expired(&self, now_ms: u64) -> bool {
        self.earliest_expiry_s != 0 && u64::from(self.earliest_expiry_s) <= now_ms / 1000
    }

    /// Clears the expiration hint before it is rebuilt from the items.
    pub(crate) fn clear_expiry(&mut self) {
        self.earliest_expiry_s = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn empty() -> Bucket {
        Bucket { items: [0; 8], tags: [0; 8], order: 0, earliest_expiry_s: 0, _unused: 0 }
    }

    #[test]
    fn a_bucket_is_one_cache_line() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
    }

    proptest! {
        #[test]
        fn bump_keeps_an_exact_recency_list(uses in prop::collection::vec(0usize..8, 0..100)) {
            let (mut bucket, mut model) = (empty(), (0..8).collect::<Vec<usize>>());
            for slot in uses {
                bucket.bump(slot);
                model.retain(|&other| other != slot);
                model.insert(0, slot);
                let order = bucket.order ^ ORDER_BASE;
                let list: Vec<usize> = (0..8).map(|place| ((order >> (4 * place)) & 15) as usize).collect();
                prop_assert_eq!(&list, &model);
                prop_assert_eq!(bucket.least_recent(), model[7]);
            }
        }
    }

    #[test]
    fn the_expiry_hint_is_never_late() {
        let mut bucket = empty();
        assert!(!bucket.may_have_expired(u64::MAX));
        bucket.note_expiry(5_999);
        bucket.note_expiry(0);
        bucket.note_expiry(9_000);
        assert!(!bucket.may_have_expired(4_999));
        assert!(bucket.may_have_expired(5_999));
    }
}
