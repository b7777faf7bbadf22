//! Senders of datagrams that sleep while their receiver is late: the receiver notifies them, so that they do not wait
//! for a timer. Verified by counters and not by time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use crate::support::datagrams::Ud;
use crate::support::process::{role, start};
use crate::support::*;
use farcall_verbs::{Notify, QpAttr, QpCap, QpState, SendWr, WcStatus};

const COUNT: u64 = 200;

/// What blocks a sender: small datagrams wait for the one receive, large ones for space in the ring.
const CASES: [(usize, u64); 2] = [(8, 1), (4096, 16)];

#[test]
fn child_entry() {
    let Some((_, args, mut line)) = role() else { return };
    let mut b = receiver(args[0] as usize, args[1]);
    line.say([b.qpn().into(), 0, 0, 0]);
    std::thread::spawn(move || {
        line.hear();
        std::process::exit(0);
    });
    take_until(&mut b, args[0] as usize, &AtomicBool::new(false));
}

/// Returns a receiver with its receives posted.
fn receiver(len: usize, receives: u64) -> Ud {
    let mut b = Ud::with(QpCap { max_recv_wr: receives as u32, ..QpCap::default() });
    (0..receives).for_each(|wr_id| b.recv(wr_id, len));
    b
}

/// Receives datagrams one by one, and sleeps for each. They arrive in order; on a busy machine some are dropped.
fn take_until(b: &mut Ud, len: usize, is_over: &AtomicBool) {
    let mut last = None;
    while !is_over.load(Relaxed) {
        b.end.cq.req_notify(Notify::Any).unwrap();
        if let Some(wc) = b.end.poll() {
            let payload = b.payload(&wc);
            assert_eq!(payload, vec![payload[0]; len]);
            assert!(last < Some(payload[0]), "{} after {last:?}", payload[0]);
            last = Some(payload[0]);
            b.recv(wc.wr_id, len);
        } else if readable(b.end.channel.fd(), 10) {
            b.end.channel.poll_cq_event().unwrap();
        }
    }
}

/// Ends the receiver even if a check fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs `work` next to a receiver.
fn beside(b: &mut Ud, len: usize, work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| take_until(b, len, &is_over));
        let _over = Over(&is_over);
        work();
    });
}

fn sender() -> Ud {
    Ud::with(QpCap { max_send_wr: COUNT as u32, ..QpCap::default() })
}

fn send_all(a: &mut Ud, qpn: u32, len: usize) {
    for wr_id in 0..COUNT {
        let at = wr_id as usize * 4096;
        a.end.put(at, &vec![wr_id as u8; len]);
        let (sges, to) = ([a.end.sge(at, len)], a.to(qpn, QKEY));
        a.end.send(&[SendWr::send_to(wr_id, &sges, to).with_flags(SIGNALED)]);
        if wr_id == 0 {
            // Datagrams sent before the ring is granted do not wait for receives.
            a.until_counted("sent_late", |_| ());
        }
    }
}

fn sleep_until_all_are_sent(a: &mut Ud) {
    for wr_id in 0..COUNT {
        let wc = a.end.sleep(Notify::Any);
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::SUCCESS));
    }
}

fn until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LOST, "it does not come");
        std::thread::yield_now();
    }
}

/// Sends again until the sender continued because of its receiver's notification; sometimes a timer expires first.
fn until_told(mut send: impl FnMut(&mut Ud)) {
    let start = Instant::now();
    loop {
        let mut a = sender();
        send(&mut a);
        if a.counted("places_told") > 0 {
            return;
        }
        assert!(start.elapsed() < LOST, "no receiver told its sender anything");
    }
}

#[test]
fn wakes_a_sleeping_sender_when_its_receiver_has_room() {
    for (len, receives) in CASES {
        until_told(|a| {
            let mut b = receiver(len, receives);
            let qpn = b.qpn();
            beside(&mut b, len, || {
                send_all(a, qpn, len);
                sleep_until_all_are_sent(a);
            });
        });
    }
}

#[test]
fn wakes_a_sleeping_sender_for_a_receiver_in_another_process() {
    for (len, receives) in CASES {
        until_told(|a| {
            let mut other = start("receiver", &[len as u64, receives]);
            let qpn = other.line.hear().unwrap()[0] as u32;
            send_all(a, qpn, len);
            sleep_until_all_are_sent(a);
        });
    }
}

/// It sleeps on something else, and does not request events of its sends.
#[test]
fn completes_sends_of_a_sender_that_does_not_poll() {
    for (len, receives) in CASES {
        until_told(|a| {
            let mut b = receiver(len, receives);
            send_all(a, b.qpn(), len);
            a.until_counted("places_asked", |_| ());
            let ended = |a: &Ud| a.counted("sent_after_wait") + a.counted("dropped_after_wait");
            beside(&mut b, len, || until(|| ended(a) == a.counted("held")));
        });
    }
}

#[test]
fn wakes_a_sleeping_sender_when_its_receiver_resets() {
    until_told(|a| {
        let mut b = receiver(4096, 16);
        send_all(a, b.qpn(), 4096);
        a.end.cq.req_notify(Notify::Any).unwrap();
        let mut ended = std::iter::from_fn(|| a.end.poll()).count() as u64;
        b.end.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
        // Without polling, which would find the completion, too.
        assert!(readable(a.end.channel.fd(), 20_000));
        while ended < COUNT {
            assert_eq!(a.end.sleep(Notify::Any).wr_id, ended);
            ended += 1;
        }
    });
}
