//! A message to a queue pair that is not ready yet, of a process without a connection. It is sent when the queue pair
//! becomes ready and not when a timer expires, which is verified by counters and not by time.

use std::time::Instant;

use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{QpCap, SendWr, WcStatus};

/// Number of rounds, each with a process of its own.
const ROUNDS: u64 = 4;

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let mut end = End::default();
    end.init();
    tell(&mut line, &end);
    let to = learn(&mut line).unwrap();
    // The connect request was received and refused.
    line.hear();
    end.rtr(to.qpn);
    line.hear();
    drop(end);
    std::process::exit(0);
}

fn counted(end: &End, counter: &str) -> u64 {
    let report = farcall_stats::read_pid(std::process::id()).unwrap();
    let label = format!("softnic qp {:#08x}", end.qp.qp_num());
    let block = report.blocks.iter().find(|block| block.live && block.label == label).unwrap();
    block.counters.iter().find(|(name, _)| name == counter).unwrap().1
}

#[test]
fn announces_readiness_to_a_process_it_never_met() {
    for round in 0..ROUNDS {
        let mut other = start("late", &[]);
        let mut a = End::new(1 << 16, ALL, QpCap::default());
        a.init();
        tell(&mut other.line, &a);
        let to = learn(&mut other.line).unwrap();
        a.rtr(to.qpn);
        a.rts();
        a.send(&[SendWr::write(round, &[], to.addr, to.rkey).with_flags(SIGNALED)]);
        while counted(&a, "waits") == 0 {
            assert_eq!(a.poll(), None);
        }
        other.line.say([1, 0, 0, 0]);
        let wc = a.wait();
        assert_eq!((wc.wr_id, wc.status), (round, WcStatus::SUCCESS));
        let began = Instant::now();
        while counted(&a, "peer_became_ready") == 0 {
            assert!(began.elapsed() < LOST, "nobody said that the pair is ready: a timer ran out");
            std::thread::yield_now();
        }
    }
}
