//! Receiver-not-ready and transport retries of RC.

use farcall_verbs::{QpAttr, QpState, QpType, RnrTimer, WcStatus, WrOpcode};

use crate::case::Table;
use crate::end::{End, half_join};
use crate::finding::{Verdict, same};
use crate::op::{ALL_OPS, SEND};
use crate::setup::Setup;

const RNR: &str = "IBA 9.7.5.2.8, 11.6.2: RNR Retry Counter Exceeded; ibv_modify_qp(3)";
const TRANSPORT: &str = "IBA 9.9.2, 11.6.2: Transport Retry Counter Exceeded; ibv_modify_qp(3)";
const REMOTE: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    for op in ALL_OPS {
        if op.consumes_receive() {
            receiver_not_ready(table, op);
        }
        transport(table, op);
    }
}

/// Returns a setup that stops waiting for receives soon: one retry after 0.64 ms.
fn gives_up() -> Setup {
    Setup { rnr_retry: 1, min_rnr_timer: 12, ..Setup::rc() }
}

fn receiver_not_ready(table: &mut Table, op: WrOpcode) {
    table.op_case(gives_up(), op, "rnr/exhausted", RNR, |a, b, op| {
        a.put(0, &[1; 8])?;
        a.post(a.request(op, 1, b, 8, REMOTE))?;
        a.post(a.request(op, 2, b, 8, REMOTE).unsignaled())?;
        a.expect(1, WcStatus::RNR_RETRY_EXC_ERR)?;
        a.expect(2, WcStatus::WR_FLUSH_ERR)?;
        a.expect_state(a.qp, QpState::Err)?;
        b.expect_quiet()?;
        same("state of the target", b.state(b.qp)?, QpState::Rts)?;
        same("the target's word", b.word(REMOTE)?, 0)
    });
    table.op_case(Setup { rnr_retry: 0, ..gives_up() }, op, "rnr/no-retry-at-all", RNR, |a, b, op| {
        a.complete_as(a.request(op, 1, b, 8, REMOTE), WcStatus::RNR_RETRY_EXC_ERR)
    });
    table.op_case(gives_up(), op, "rnr/exhausted-while-its-owner-sleeps", RNR, |a, b, op| {
        a.arm(false)?;
        a.post(a.request(op, 1, b, 8, REMOTE))?;
        a.expect_cq_event(a.cq)?;
        a.expect(1, WcStatus::RNR_RETRY_EXC_ERR)
    });
    let endless = Setup { min_rnr_timer: 1, ..Setup::rc() };
    table.op_case(endless, op, "rnr/seven-is-for-ever", RNR, |a, b, op| {
        a.post(a.request(op, 1, b, 8, REMOTE))?;
        for _ in 0..10 {
            a.expect_quiet()?;
        }
        b.recv(9, 0, 64)?;
        a.expect_ok(1)?;
        b.expect_ok(9)
    });
    // Six retries at intervals of 491 ms.
    let slow = Setup { rnr_retry: 6, min_rnr_timer: 31, ..Setup::rc() };
    table.op_case(slow, op, "rnr/a-receive-in-time-saves-it", RNR, |a, b, op| {
        a.post(a.request(op, 1, b, 8, REMOTE))?;
        a.expect_quiet()?;
        b.recv(9, 0, 64)?;
        a.expect_ok(1)?;
        b.expect_ok(9)
    });
    let quick = Setup { rnr_retry: 6, min_rnr_timer: 1, ..Setup::rc() };
    table.op_case(quick, op, "rnr/the-timer-is-the-targets", RNR, |a, b, op| {
        // The target specifies 491 ms per retry. With the 10 µs of the initiator, the retries would have ended long
        // before.
        b.modify(b.qp, QpAttr { min_rnr_timer: Some(RnrTimer(31)), ..QpAttr::to(QpState::Rts) })?;
        a.post(a.request(op, 1, b, 8, REMOTE))?;
        a.expect_quiet()?;
        b.recv(9, 0, 64)?;
        a.expect_ok(1)
    });
    table.op_case(Setup::rc(), op, "rnr/a-sleeping-owner-goes-on", RNR, |a, b, op| {
        a.arm(false)?;
        a.post(a.request(op, 1, b, 8, REMOTE))?;
        a.expect_no_cq_event()?;
        b.recv(9, 0, 64)?;
        a.expect_cq_event(a.cq)?;
        a.expect_ok(1)
    });
}

/// Reason why a target does not respond.
#[derive(Clone, Copy, Debug)]
enum Silent {
    Init,
    Reset,
    Error,
    Destroyed,
}

fn transport(table: &mut Table, op: WrOpcode) {
    for (what, silent) in [
        ("target-in-init", Silent::Init),
        ("target-in-reset", Silent::Reset),
        ("target-in-err", Silent::Error),
        ("target-destroyed", Silent::Destroyed),
    ] {
        table.op_case_apart(QpType::Rc, op, &format!("retry/{what}"), TRANSPORT, move |a, b, _, op| {
            no_answer(a, b, op, silent)
        });
    }
    table.op_case_apart(QpType::Rc, op, "retry/ready-in-time", TRANSPORT, becomes_ready);
    table.op_case_apart(QpType::Rc, op, "retry/timeout-zero-is-for-ever", TRANSPORT, |a, b, _, op| {
        half_join(a, b, &Setup { timeout: Some(0), ..Setup::rc().impatient() })?;
        a.post(a.request(op, 1, b, 8, REMOTE))?;
        // The specification does not state whether the request is sent again; it must not time out.
        for _ in 0..5 {
            a.expect_quiet()?;
        }
        a.fail_qp()?;
        a.expect(1, WcStatus::WR_FLUSH_ERR)
    });
    let sleeps = "retry/exhausted-while-its-owner-sleeps";
    let case = table.op_case_apart(QpType::Rc, op, sleeps, TRANSPORT, |a, b, _, op| {
        half_join(a, b, &Setup::rc().impatient())?;
        a.arm(false)?;
        a.post(a.request(op, 1, b, 8, REMOTE))?;
        a.expect_cq_event(a.cq)?;
        a.expect(1, WcStatus::RETRY_EXC_ERR)
    });
    case.needs(QpType::Rc, SEND);
}

fn no_answer(a: &mut End, b: &mut End, op: WrOpcode, silent: Silent) -> Verdict {
    let rtr = half_join(a, b, &Setup::rc().impatient())?;
    b.recv_for(op, 100, 0, 64)?;
    if !matches!(silent, Silent::Init) {
        b.modify(b.qp, rtr)?;
    }
    match silent {
        Silent::Init => {}
        Silent::Reset => b.move_to(b.qp, QpState::Reset)?,
        Silent::Error => b.fail_qp()?,
        Silent::Destroyed => b.destroy(b.qp.handle)?,
    }
    a.put(0, &[1; 8])?;
    a.post(a.request(op, 1, b, 8, REMOTE))?;
    a.post(a.request(op, 2, b, 8, REMOTE).unsignaled())?;
    a.expect(1, WcStatus::RETRY_EXC_ERR)?;
    a.expect(2, WcStatus::WR_FLUSH_ERR)?;
    a.expect_state(a.qp, QpState::Err)?;
    same("the target's word", b.word(REMOTE)?, 0)
}

fn becomes_ready(a: &mut End, b: &mut End, _: QpType, op: WrOpcode) -> Verdict {
    let rtr = half_join(a, b, &Setup { timeout: Some(14), ..Setup::rc() })?;
    b.recv_for(op, 9, 0, 64)?;
    a.put(0, &[1; 8])?;
    a.post(a.request(op, 1, b, 8, REMOTE))?;
    a.expect_quiet()?;
    same("the target's word before it is ready", b.word(REMOTE)?, 0)?;
    b.modify(b.qp, rtr)?;
    a.expect_ok(1)?;
    b.expect_received(op, 9)
}
