//! Lost messages.

use farcall_verbs::{QpType, SendFlags, SendWr, UdTarget, Wc, WcOpcode, WcStatus};

use crate::support::{QKEY, connected, faults};

const MESSAGES: u64 = 200;

/// Sends numbered messages and returns those that arrived. The last one is repeated until it arrives, so that all
/// messages before it have arrived or are lost.
fn survivors(qp_type: QpType, text: &str) -> Vec<u64> {
    let (mut one, mut other) = connected(&faults(text), qp_type, 7);
    let grh_bytes = if qp_type == QpType::Ud { 40 } else { 0 };
    let ah = one.pd.create_ah(&other.path()).unwrap();
    let to = UdTarget { ah: ah.as_raw(), remote_qpn: other.qp.qp_num(), remote_qkey: QKEY };
    let (mut arrived, mut receives) = (Vec::new(), 0);
    for number in 0.. {
        if receives < arrived.len() + 128 {
            other.receive(number, 0, grh_bytes + 8);
            receives += 1;
        }
        let word = number.min(MESSAGES);
        one.put(0, word);
        let sges = [one.sge(0, 8)];
        let wr = match qp_type {
            QpType::Ud => SendWr::send_to(number, &sges, to),
            _ => SendWr::send(number, &sges),
        };
        // SAFETY: the region and the handle exist as long as the queue pair.
        unsafe { one.qp.post_send(&[wr.with_flags(SendFlags::SIGNALED)]) }.unwrap();
        let sent = one.take(1)[0];
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (number, WcStatus::SUCCESS, WcOpcode::SEND));
        let mut wc = [Wc::default()];
        // The service thread resolves the destination of a datagram; the test does not wait for a lost one.
        let last = arrived.len();
        for _ in 0..2 {
            if other.cq.poll(&mut wc).unwrap() > 0 {
                assert!(wc[0].status.is_success());
                arrived.push(other.get(grh_bytes));
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        if arrived.len() > last && arrived.last() == Some(&MESSAGES) {
            return arrived;
        }
        assert!(number < 100 * MESSAGES, "nothing arrives");
    }
    unreachable!("the loop ends")
}

#[test]
fn messages_over_unreliable_transports_are_lost_silently() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let arrived = survivors(qp_type, "seed=5,drop=0.3");
        assert!(arrived.is_sorted(), "{qp_type:?}: {arrived:?}");
        assert!(arrived.len() < MESSAGES as usize, "{qp_type:?}: some are lost");
        assert!(arrived.len() > MESSAGES as usize / 4, "{qp_type:?}: most arrive: {arrived:?}");
    }
}

#[test]
fn nothing_is_lost_where_nothing_is_to_be() {
    let arrived = survivors(QpType::Rc, "seed=5,rnr=0,drop=0");
    assert_eq!(arrived, (0..=MESSAGES).collect::<Vec<_>>());
}

/// A lost message is not written either, and the next message consumes the receive that it would have consumed.
#[test]
fn a_lost_write_with_immediate_leaves_memory_and_receive() {
    let (mut one, mut other) = connected(&faults("seed=5,drop=1,limit=1"), QpType::Uc, 7);
    other.receive(7, 0, 8);
    other.put(64, 1);
    one.put(0, 2);
    let sges = [one.sge(0, 8)];
    let (remote_addr, rkey) = (other.mr.addr() as u64 + 64, other.mr.rkey());
    let mut received = [Wc::default()];
    // The first message is lost by injection; the second may be lost on a busy machine.
    for number in 1..200 {
        let wr = SendWr::write(number, &sges, remote_addr, rkey).with_imm(number as u32);
        // SAFETY: the regions exist as long as the queue pairs.
        unsafe { one.qp.post_send(&[wr.with_flags(SendFlags::SIGNALED)]) }.unwrap();
        let sent = one.take(1)[0];
        assert_eq!((sent.status, sent.opcode), (WcStatus::SUCCESS, WcOpcode::RDMA_WRITE));
        let arrived = other.cq.poll(&mut received).unwrap();
        assert!(number > 1 || (arrived, other.get(64)) == (0, 1), "the first arrived");
        if arrived > 0 {
            assert_eq!((received[0].wr_id, received[0].imm(), other.get(64)), (7, Some(number as u32), 2));
            return;
        }
    }
    panic!("nothing arrives");
}
