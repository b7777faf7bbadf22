//! Shared receives whose application thread does other work than polling: a SEND completes as soon as a thread can be
//! woken, and not when a timer expires. Verified by counters and not by time.

use std::time::Instant;

use crate::support::process::*;
use crate::support::*;
use farcall_verbs::{Notify, QpCap, QpType, RawSrq, RecvWr, SendWr, SrqInitAttr, Wc, WcStatus};

const ROUNDS: u64 = 8;

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let (mut end, srq) = with_shared_receives();
    end.init();
    tell(&mut line, &end);
    let to = learn(&mut line).unwrap();
    end.rtr(to.qpn);
    end.rts();
    line.say([1, 0, 0, 0]);
    // It never polls.
    line.hear();
    drop((end, srq));
    std::process::exit(0);
}

/// Returns an end with shared receives, as many as are consumed.
fn with_shared_receives() -> (End, Box<dyn RawSrq>) {
    let mut end = End::default();
    let mut srq = end.pd.create_srq(&SrqInitAttr { max_wr: 2 * ROUNDS as u32, max_sge: 1 }).unwrap();
    end.qp = create_qp(&*end.pd, (&*end.cq, &*end.cq), Some(&*srq), QpCap::default(), QpType::Rc);
    for wr_id in 0..2 * ROUNDS {
        // SAFETY: the region exists as long as the end, which waits for the completions.
        unsafe { srq.post_recv(&[RecvWr::new(wr_id, &[end.sge(0, 2048)])]) }.unwrap();
    }
    (end, srq)
}

fn counted(end: &End, counter: &str) -> u64 {
    let report = farcall_stats::read_pid(std::process::id()).unwrap();
    let label = format!("softnic qp {:#08x}", end.qp.qp_num());
    let block = report.blocks.iter().find(|block| block.live && block.label == label).unwrap();
    block.counters.iter().find(|(name, _)| name == counter).unwrap().1
}

/// Polls without a pause: yielding would allow the timer to expire first.
fn poll_on(end: &mut End) -> Wc {
    let start = Instant::now();
    loop {
        if let Some(wc) = end.poll() {
            return wc;
        }
        assert!(start.elapsed() < LOST, "no completion");
    }
}

/// Sends, and waits only for the completion of the send, as `next` does; small and large messages. Returns the number
/// of requests to the target's service thread.
fn send_and_wait(a: &mut End, next: impl Fn(&mut End) -> Wc) -> u64 {
    let before = counted(a, "matches_asked");
    for round in 0..ROUNDS {
        let sges = [a.sge(0, if round % 2 == 0 { 8 } else { 2000 })];
        a.send(&[SendWr::send(round, &sges).with_flags(SIGNALED)]);
        let wc = next(a);
        assert_eq!((wc.wr_id, wc.status), (round, WcStatus::SUCCESS));
    }
    counted(a, "matches_asked") - before
}

#[test]
fn requests_service_of_a_thread_that_does_not_poll() {
    let mut a = End::default();
    let (mut b, _srq) = with_shared_receives();
    join(&mut a, &mut b, End::rts);
    assert_eq!(send_and_wait(&mut a, poll_on), 0, "who polls matches by itself in its own process");
    assert!(send_and_wait(&mut a, |end| end.sleep(Notify::Any)) > 0, "all waited for a timer");
    assert_eq!(b.wait_n(2 * ROUNDS as usize).len(), 2 * ROUNDS as usize);
}

#[test]
fn requests_service_of_a_process_that_does_not_poll() {
    let mut other = start("owner", &[]);
    let mut a = End::default();
    a.init();
    tell(&mut other.line, &a);
    a.rtr(learn(&mut other.line).unwrap().qpn);
    a.rts();
    assert_eq!(other.line.hear(), Some([1, 0, 0, 0]));
    assert!(send_and_wait(&mut a, poll_on) > 0, "all waited for a timer");
    assert!(send_and_wait(&mut a, |end| end.sleep(Notify::Any)) > 0, "all waited for a timer");
}
