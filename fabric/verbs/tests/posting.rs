//! Checks of posted requests: every opcode on every transport with every flag, and each limit at its boundary.

use farcall_verbs::{
    AtomicTarget, Error, QpCap, QpState, QpType, RecvRules, RecvWr, SendFlags, SendRules, SendWr, Sge,
    WrOpcode,
};

const CAP: QpCap =
    QpCap { max_send_wr: 4, max_recv_wr: 3, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 100 };
const TRANSPORTS: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

fn rules(qp_type: QpType) -> SendRules {
    SendRules::new("test", qp_type, &CAP)
}

fn sges(lengths: &[u32]) -> Vec<Sge> {
    lengths.iter().map(|length| Sge { addr: 0, length: *length, lkey: 0 }).collect()
}

fn request(opcode: u32, sges: &[Sge]) -> SendWr<'_> {
    let target = AtomicTarget { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 };
    SendWr::atomic(WrOpcode(opcode), 1, sges, target)
}

fn check(qp_type: QpType, opcode: u32, lengths: &[u32], flags: u32) -> Result<u64, String> {
    let sges = sges(lengths);
    let wr = request(opcode, &sges).with_flags(SendFlags::from_bits_retain(flags));
    rules(qp_type).check(&wr, 0).map_err(|error| error.to_string())
}

/// The operations of IBA table 38, by opcode.
fn has(qp_type: QpType, opcode: u32) -> bool {
    let opcodes: &[u32] = match qp_type {
        QpType::Rc => &[0, 1, 2, 3, 4, 5, 6],
        QpType::Uc => &[0, 1, 2, 3],
        QpType::Ud => &[2, 3],
        other => panic!("{other:?}"),
    };
    opcodes.contains(&opcode)
}

/// Operations that are accepted, and complete with an error.
fn is_accepted(qp_type: QpType, opcode: u32) -> bool {
    has(qp_type, opcode) || qp_type == QpType::Uc && [4, 5, 6].contains(&opcode)
}

#[test]
fn opcodes_and_flags_of_each_transport() {
    const INLINE: u32 = 8;
    for qp_type in TRANSPORTS {
        for opcode in (0..7).map(WrOpcode) {
            let offered = qp_type.operations().contains(opcode.caps().unwrap());
            assert_eq!(offered, has(qp_type, opcode.0), "{opcode:?} over {qp_type:?}");
        }
        for opcode in (0..20).chain([31, 32, u32::MAX - 1, u32::MAX]) {
            for flags in 0..64 {
                let is_inline_result = flags & INLINE != 0 && opcode >= 4;
                let expected = is_accepted(qp_type, opcode) && flags < 16 && !is_inline_result;
                let seen = check(qp_type, opcode, &[8], flags);
                assert_eq!(seen.is_ok(), expected, "{qp_type:?} opcode {opcode} flags {flags}: {seen:?}");
                if let Err(text) = seen
                    && flags < 16
                    && !is_accepted(qp_type, opcode)
                {
                    assert!(text.contains(&format!("opcode {opcode} over {qp_type:?}")), "{text}");
                }
            }
        }
        assert!(check(qp_type, 2, &[8], 16).unwrap_err().contains("send flags 0x10; there are 0xf"));
    }
}

#[test]
fn lengths_and_elements() {
    for qp_type in TRANSPORTS {
        for opcode in (0..4).filter(|opcode| has(qp_type, *opcode)) {
            assert_eq!(check(qp_type, opcode, &[], 0), Ok(0));
            assert_eq!(check(qp_type, opcode, &[1, 2], 0), Ok(3));
            assert!(check(qp_type, opcode, &[1, 2, 3], 0).unwrap_err().contains("max_send_sge is 2"));
            assert_eq!(check(qp_type, opcode, &[1 << 30, 1 << 30], 0), Ok(1 << 31));
            let over = check(qp_type, opcode, &[1 << 31, 1], 0);
            assert!(over.unwrap_err().contains("a message has at most 2147483648"));
            assert_eq!(check(qp_type, opcode, &[60, 40], 8), Ok(100));
            let inline = check(qp_type, opcode, &[60, 41], 8);
            assert!(inline.unwrap_err().contains("101 inline bytes; max_inline_data is 100"));
        }
    }
    assert!(check(QpType::Rc, 4, &[8], 8).unwrap_err().contains("cannot be inline"));
    for atomic in [5, 6] {
        assert_eq!(check(QpType::Rc, atomic, &[8], 0), Ok(8));
        assert_eq!(check(QpType::Rc, atomic, &[4, 12], 0), Ok(16), "more room is a fault of execution");
        assert!(check(QpType::Rc, atomic, &[4, 3], 0).unwrap_err().contains("hold 7 bytes"));
        assert!(check(QpType::Rc, atomic, &[8], 8).unwrap_err().contains("cannot be inline"));
    }
}

#[test]
fn reports_a_full_queue_before_other_errors() {
    let wr = request(9, &[]);
    for qp_type in TRANSPORTS {
        let Err(Error::Exhausted { limit: 4, .. }) = rules(qp_type).check(&wr, 4) else { panic!() };
        let Err(Error::Unsupported { .. }) = rules(qp_type).check(&wr, 3) else { panic!() };
        assert!(rules(qp_type).check(&request(2, &[]), 3).is_ok());
    }
}

#[test]
fn receives() {
    let (one, two) = (sges(&[8]), sges(&[8, 8]));
    let own = RecvRules::of_pair(&CAP, false);
    let shared = RecvRules::of_srq(7, 1);
    for (rules, operation, limit) in [(own, "post_recv", 3), (shared, "post_srq_recv", 7)] {
        rules.check(&RecvWr::new(1, &one), true).unwrap();
        rules.check(&RecvWr::new(1, &[]), true).unwrap();
        let long = rules.check(&RecvWr::new(1, &two), true).unwrap_err();
        assert!(long.operation() == operation && long.to_string().contains("2 elements"), "{long}");
        match rules.check(&RecvWr::new(1, &one), false) {
            Err(Error::Exhausted { operation: seen, limit: told, .. }) => {
                assert_eq!((seen, told), (operation, limit));
            }
            other => panic!("{other:?}"),
        }
    }
    let text = RecvRules::of_pair(&CAP, true).check(&RecvWr::new(1, &one), true).unwrap_err().to_string();
    assert!(text.contains("post to the shared receive queue"), "{text}");
}

#[test]
fn states() {
    for number in 0..7 {
        let state = QpState::from_raw(number).unwrap();
        assert_eq!(state.check_sends(1).is_ok(), number >= QpState::Rts as u32, "{state}");
        assert_eq!(state.check_receives(1).is_ok(), number != 0, "{state}");
    }
    let text = QpState::Rtr.check_sends(0x12).unwrap_err().to_string();
    assert!(text.contains("queue pair 0x12 is in state RTR; bring the queue pair to RTS first"), "{text}");
    let text = QpState::Reset.check_receives(0x12).unwrap_err().to_string();
    assert!(text.contains("post_recv") && text.contains("INIT"), "{text}");
}
