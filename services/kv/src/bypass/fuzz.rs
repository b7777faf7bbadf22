//! Behaviour of a client with a corrupted store, for the fuzz target `store_read`.

use super::entry::{ENTRY_BYTES, Entry};
use super::extents::encode_pair;
use super::index::CHAIN_BLOCKS_MAX;
use super::{KeyLookup, LookupStep, ReadTarget, Scheme, Table};
use crate::key::Key;
use crate::{farm::Farm, pilaf::Pilaf};

const KEY: &[u8] = b"key";
const VALUE: &[u8] = b"a value of some length";
const VALUE_MAX_BYTES: usize = 300;
/// Granule of the value if it is in an extent; the value of another key with the same hash is in a different one.
const GRANULE: u32 = 2;

/// Runs a key lookup in a store whose bytes are changed by the input (as a mask), or are the input.
///
/// # Panics
/// If the lookup returns a value that was not stored, or requests a READ that no valid store needs.
#[doc(hidden)]
pub fn fuzz_lookup(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    let is_foreign = choice & 4 != 0;
    match choice & 3 {
        0 => lookup::<Pilaf>(0, rest, is_foreign),
        1 => lookup::<Farm>(0, rest, is_foreign),
        _ => lookup::<Farm>(64, rest, is_foreign),
    }
}

fn lookup<S: Scheme>(inline_bytes: u32, mut input: &[u8], is_foreign: bool) {
    let Some(table) = Table::<S>::new(64, inline_bytes, VALUE_MAX_BYTES as u64, 7) else { return };
    let Ok(key) = table.router().key(KEY) else { return };
    let (mut lookup, mut value) = (KeyLookup::new(&table, &key, 0), Vec::new());
    for _ in 0..2 * (S::GROUPS + CHAIN_BLOCKS_MAX) * (S::SPAN + 1) {
        let (_, _, len_bytes) = table.place(lookup.target());
        assert!(len_bytes <= table.read_max_bytes(), "{:?} is too long", lookup.target());
        let mut bytes = if is_foreign { Vec::new() } else { stored(&table, &key, lookup.target()) };
        bytes.resize(len_bytes, 0);
        let (mask, rest) = input.split_at(input.len().min(len_bytes));
        bytes.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        input = rest;
        match lookup.step(&table, KEY, &bytes, &mut value) {
            LookupStep::Read(target) => assert_eq!(target, lookup.target()),
            // The fuzzer may find bytes whose checksums match.
            LookupStep::Found if is_foreign => return assert!(value.len() <= table.read_max_bytes()),
            LookupStep::Found => return assert_eq!(value, VALUE),
            _ => return assert!(value.is_empty()),
        }
    }
    panic!("a lookup without end");
}

/// Returns the contents of the store: the key, and other keys with the same hash before it.
fn stored<S: Scheme>(table: &Table<S>, key: &Key<'_>, target: ReadTarget) -> Vec<u8> {
    let pair = |granule| {
        let mut pair = Vec::new();
        encode_pair(if granule == GRANULE { KEY } else { b"other" }, VALUE, &mut pair);
        pair
    };
    match target {
        ReadTarget::Moves => vec![0; 8],
        ReadTarget::Pair { granule, .. } => pair(granule),
        ReadTarget::Entries { .. } => {
            let mut bytes = Vec::new();
            for place in 0..S::SPAN {
                let granule = GRANULE + (S::SPAN - 1 - place);
                let pair = pair(granule);
                let (len_bytes, checksum) = (pair.len() as u32, table.checksums.of(&pair));
                let entry = Entry { hash: key.hash(), granule, len_bytes, checksum };
                let begin = bytes.len();
                bytes.extend(table.checksums.seal(entry).into_iter().flat_map(u64::to_ne_bytes));
                if table.layout.is_inline(&entry) {
                    bytes.extend(pair);
                }
                bytes.resize(begin + table.layout.stride().max(ENTRY_BYTES), 0);
            }
            bytes
        }
    }
}
