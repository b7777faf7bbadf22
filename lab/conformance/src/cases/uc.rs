//! Unreliable connections: losses are silent.

use farcall_verbs::{QpState, QpType, WcStatus, WrOpcode};

use crate::case::Table;
use crate::end::{End, deliver, half_join};
use crate::finding::{Verdict, refused, same, same_bytes};
use crate::op::{ALL_OPS, Operation, SEND, WRITE, transport_name};
use crate::setup::Setup;

const SOURCE: &str = "IBA 9.8.2";
const AT: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    let uc = Setup::new(QpType::Uc);
    for op in [WrOpcode::SEND, WrOpcode::SEND_WITH_IMM, WrOpcode::WRITE_WITH_IMM] {
        let case = table.op_case(uc, op, "without-a-receive-is-dropped-silently", SOURCE, |a, b, op| {
            for id in 0..5 {
                a.complete(a.request(op, id, b, 8, AT))?;
            }
            b.expect_quiet()?;
            same("state of the target", b.state(b.qp)?, QpState::Rts)?;
            goes_on(a, b)
        });
        case.needs(QpType::Uc, SEND);
    }
    for op in ALL_OPS.into_iter().filter(|op| op.belongs_to(QpType::Uc)) {
        let what = "to-a-target-not-ready-is-dropped-silently";
        table.op_case_apart(QpType::Uc, op, what, SOURCE, not_ready).needs(QpType::Uc, SEND);
    }
    refused_operations(table, QpType::Uc);
    table.joined(uc, "uc/send/longer-than-its-receive-writes-nothing-beyond", SEND, SOURCE, |a, b| {
        b.put(0, &vec![0x5A; 8192])?;
        b.recv(1, AT, 64)?;
        a.complete(a.request(WrOpcode::SEND, 1, b, 65, 0))?;
        b.pause();
        same_bytes("beyond the receive", &b.get(AT + 64, 64)?, &[0x5A; 64])
    });
    table.joined(uc, "uc/write/goes-on-after-a-violation", WRITE | SEND, SOURCE, |a, b| {
        a.complete(a.write_with_wrong_key(1, b))?;
        goes_on(a, b)
    });
}

/// Operations that a transport does not define are refused, or complete with an error (C10-10).
pub(super) fn refused_operations(table: &mut Table, qp_type: QpType) {
    for op in ALL_OPS.into_iter().filter(|op| !op.belongs_to(qp_type)) {
        let name = format!("{}/{}/refused", transport_name(qp_type), op.name());
        let source = "IBA table 38; ibv_post_send(3)";
        table.joined(Setup::new(qp_type), name, SEND, source, move |a, b| {
            let posted = a.post(a.request(op, 1, b, 8, AT));
            if posted.is_ok() {
                a.expect(1, WcStatus::LOC_QP_OP_ERR)?;
            } else {
                refused("posting", posted)?;
                a.expect_quiet()?;
            }
            same("the target's word", b.word(AT)?, 0)
        });
    }
}

/// Checks that a message with a posted receive arrives.
fn goes_on(a: &mut End, b: &mut End) -> Verdict {
    a.put(0, &[9; 8])?;
    b.recv(50, 0, 8)?;
    deliver(a, b, 51, 50)?;
    same_bytes("the message that follows", &b.get(0, 8)?, &[9; 8])
}

fn not_ready(a: &mut End, b: &mut End, qp_type: QpType, op: WrOpcode) -> Verdict {
    let rtr = half_join(a, b, &Setup::new(qp_type))?;
    a.put(0, &[1; 8])?;
    a.complete(a.request(op, 1, b, 8, AT))?;
    // The request is sent; the target must not be ready when it arrives.
    b.pause();
    b.modify(b.qp, rtr)?;
    b.expect_quiet()?;
    same("the target's word", b.word(AT)?, 0)?;
    goes_on(a, b)
}
