//! Cost of queue pairs and regions in descriptors, mappings and memory. The test runs in a process of its own, because
//! it counts resources of the entire process.

use crate::support::apart::is_alone;
use crate::support::holdings::Holdings;
use crate::support::*;
use farcall_verbs::{Access, QpCap, QpType};

const PAIRS: usize = 40;
const REGIONS: usize = 100;
const REGION_BYTES: usize = 128 << 10;

/// Both ends are in this process and sleep on channels. The channels' descriptors are shared, regardless of the number
/// of queue pairs that wake them.
#[test]
fn shares_descriptors_and_allocates_memory_on_use() {
    if !is_alone("shares_descriptors_and_allocates_memory_on_use") {
        return;
    }
    let (mut a, mut b) = pair();
    let before = Holdings::now();
    let mut held = Vec::new();
    for _ in 0..PAIRS {
        for end in [&mut a, &mut b] {
            let fresh = create_qp(&*end.pd, (&*end.cq, &*end.cq), None, QpCap::default(), QpType::Rc);
            held.push(std::mem::replace(&mut end.qp, fresh));
        }
        join(&mut a, &mut b, End::rts);
        a.reach();
        b.reach();
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let regions: Vec<_> = (0..REGIONS).map(|_| a.pd.alloc_mr(REGION_BYTES, access).unwrap()).collect();
    let now = Holdings::now();
    let more = now.descriptors.len() - before.descriptors.len();
    assert!(more <= (2 * PAIRS + REGIONS) / 16, "{more} more descriptors:\n{now}");
    // Each maps the other's ring; local rings are mapped together with their descriptor.
    let mappings = now.mappings.len() - before.mappings.len();
    assert!(mappings <= 2 * PAIRS + more, "{mappings} more mappings:\n{now}");
    // A page for each queue pair, and none for unused regions.
    let memory = now.memory_bytes - before.memory_bytes;
    let page = rustix::param::page_size() as u64;
    assert!(memory <= (2 * PAIRS as u64 + 8) * page, "{memory} bytes");
    for region in &regions {
        // SAFETY: the address is inside the region's own memory, which no other code uses.
        unsafe { region.addr().add(REGION_BYTES - 1).write(7) };
    }
    let used = Holdings::now().memory_bytes;
    assert!(used >= now.memory_bytes + REGIONS as u64 * page, "{used} bytes");
    drop(regions);
    assert!(Holdings::now().memory_bytes <= now.memory_bytes, "what is deregistered takes no memory");
}
