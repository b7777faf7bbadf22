//! Packets that go to the kernel together, and come from it together: between two queue pairs of one process, in network
//! namespaces of their own.

mod support;

use farcall_verbs::{QpCap, SendFlags, SendWr, WcStatus};
use support::apart::{counted_at_port, is_apart, is_apart_with};
use support::{ALL, End};

const LEN_BYTES: usize = 3 << 20;

fn connected() -> [End; 2] {
    let mut ends = [End::new(LEN_BYTES, ALL, QpCap::default()), End::new(LEN_BYTES, ALL, QpCap::default())];
    ends.iter_mut().for_each(End::init);
    let [a, b] = ends.each_ref().map(|end| end.qp.qp_num());
    ends[0].rtr(b);
    ends[1].rtr(a);
    ends.iter_mut().for_each(End::rts);
    ends
}

/// WRITEs and READs of lengths about a packet's and a train's, and long ones; each arrives as it was.
fn exchange() {
    let [mut a, mut b] = connected();
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
    if !is_apart("packets_travel_together_and_arrive_whole", "net") {
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

/// Faults happen to packets, each for itself: none goes with others.
#[test]
fn under_faults_packets_travel_alone_and_arrive_whole() {
    let faults = "seed=3,loss=0.02,duplicate=0.02,reorder=0.02,corrupt=0.02";
    let environment = [("FARCALL_WAY", "net"), ("FARCALL_WIRE_FAULTS", faults)];
    if !is_apart_with("under_faults_packets_travel_alone_and_arrive_whole", &environment) {
        return;
    }
    exchange();
    assert_eq!(counted_at_port("sent_in_trains"), 0);
    assert!(counted_at_port("resent") > 0 && counted_at_port("dropped_crc") > 0);
}
