//! Events of queue pairs with shared receives: one for each completion, and none without.

mod support;

use std::sync::Arc;
use std::time::Instant;

use farcall_verbs::{
    CompChannel, CqInitAttr, Notify, QpCap, QpInitAttr, QpType, RawCq, RawSrq, RecvWr, SendWr, SrqInitAttr,
    Wc, WcStatus,
};
use support::*;

const ROUNDS: u64 = 300;
/// Where messages lie, and where they go.
const FROM: usize = 0;
const INTO: usize = 1 << 20;

/// A completion queue that is slept on.
struct Slept {
    channel: Arc<dyn CompChannel>,
    cq: Box<dyn RawCq>,
}

impl Slept {
    fn new(end: &End) -> Self {
        let channel = end.context.create_comp_channel().unwrap();
        let mut cq = end.context.create_cq(&CqInitAttr { cqe: 64, channel: Some(&*channel) }).unwrap();
        cq.req_notify(Notify::Any).unwrap();
        Self { channel, cq }
    }

    /// As programs do that take one completion for each event: a poll that finds nothing is an error to them.
    fn next(&mut self, what: &str) -> Wc {
        let start = Instant::now();
        while self.channel.poll_cq_event().unwrap().is_none() {
            assert!(start.elapsed() < LOST, "no event: {what}");
            readable(self.channel.fd(), 100);
        }
        self.cq.req_notify(Notify::Any).unwrap();
        let mut wc = [Wc::default()];
        assert_eq!(self.cq.poll(&mut wc).unwrap(), 1, "an event without a completion: {what}");
        assert_eq!(wc[0].status, WcStatus::SUCCESS, "{what}");
        wc[0]
    }
}

struct Side {
    end: End,
    srq: Box<dyn RawSrq>,
    sends: Slept,
    receives: Slept,
}

impl Side {
    fn new() -> Self {
        let mut end = End::new(2 << 20, ALL, QpCap::default());
        let srq = end.pd.create_srq(&SrqInitAttr { max_wr: 4, max_sge: 1 }).unwrap();
        let (sends, receives) = (Slept::new(&end), Slept::new(&end));
        end.qp = end
            .pd
            .create_qp(&QpInitAttr {
                send_cq: &*sends.cq,
                recv_cq: &*receives.cq,
                srq: Some(&*srq),
                cap: QpCap::default(),
                qp_type: QpType::Rc,
                sq_sig_all: true,
            })
            .unwrap();
        Self { end, srq, sends, receives }
    }

    fn post(&mut self) {
        let sges = [self.end.sge(INTO, 1 << 17)];
        // SAFETY: the region lives as long as the test.
        unsafe { self.srq.post_recv(&[RecvWr::new(0, &sges)]) }.unwrap();
    }

    /// Small messages go through the ring, large ones ask for their place first.
    fn send(&mut self, round: u64) {
        let len = if round.is_multiple_of(2) { 16 } else { 1 << 16 };
        let sges = [self.end.sge(FROM, len)];
        self.end.send(&[SendWr::send(round, &sges)]);
        self.sends.next(&format!("send {round}"));
    }

    fn receive(&mut self, round: u64) {
        let wc = self.receives.next(&format!("receive {round}"));
        assert_eq!(wc.byte_len, if round.is_multiple_of(2) { 16 } else { 1 << 16 });
    }
}

#[test]
fn every_event_of_shared_receives_has_its_completion() {
    let (mut a, mut b) = (Side::new(), Side::new());
    join(&mut a.end, &mut b.end, End::rts);
    a.post();
    b.post();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                b.receive(round);
                b.post();
                b.send(round);
            }
        });
        for round in 0..ROUNDS {
            a.send(round);
            a.receive(round);
            a.post();
        }
    });
}

/// A message that finds no receive is no event for its target, until there is one.
#[test]
fn a_message_without_a_shared_receive_is_no_event() {
    let (mut a, mut b) = (Side::new(), Side::new());
    join(&mut a.end, &mut b.end, End::rts);
    let sges = [a.end.sge(FROM, 16)];
    a.end.send(&[SendWr::send(0, &sges)]);
    assert!(!readable(b.receives.channel.fd(), 50), "an event for a message without a receive");
    assert!(!readable(a.sends.channel.fd(), 0), "an event for a send that waits");
    b.post();
    b.receive(0);
    a.sends.next("the send that waited");
}
