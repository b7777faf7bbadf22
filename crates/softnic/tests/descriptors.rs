//! What queue pairs cost in descriptors. One test, because it counts what the whole process holds.

mod support;

use farcall_verbs::{QpCap, QpType};
use support::holdings::Holdings;
use support::*;

const PAIRS: usize = 20;

/// Both ends are here, and sleep on channels: the descriptors of those are shared, however many pairs wake them.
#[test]
fn a_queue_pair_holds_one_descriptor() {
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
    let now = Holdings::now();
    let more = now.descriptors.len() - before.descriptors.len();
    assert!(more <= 2 * PAIRS, "{more} more descriptors for {} queue pairs:\n{now}", 2 * PAIRS);
}
