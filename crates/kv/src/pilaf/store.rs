//! Index and extents together: what the one writer does.

use std::sync::Arc;

use farcall_link::{Nic, Region};
use farcall_verbs::{Access, Error};

use super::entry::{Checksums, Entry};
use super::extents::{Extents, GRANULE_BYTES, encode_pair};
use super::index::{Index, index_bytes};
use super::{NotStored, PilafConfig};
use crate::key::{HashSeed, KEY_MAX_BYTES, Key, Router};

pub(super) struct Store {
    index: Index,
    extents: Extents,
    router: Router,
    value_max_bytes: usize,
    /// Index and extents.
    regions: [Arc<Region>; 2],
    /// A key with its value, on the way in or out.
    pair: Vec<u8>,
}

/// No value is longer.
pub(super) const VALUE_MAX_BYTES: usize = 1 << 30;

/// The longest extent.
pub(super) const fn extent_max_bytes(value_max_bytes: usize) -> usize {
    1 + KEY_MAX_BYTES + value_max_bytes
}

impl Store {
    /// A store in memory that clients may READ.
    pub fn new(nic: &Nic, config: PilafConfig, seed: u64) -> Result<Self, Error> {
        let PilafConfig { entries, extents_bytes, value_max_bytes } = config;
        let refuse = |what: String| Err(Error::invalid("serve pilaf", what));
        if entries == 0 {
            return refuse("an index of 0 entries holds nothing: give it more".into());
        }
        if extents_bytes / GRANULE_BYTES >= u32::MAX as usize {
            return refuse(format!("{extents_bytes} bytes of extents; entries can name up to 256 GiB"));
        }
        if value_max_bytes > VALUE_MAX_BYTES || extent_max_bytes(value_max_bytes) > extents_bytes {
            return refuse(format!(
                "values of {value_max_bytes} bytes; {extents_bytes} and 1 GiB are the limits"
            ));
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let regions =
            Region::alloc_two(&*nic.pd, [index_bytes(entries), extents_bytes], access)?.map(Arc::new);
        let [index, extents] = regions.clone();
        Ok(Self {
            index: Index::new(index, entries, Checksums::new(seed)),
            extents: Extents::new(extents),
            router: Router::new(HashSeed(seed), 1),
            value_max_bytes,
            regions,
            pair: Vec::new(),
        })
    }

    /// What clients READ: the index and the extents.
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

    pub fn entries(&self) -> u32 {
        self.index.entries()
    }

    pub fn value_max_bytes(&self) -> usize {
        self.value_max_bytes
    }

    /// The value of a key, lent until the next call.
    pub fn get(&mut self, key: &Key<'_>) -> Option<&[u8]> {
        self.find(key)?;
        Some(&self.pair[1 + key.bytes().len()..])
    }

    /// Stores a value. The key keeps its value if there is no room.
    pub fn put(&mut self, key: &Key<'_>, value: &[u8]) -> Result<(), NotStored> {
        if value.len() > self.value_max_bytes {
            return Err(NotStored::TooLarge { len_bytes: value.len(), max_bytes: self.value_max_bytes });
        }
        let found = self.find(key);
        encode_pair(key.bytes(), value, &mut self.pair);
        let len_bytes = self.pair.len();
        let used_bytes = self.extents.used_bytes();
        let Some(granule) = self.extents.alloc(len_bytes) else {
            return Err(NotStored::ExtentsFull { len_bytes, used_bytes });
        };
        self.extents.write(granule, &self.pair);
        let checksum = self.index.checksum_of(&self.pair);
        let entry = Entry { hash: key.hash(), granule, len_bytes: len_bytes as u32, checksum };
        if let Some((slot, old)) = found {
            self.index.replace(slot, entry);
            self.extents.free(old.granule, old.len_bytes as usize);
        } else if !self.index.insert(entry) {
            self.extents.free(granule, len_bytes);
            return Err(NotStored::IndexFull { used: self.index.used(), entries: self.index.entries() });
        }
        Ok(())
    }

    /// Removes a key; returns whether it was there.
    pub fn delete(&mut self, key: &Key<'_>) -> bool {
        let found = self.find(key);
        if let Some((slot, entry)) = found {
            self.index.remove(slot);
            self.extents.free(entry.granule, entry.len_bytes as usize);
        }
        found.is_some()
    }

    /// The entry of a key; its extent is in `pair` then.
    fn find(&mut self, key: &Key<'_>) -> Option<(u32, Entry)> {
        self.index.with_hash(key.hash()).find(|(_, entry)| {
            self.extents.read(entry.granule, entry.len_bytes, &mut self.pair);
            super::extents::decode_pair(&self.pair).is_some_and(|(found, _)| found == key.bytes())
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::pilaf::extents::decode_pair;
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
        Arc::new(Region::alloc(&*nic().pd, len_bytes, access).unwrap())
    }

    fn store(entries: u32, extents_bytes: usize) -> Store {
        let config = PilafConfig { entries, extents_bytes, value_max_bytes: 200 };
        Store::new(nic(), config, 1).unwrap()
    }

    fn name(number: u32) -> String {
        format!("key{number}")
    }

    fn put(store: &mut Store, number: u32, value: &[u8]) -> Result<(), NotStored> {
        let (router, name) = (store.router().clone(), name(number));
        store.put(&router.key(name.as_bytes()).unwrap(), value)
    }

    fn get(store: &mut Store, number: u32) -> Option<Vec<u8>> {
        let (router, name) = (store.router().clone(), name(number));
        store.get(&router.key(name.as_bytes()).unwrap()).map(<[u8]>::to_vec)
    }

    fn delete(store: &mut Store, number: u32) -> bool {
        let (router, name) = (store.router().clone(), name(number));
        store.delete(&router.key(name.as_bytes()).unwrap())
    }

    #[test]
    fn pairs_are_told_apart_and_garbage_is_none() {
        let mut bytes = Vec::new();
        encode_pair(b"key", b"value", &mut bytes);
        assert_eq!(decode_pair(&bytes), Some((&b"key"[..], &b"value"[..])));
        assert_eq!((decode_pair(b""), decode_pair(b"\x05four")), (None, None));
    }

    #[test]
    fn three_quarters_fit_and_a_full_index_refuses_in_words_and_loses_nothing() {
        const ENTRIES: u32 = 4_096;
        let mut store = store(ENTRIES, 64 * 2 * ENTRIES as usize);
        let mut stored = 0;
        let refused = loop {
            match put(&mut store, stored, &stored.to_le_bytes()) {
                Ok(()) => stored += 1,
                Err(refused) => break refused,
            }
        };
        assert!(stored >= ENTRIES / 4 * 3, "{stored} of {ENTRIES}");
        assert_eq!(refused, NotStored::IndexFull { used: stored, entries: ENTRIES });
        assert!(refused.to_string().contains("nothing was changed"));
        for number in 0..stored {
            assert_eq!(get(&mut store, number), Some(number.to_le_bytes().to_vec()), "{number}");
        }
        assert_eq!(get(&mut store, stored), None);
        put(&mut store, 0, b"a key that is there takes no entry").unwrap();
        assert_eq!(store.extents.used_bytes(), 64 * stored as usize);
    }

    #[test]
    fn full_extents_refuse_in_words_and_the_old_value_stays() {
        let mut store = store(64, 512);
        put(&mut store, 1, &[1; 200]).unwrap();
        put(&mut store, 2, &[2; 200]).unwrap();
        let refused = put(&mut store, 1, &[3; 200]).unwrap_err();
        assert_eq!(refused, NotStored::ExtentsFull { len_bytes: 205, used_bytes: 512 });
        assert_eq!(get(&mut store, 1), Some(vec![1; 200]));
        assert!(matches!(put(&mut store, 1, &[0; 201]), Err(NotStored::TooLarge { max_bytes: 200, .. })));
        assert!(delete(&mut store, 2) && !delete(&mut store, 2));
        put(&mut store, 1, &[3; 200]).unwrap();
        assert_eq!(get(&mut store, 1), Some(vec![3; 200]));
    }

    #[test]
    fn impossible_sizes_are_refused_in_words() {
        let usual = PilafConfig::default();
        for config in [
            usual.entries(0),
            usual.extents_bytes(1_000),
            usual.extents_bytes(1 << 40),
            usual.extents_bytes(1 << 32).value_max_bytes((1 << 30) + 1),
        ] {
            assert!(matches!(Store::new(nic(), config, 1), Err(Error::InvalidArgument { .. })), "{config:?}");
        }
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// More keys than entries, more bytes than extents: it is full now and then, too.
        #[test]
        fn any_steps_do_what_a_map_does(steps in prop::collection::vec(step(), 1..400)) {
            let mut store = store(32, 4_096);
            let mut model: HashMap<u32, Vec<u8>> = HashMap::new();
            for step in steps {
                match step {
                    Step::Put(key, value) => {
                        if put(&mut store, key, &value).is_ok() {
                            model.insert(key, value);
                        }
                    }
                    Step::Delete(key) => prop_assert_eq!(delete(&mut store, key), model.remove(&key).is_some()),
                    Step::Get(key) => prop_assert_eq!(get(&mut store, key), model.get(&key).cloned()),
                }
                prop_assert_eq!(store.index.used() as usize, model.len());
            }
            for key in 0..40 {
                prop_assert_eq!(get(&mut store, key), model.get(&key).cloned());
                delete(&mut store, key);
            }
            prop_assert_eq!((store.index.used(), store.extents.used_bytes()), (0, 0), "nothing is lost");
        }
    }
}
