//! The same seed produces the same faults.

use std::sync::Mutex;

use farcall_faults::{Fault, Faults};
use farcall_verbs::QpType;

use crate::support::{End, open};

static MET: Mutex<Vec<(&str, Option<u64>, u64)>> = Mutex::new(Vec::new());

fn remember(fault: &Fault) {
    MET.lock().unwrap().push((fault.key, fault.pair.map(|(_, index)| index), fault.number));
}

/// Returns the faults of a run: two queue pairs with as many requests as they accept.
fn run(seed: u64) -> Vec<(&'static str, Option<u64>, u64)> {
    let text = format!("seed={seed},rnr=0.05,post_full=0.05,kill_qp=0.005,reg_mr=0.2");
    let faults = Faults::new(text.parse().unwrap(), Some(remember));
    let peer = Faults::new("seed=0".parse().unwrap(), None);
    for _ in 0..2 {
        // Allocate memory first, because the allocation may be refused.
        let context = open(&faults);
        let domain = context.alloc_pd().unwrap();
        for _ in 0..20 {
            let _ = domain.alloc_mr(8, farcall_verbs::Access::LOCAL_WRITE);
        }
        let mut other = End::new(open(&peer), QpType::Rc);
        let Some(mut one) = (0..100).find_map(|_| End::try_new(open(&faults), QpType::Rc)) else {
            panic!("memory is refused for ever");
        };
        one.connect(other.qp.qp_num(), 7);
        other.connect(one.qp.qp_num(), 7);
        for wr_id in 0..300 {
            other.receive(wr_id, 0, 8);
            if one.send(wr_id, 0).is_ok() {
                one.take(1);
                let mut wc = [farcall_verbs::Wc::default()];
                let _ = other.cq.poll(&mut wc).unwrap();
            } else {
                // The receive remains for the next request.
                continue;
            }
            if one.qp.state() != farcall_verbs::QpState::Rts {
                break;
            }
        }
    }
    std::mem::take(&mut MET.lock().unwrap())
}

#[test]
fn the_same_seed_makes_the_same_faults_at_the_same_requests() {
    let first = run(11);
    assert!(first.iter().any(|(key, ..)| *key == "rnr"), "{first:?}");
    assert!(first.iter().any(|(key, pair, _)| *key == "reg_mr" && pair.is_none()), "{first:?}");
    assert_eq!(first, run(11));
    assert_ne!(first, run(12));
}
