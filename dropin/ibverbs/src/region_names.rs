//! Regions to which requests refer by other addresses than those of the memory: zero-based regions, and those of
//! `ibv_reg_mr_iova`. Local elements use the same addresses. The provider addresses local memory by its own addresses,
//! so elements are translated when they are posted, in programs that have such regions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use farcall_verbs::{RawMr, Sge};

/// Maximum number of elements of a request: the provider refuses requests with more.
const ELEMENTS_MAX: usize = 16;

/// Key: local key; value: difference from the address in a request to that of the memory.
static DIFFERENCES: RwLock<BTreeMap<u32, u64>> = RwLock::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Records the addresses by which requests refer to a registered region.
pub fn note(mr: &dyn RawMr) {
    let difference = (mr.addr() as u64).wrapping_sub(mr.remote_addr());
    change(|differences| match difference {
        0 => differences.remove(&mr.lkey()),
        _ => differences.insert(mr.lkey(), difference),
    });
}

/// Removes a region before its key can be reused.
pub fn forget(lkey: u32) {
    if are_any() {
        change(|differences| differences.remove(&lkey));
    }
}

fn change(change: impl FnOnce(&mut BTreeMap<u32, u64>) -> Option<u64>) {
    let mut differences = DIFFERENCES.write().unwrap_or_else(PoisonError::into_inner);
    change(&mut differences);
    COUNT.store(differences.len(), Ordering::Release);
}

/// Returns whether elements must be translated.
#[inline]
pub fn are_any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Replaces the addresses in elements by those of the memory.
pub fn translate(sges: &mut [Sge]) {
    let differences = DIFFERENCES.read().unwrap_or_else(PoisonError::into_inner);
    for sge in sges {
        let difference = differences.get(&sge.lkey).copied().unwrap_or_default();
        sge.addr = sge.addr.wrapping_add(difference);
    }
}

/// Buffer for the translated elements of one request.
#[derive(Default)]
pub struct Elements([Sge; ELEMENTS_MAX]);

impl Elements {
    pub fn translated<'a>(&'a mut self, sges: &'a [Sge]) -> &'a [Sge] {
        let Some(room) = self.0.get_mut(..sges.len()) else { return sges };
        room.copy_from_slice(sges);
        translate(room);
        room
    }
}
