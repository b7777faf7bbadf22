//! GSO and GRO batches between two queue pairs of one process, in network namespaces of their own.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::apart::{counted_at_port, is_apart, is_apart_with};
use crate::support::{ALL, End, LOST};
use farcall_verbs::{QpCap, QpType, SendFlags, SendWr, WcStatus};

const LEN_BYTES: usize = 3 << 20;

fn connected(rts: fn(&mut End)) -> [End; 2] {
    let mut ends = [End::new(LEN_BYTES, ALL, QpCap::default()), End::new(LEN_BYTES, ALL, QpCap::default())];
    ends.iter_mut().for_each(End::init);
    let [a, b] = ends.each_ref().map(|end| end.qp.qp_num());
    ends[0].rtr(b);
    ends[1].rtr(a);
    ends.iter_mut().for_each(rts);
    ends
}

/// Performs WRITEs and READs with lengths around those of a packet and of a batch, and long ones; each arrives
/// unchanged.
fn exchange() {
    let [mut a, mut b] = connected(End::rts);
    let bytes: Vec<u8> =
        (0..LEN_BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    a.put(0, &bytes);
    for len_bytes in [1, 4_095, 4_096, 4_097, 8_192, 60_000, 65_537, 100_001, LEN_BYTES] {
        for is_write in [true, false] {
            b.put(0, &vec![0; len_bytes]);
            let (from, to) = if is_write { (&mut a, &b) } else { (&mut b, &a) };
            let sges = [from.sge(0, len_bytes)];
            let (addr, rkey) = (to.mr.addr() as u64, to.mr.rkey());
            let wr = if is_write {
                SendWr::write(1, &sges, addr, rkey)
            } else {
                SendWr::read(1, &sges, addr, rkey)
            };
            from.send(&[wr.with_flags(SendFlags::SIGNALED)]);
            assert_eq!(from.wait().status, WcStatus::SUCCESS, "{len_bytes}, write: {is_write}");
            assert!(b.get(0, len_bytes) == bytes[..len_bytes], "{len_bytes}, write: {is_write}");
        }
    }
}

#[test]
fn packets_travel_together_and_arrive_whole() {
    if !is_apart("packets_travel_together_and_arrive_whole", "roce") {
        return;
    }
    exchange();
    let [sent, together] = ["packets_sent", "sent_in_trains"].map(counted_at_port);
    assert!(together > sent / 2, "{together} of {sent}");
    assert!(counted_at_port("received_in_trains") > sent / 2);
    for wrong in ["dropped_crc", "dropped_malformed", "dropped_foreign"] {
        assert_eq!(counted_at_port(wrong), 0, "{wrong}");
    }
}

/// Faults are injected into individual packets, so none are batched.
#[test]
fn under_faults_packets_travel_alone_and_arrive_whole() {
    let faults = "seed=3,loss=0.02,duplicate=0.02,reorder=0.02,corrupt=0.02";
    let environment = [("FARCALL_TRANSPORT", "roce"), ("FARCALL_WIRE_FAULTS", faults)];
    if !is_apart_with("under_faults_packets_travel_alone_and_arrive_whole", &environment) {
        return;
    }
    exchange();
    assert_eq!(counted_at_port("sent_in_trains"), 0);
    assert!(counted_at_port("resent") > 0 && counted_at_port("dropped_crc") > 0);
}

/// Changes the addresses of this network: adds or deletes one.
fn address(change: &str) {
    let status = Command::new("ip").args(["address", change, "fd00:9::1/64", "dev", "lo"]).status().unwrap();
    assert!(status.success(), "ip address {change}");
}

/// The kernel rejects packets from an address that this host does not have, as a batch and singly.
#[test]
fn packets_travel_together_again_when_their_address_is_back() {
    if !is_apart("packets_travel_together_again_when_their_address_is_back", "roce") {
        return;
    }
    address("add");
    let pairs = [(); 8].map(|()| connected(End::rts_impatient));
    address("del");
    for [mut a, b] in pairs {
        let sges = [a.sge(0, LEN_BYTES)];
        let write = SendWr::write(1, &sges, b.mr.addr() as u64, b.mr.rkey());
        a.send(&[write.with_flags(SendFlags::SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::RETRY_EXC_ERR);
    }
    assert!(counted_at_port("packets_not_sent") > 1_000);
    address("add");
    let before = counted_at_port("sent_in_trains");
    exchange();
    assert!(counted_at_port("sent_in_trains") > before + 1_000);
}

/// No packet arrives that would cause the next ones to be sent: an unreliable connection has no acknowledgements, and
/// here the kernel rejects all packets.
#[test]
fn sends_a_long_message_completely_without_polls() {
    if !is_apart("sends_a_long_message_completely_without_polls", "roce") {
        return;
    }
    const PACKETS: usize = 8_192;
    address("add");
    let memory = End::new(PACKETS * 4096, ALL, QpCap::default());
    let mut ends = [(); 2].map(|()| memory.sibling_of(QpType::Uc, QpCap::default()));
    let [a, b] = ends.each_ref().map(|end| end.qp.qp_num());
    ends[0].connect(b);
    ends[1].connect(a);
    address("del");
    let sges = [memory.sge(0, PACKETS * 4096)];
    ends[0].send(&[SendWr::write(1, &sges, memory.mr.addr() as u64, memory.mr.rkey())]);
    let until = Instant::now() + LOST;
    while counted_at_port("packets_not_sent") < PACKETS as u64 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(counted_at_port("packets_not_sent"), PACKETS as u64);
    assert_eq!(counted_at_port("packets_received"), 0);
}
