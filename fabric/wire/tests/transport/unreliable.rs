//! Unreliable connections.

use farcall_verbs::{QpState, QpType, WcStatus};
use farcall_wire::Work;

use super::harness::*;

#[test]
fn drops_a_message_with_a_lost_packet_and_reuses_its_receive() {
    for psn in [0, 0xff_fffe] {
        // Each packet of the first message in turn.
        for lost in 0..3 {
            let mut pair = Pair::new(QpType::Uc, psn);
            pair.ends[1].receive(100, 4096, 1024);
            pair.ends[0].post(1, Work::Send, 0, 600);
            pair.ends[0].post(2, Work::Send, 1000, 700);
            pair.run_with(|at, _| if at == lost { Fate::Lose } else { Fate::Pass });
            let [a, b] = &pair.ends;
            assert_eq!(a.sent_ids(), [1, 2], "what is sent is over");
            let received: Vec<_> = b.device.received.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
            assert_eq!(received, [(100, 700)]);
            assert_eq!(b.device.memory[4096..4796], a.device.memory[1000..1700]);
            assert_eq!(pair.log.len(), 6, "nothing is acknowledged or repeated");
        }
    }
}

#[test]
fn ignores_late_and_duplicate_packets() {
    for fate in [Fate::Double, Fate::Delay] {
        let mut pair = Pair::new(QpType::Uc, 0);
        pair.ends[1].receive(100, 4096, 1024);
        pair.ends[1].receive(101, 5120, 1024);
        pair.ends[0].post(1, Work::Send, 0, 10);
        pair.ends[0].post(2, Work::Send, 100, 20);
        pair.run_with(|at, _| if at == 0 { fate } else { Fate::Pass });
        let lengths: Vec<_> = pair.ends[1].device.received.iter().map(|wc| wc.byte_len).collect();
        assert_eq!(lengths, if fate == Fate::Double { vec![10, 20] } else { vec![20] });
    }
}

#[test]
fn a_send_that_fails_here_leaves_the_receive_queue_working() {
    let mut pair = Pair::new(QpType::Uc, 0);
    pair.ends[0].receive(100, 0, 64);
    pair.ends[0].post(1, Work::Send, MEMORY_BYTES - 4, 8);
    pair.ends[0].post(2, Work::Send, 0, 8);
    pair.ends[1].post(3, Work::Send, 0, 8);
    pair.run();
    let statuses: Vec<_> = pair.ends[0].device.sent.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::LOC_PROT_ERR, WcStatus::WR_FLUSH_ERR]);
    assert_eq!(pair.ends[0].qp.state(), QpState::Sqe);
    assert!(pair.ends[0].device.received[0].status.is_success());
}
