//! Events of queue pairs with shared receives: one for each completion, and none without a completion.

use std::sync::Arc;
use std::time::Instant;

use crate::support::*;
use farcall_verbs::{
    CompChannel, CqInitAttr, Notify, QpCap, QpInitAttr, QpType, RawCq, RawSrq, RecvWr, SendWr, SrqInitAttr,
    Wc, WcStatus,
};

const ROUNDS: u64 = 1000;
/// Offsets of messages to send, and of those received.
const FROM: usize = 0;
const INTO: usize = 1 << 20;

/// A completion queue on which a thread sleeps.
struct Slept {
    channel: Arc<dyn CompChannel>,
    cq: Box<dyn RawCq>,
}

impl Slept {
    fn new(end: &End, channel: Arc<dyn CompChannel>) -> Self {
        let mut cq = end.context.create_cq(&CqInitAttr { cqe: 64, channel: Some(&*channel) }).unwrap();
        cq.req_notify(Notify::Any).unwrap();
        Self { channel, cq }
    }

    /// Behaves like programs that take one completion for each event: an empty poll is an error for them.
    fn next(&mut self, what: &str) -> Wc {
        let start = Instant::now();
        let queue = loop {
            if let Some(queue) = self.channel.poll_cq_event().unwrap() {
                break queue;
            }
            assert!(start.elapsed() < LOST, "no event: {what}");
            readable(self.channel.fd(), 100);
        };
        assert_eq!(queue, self.cq.id(), "an event of the other queue: {what}");
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
        let end = End::new(2 << 20, ALL, QpCap::default());
        let [sends, receives] = [(); 2].map(|()| end.context.create_comp_channel().unwrap());
        Self::with_channels(end, sends, receives)
    }

    fn with_one_channel() -> Self {
        let end = End::new(2 << 20, ALL, QpCap::default());
        let channel = end.context.create_comp_channel().unwrap();
        Self::with_channels(end, Arc::clone(&channel), channel)
    }

    fn with_channels(mut end: End, sends: Arc<dyn CompChannel>, receives: Arc<dyn CompChannel>) -> Self {
        let srq = end.pd.create_srq(&SrqInitAttr { max_wr: 4, max_sge: 1 }).unwrap();
        // The order matters: of two queues with events the channel reports the older one first.
        let sends = Slept::new(&end, sends);
        let receives = Slept::new(&end, receives);
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
        // SAFETY: the region outlives the test.
        unsafe { self.srq.post_recv(&[RecvWr::new(0, &sges)]) }.unwrap();
    }

    /// Small messages go through the ring; large ones request a receive first.
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
    ping_pong(Side::new(), Side::new());
}

/// The acknowledgement of a message precedes the receiver's response, and programs rely on it.
#[test]
fn the_event_of_a_send_precedes_that_of_the_answer() {
    ping_pong(Side::with_one_channel(), Side::with_one_channel());
}

fn ping_pong(mut a: Side, mut b: Side) {
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

/// A message that finds no receive raises no event at its target until there is one.
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
