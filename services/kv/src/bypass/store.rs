//! Index and extents together: the operations of the only writer.

use std::sync::Arc;

use farcall_link::{Nic, Region};
use farcall_verbs::{Access, Error};

use super::entry::{Checksums, Entry, Layout};
use super::extents::{Extents, GRANULE_BYTES, decode_pair, encode_pair};
use super::index::Index;
use super::{BypassConfig, PutError, Scheme};
use crate::key::{HashSeed, KEY_MAX_BYTES, Key, Router};

pub(super) struct Store<S> {
    index: Index<S>,
    extents: Extents,
    router: Router,
    value_max_bytes: usize,
    /// Index and extents.
    regions: [Arc<Region>; 2],
    /// Key and value of the last lookup.
    found: Vec<u8>,
    /// Key and value to be stored.
    pair: Vec<u8>,
}

/// Upper bound of the maximum length of a value.
pub(super) const VALUE_MAX_BYTES: usize = 1 << 30;
/// Upper bound of the inline bytes of an entry.
pub(super) const INLINE_MAX_BYTES: u32 = 1 << 20;

/// Returns the maximum length of a key with its value.
pub(super) const fn pair_max_bytes(value_max_bytes: usize) -> usize {
    1 + KEY_MAX_BYTES + value_max_bytes
}

impl<S: Scheme> Store<S> {
    /// Creates a store in memory from which clients can READ.
    pub fn new(nic: &Nic, config: BypassConfig, seed: u64) -> Result<Self, Error> {
        let BypassConfig { entries, extents_bytes, value_max_bytes, inline_bytes } = config;
        let refuse = |what: String| Err(Error::invalid("serve a store", what));
        if entries < S::SPAN {
            return refuse(format!(
                "an index of {entries} entries; a {} store has at least {}",
                S::NAME,
                S::SPAN
            ));
        }
        if inline_bytes > INLINE_MAX_BYTES {
            return refuse(format!("{inline_bytes} bytes in each entry; {INLINE_MAX_BYTES} is the limit"));
        }
        if extents_bytes / GRANULE_BYTES >= u32::MAX as usize {
            return refuse(format!("{extents_bytes} bytes of extents; entries can name up to 256 GiB"));
        }
        let pair_max = pair_max_bytes(value_max_bytes);
        let is_too_long = pair_max > extents_bytes && pair_max > inline_bytes as usize;
        if value_max_bytes > VALUE_MAX_BYTES || is_too_long {
            return refuse(format!(
                "values of {value_max_bytes} bytes; {extents_bytes} and 1 GiB are the limits"
            ));
        }
        let layout = Layout::of::<S>(entries, inline_bytes);
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let regions = Region::alloc_two(&**nic.pd(), 0, [layout.index_bytes::<S>(), extents_bytes], access)?
            .map(Arc::new);
        let [index, extents] = regions.clone();
        Ok(Self {
            index: Index::new(index, layout, Checksums::new(seed)),
            extents: Extents::new(extents),
            router: Router::new(HashSeed(seed), 1),
            value_max_bytes,
            regions,
            found: Vec::new(),
            pair: Vec::new(),
        })
    }

    /// Returns the regions from which clients READ: the index and the extents.
    pub fn regions(&self) -> [Arc<Region>; 2] {
        self.regions.clone()
    }

    #[cfg(test)]
    pub fn slot_of(&mut self, key: &Key<'_>) -> Option<u32> {
        self.find(key).map(|(slot, _)| slot)
    }

    pub fn router(&self) -> &Router {
        &self.router
    }

    pub fn layout(&self) -> Layout {
        self.index.layout()
    }

    pub fn value_max_bytes(&self) -> usize {
        self.value_max_bytes
    }

    /// Returns the value of a key, borrowed until the next call.
    pub fn get(&mut self, key: &Key<'_>) -> Option<&[u8]> {
        self.find(key)?;
        Some(&self.found[1 + key.bytes().len()..])
    }

    /// Stores a value. If there is no capacity, the key keeps its previous value.
    pub fn put(&mut self, key: &Key<'_>, value: &[u8]) -> Result<(), PutError> {
        if value.len() > self.value_max_bytes {
            return Err(PutError::TooLarge { len_bytes: value.len(), max_bytes: self.value_max_bytes });
        }
        let old = self.find(key);
        encode_pair(key.bytes(), value, &mut self.pair);
        let (len_bytes, checksum) = (self.pair.len(), self.index.checksum_of(&self.pair));
        let mut entry = Entry { hash: key.hash(), granule: 0, len_bytes: len_bytes as u32, checksum };
        if !self.layout().is_inline(&entry) {
            let used_bytes = self.extents.used_bytes();
            let Some(granule) = self.extents.alloc(len_bytes) else {
                return Err(PutError::ExtentsFull { len_bytes, used_bytes });
            };
            self.extents.write(granule, &self.pair);
            entry.granule = granule;
        }
        if let Some((slot, old)) = old {
            self.index.replace(slot, entry, &self.pair);
            self.free(&old);
        } else if !self.index.insert(entry, &self.pair) {
            self.free(&entry);
            let entries = self.layout().slots::<S>();
            return Err(PutError::IndexFull { used: self.index.used(), entries });
        }
        Ok(())
    }

    /// Removes a key. Returns whether it existed.
    pub fn delete(&mut self, key: &Key<'_>) -> bool {
        let found = self.find(key);
        if let Some((slot, entry)) = found {
            self.index.remove(slot);
            self.free(&entry);
        }
        found.is_some()
    }

    /// Frees the extent of an entry, if it has one.
    fn free(&mut self, entry: &Entry) {
        if !self.layout().is_inline(entry) {
            self.extents.free(entry.granule, entry.len_bytes as usize);
        }
    }

    /// Returns the entry of a key, after copying key and value to `found`.
    fn find(&mut self, key: &Key<'_>) -> Option<(u32, Entry)> {
        let Self { index, extents, found, .. } = self;
        let is_inline = |entry: &Entry| index.layout().is_inline(entry);
        index.with_hash(key.hash()).find(|(slot, entry)| {
            found.clear();
            if is_inline(entry) {
                index.append_inline(*slot, entry, found);
            } else {
                extents.append_to(entry.granule, entry.len_bytes, found);
            }
            decode_pair(found).is_some_and(|(key_found, _)| key_found == key.bytes())
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{farm::Farm, pilaf::Pilaf};
    use farcall_softnic::SoftNic;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::sync::OnceLock;

    fn nic() -> &'static Nic {
        static NIC: OnceLock<Nic> = OnceLock::new();
        NIC.get_or_init(|| Nic::open(&SoftNic::new()).unwrap())
    }

    pub fn region(len_bytes: usize) -> Arc<Region> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        Arc::new(Region::alloc(&**nic().pd(), len_bytes, access).unwrap())
    }

    fn store<S: Scheme>(entries: u32, extents_bytes: usize, inline_bytes: u32) -> Store<S> {
        let config = BypassConfig { entries, extents_bytes, value_max_bytes: 200, inline_bytes };
        Store::new(nic(), config, 1).unwrap()
    }

    fn name(number: u32) -> String {
        format!("key{number}")
    }

    fn put<S: Scheme>(store: &mut Store<S>, number: u32, value: &[u8]) -> Result<(), PutError> {
        let (router, name) = (store.router().clone(), name(number));
        store.put(&router.key(name.as_bytes()).unwrap(), value)
    }

    fn get<S: Scheme>(store: &mut Store<S>, number: u32) -> Option<Vec<u8>> {
        let (router, name) = (store.router().clone(), name(number));
        store.get(&router.key(name.as_bytes()).unwrap()).map(<[u8]>::to_vec)
    }

    fn delete<S: Scheme>(store: &mut Store<S>, number: u32) -> bool {
        let (router, name) = (store.router().clone(), name(number));
        store.delete(&router.key(name.as_bytes()).unwrap())
    }

    #[test]
    fn decodes_pairs_and_rejects_garbage() {
        let mut bytes = Vec::new();
        encode_pair(b"key", b"value", &mut bytes);
        assert_eq!(decode_pair(&bytes), Some((&b"key"[..], &b"value"[..])));
        assert_eq!((decode_pair(b""), decode_pair(b"\x05four")), (None, None));
    }

    /// Returns the percentage of the entries that is used when the first key is refused.
    fn fills<S: Scheme>(inline_bytes: u32) -> u32 {
        const ENTRIES: u32 = 4_096;
        let mut store = store::<S>(ENTRIES, 64 * 2 * ENTRIES as usize, inline_bytes);
        let entries = store.layout().slots::<S>();
        let mut stored = 0;
        let refused = loop {
            match put(&mut store, stored, &stored.to_le_bytes()) {
                Ok(()) => stored += 1,
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused, PutError::IndexFull { used: stored, entries });
        assert!(refused.to_string().contains("nothing was changed"));
        for number in 0..stored {
            assert_eq!(get(&mut store, number), Some(number.to_le_bytes().to_vec()), "{number}");
        }
        assert_eq!(get(&mut store, stored), None);
        put(&mut store, 0, b"a key that is there").unwrap();
        let used_bytes = if inline_bytes == 0 { 64 * stored as usize } else { 0 };
        assert_eq!(store.extents.used_bytes(), used_bytes, "it takes no further entry or extent");
        stored * 100 / ENTRIES
    }

    #[test]
    fn rejects_puts_into_a_full_index_and_loses_nothing() {
        let percents = [fills::<Pilaf>(0), fills::<Farm>(0), fills::<Farm>(32)];
        println!("pilaf, farm, farm with values in its entries: {percents:?} % full at the first refusal");
        assert!(percents[0] >= 75 && percents[1..].iter().all(|percent| *percent >= 40), "{percents:?}");
    }

    #[test]
    fn rejects_puts_into_full_extents_and_keeps_the_old_value() {
        let mut store = store::<Pilaf>(64, 512, 0);
        put(&mut store, 1, &[1; 200]).unwrap();
        put(&mut store, 2, &[2; 200]).unwrap();
        let refused = put(&mut store, 1, &[3; 200]).unwrap_err();
        assert_eq!(refused, PutError::ExtentsFull { len_bytes: 205, used_bytes: 512 });
        assert_eq!(get(&mut store, 1), Some(vec![1; 200]));
        assert!(matches!(put(&mut store, 1, &[0; 201]), Err(PutError::TooLarge { max_bytes: 200, .. })));
        assert!(delete(&mut store, 2) && !delete(&mut store, 2));
        put(&mut store, 1, &[3; 200]).unwrap();
        assert_eq!(get(&mut store, 1), Some(vec![3; 200]));
    }

    #[test]
    fn rejects_invalid_sizes_with_a_reason() {
        let usual = BypassConfig::default();
        for config in [
            usual.entries(0),
            usual.extents_bytes(1_000),
            usual.extents_bytes(1 << 40),
            usual.extents_bytes(1 << 32).value_max_bytes((1 << 30) + 1),
            usual.inline_bytes((1 << 20) + 1),
        ] {
            let refused = Store::<Pilaf>::new(nic(), config, 1);
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{config:?}");
        }
        assert!(Store::<Farm>::new(nic(), usual.entries(5), 1).is_err(), "no neighbourhood fits");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(u32, Vec<u8>),
        Delete(u32),
        Get(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = || 0_u32..40;
        prop_oneof![
            3 => (key(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(key, value)| Step::Put(key, value)),
            1 => key().prop_map(Step::Delete),
            1 => key().prop_map(Step::Get),
        ]
    }

    /// Uses more keys than entries and more bytes than the extents have, so that the store is full at times.
    fn does_what_a_map_does<S: Scheme>(steps: &[Step], inline_bytes: u32) -> Result<(), TestCaseError> {
        let mut store = store::<S>(32, 4_096, inline_bytes);
        let mut model: HashMap<u32, Vec<u8>> = HashMap::new();
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    if put(&mut store, *key, value).is_ok() {
                        model.insert(*key, value.clone());
                    }
                }
                Step::Delete(key) => prop_assert_eq!(delete(&mut store, *key), model.remove(key).is_some()),
                Step::Get(key) => prop_assert_eq!(get(&mut store, *key), model.get(key).cloned()),
            }
            prop_assert_eq!(store.index.used() as usize, model.len());
        }
        for key in 0..40 {
            prop_assert_eq!(get(&mut store, key), model.get(&key).cloned());
            delete(&mut store, key);
        }
        prop_assert_eq!((store.index.used(), store.extents.used_bytes()), (0, 0), "nothing is lost");
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_steps_do_what_a_map_does(steps in prop::collection::vec(step(), 1..400)) {
            does_what_a_map_does::<Pilaf>(&steps, 0)?;
            does_what_a_map_does::<Farm>(&steps, 0)?;
            // Some values are stored inline and others are not, and they change.
            does_what_a_map_does::<Farm>(&steps, 100)?;
        }
    }
}
