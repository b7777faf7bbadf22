//! Receiver-not-ready and transport retries of RC.

use farcall_verbs::{OpCaps, QpAttr, QpState, QpType, WcStatus};

use crate::case::Table;
use crate::finding::{Verdict, same};
use crate::op::{ALL_OPS, Op};
use crate::peer::{Peer, join};
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

/// Gives up on receives soon: one retry after 0.64 ms.
fn gives_up() -> Setup {
    Setup { rnr_retry: 1, min_rnr_timer: 12, ..Setup::rc() }
}

fn receiver_not_ready(table: &mut Table, op: Op) {
    let name = |what: &str| format!("rc/{}/rnr/{what}", op.name());
    table
        .add(name("exhausted"), RNR, move |a, b| {
            join(a, b, &gives_up())?;
            a.put(0, &[1; 8])?;
            a.post(op.request(1, a, b, 8, REMOTE))?;
            a.post(op.request(2, a, b, 8, REMOTE).unsignaled())?;
            a.expect(1, WcStatus::RNR_RETRY_EXC_ERR)?;
            a.expect(2, WcStatus::WR_FLUSH_ERR)?;
            a.expect_state(a.qp, QpState::Err)?;
            b.expect_quiet()?;
            same("state of the target", b.state(b.qp)?, QpState::Rts)?;
            same("the target's word", b.word(REMOTE)?, 0)
        })
        .needs(QpType::Rc, op.caps());
    table
        .add(name("no-retry-at-all"), RNR, move |a, b| {
            join(a, b, &Setup { rnr_retry: 0, ..gives_up() })?;
            a.post(op.request(1, a, b, 8, REMOTE))?;
            a.expect(1, WcStatus::RNR_RETRY_EXC_ERR)?;
            Ok(())
        })
        .needs(QpType::Rc, op.caps());
    table
        .add(name("exhausted-while-its-owner-sleeps"), RNR, move |a, b| {
            join(a, b, &gives_up())?;
            a.arm(false)?;
            a.post(op.request(1, a, b, 8, REMOTE))?;
            a.expect_cq_event(a.cq)?;
            a.expect(1, WcStatus::RNR_RETRY_EXC_ERR)?;
            Ok(())
        })
        .needs(QpType::Rc, op.caps());
    table
        .add(name("seven-is-for-ever"), RNR, move |a, b| {
            join(a, b, &Setup { min_rnr_timer: 1, ..Setup::rc() })?;
            a.post(op.request(1, a, b, 8, REMOTE))?;
            for _ in 0..10 {
                a.expect_quiet()?;
            }
            b.recv(9, 0, 64)?;
            a.expect_ok(1)?;
            b.expect_ok(9)?;
            Ok(())
        })
        .needs(QpType::Rc, op.caps());
    table
        .add(name("a-receive-in-time-saves-it"), RNR, move |a, b| {
            // Six retries after 491 ms each.
            join(a, b, &Setup { rnr_retry: 6, min_rnr_timer: 31, ..Setup::rc() })?;
            a.post(op.request(1, a, b, 8, REMOTE))?;
            a.expect_quiet()?;
            b.recv(9, 0, 64)?;
            a.expect_ok(1)?;
            b.expect_ok(9)?;
            Ok(())
        })
        .needs(QpType::Rc, op.caps());
    table
        .add(name("the-timer-is-the-targets"), RNR, move |a, b| {
            join(a, b, &Setup { min_rnr_timer: 1, rnr_retry: 6, ..Setup::rc() })?;
            // The target asks for 491 ms a time; by the initiator's own 10 µs it would have given up long ago.
            b.modify(
                b.qp,
                QpAttr { min_rnr_timer: Some(farcall_verbs::RnrTimer(31)), ..QpAttr::to(QpState::Rts) },
            )?;
            a.post(op.request(1, a, b, 8, REMOTE))?;
            a.expect_quiet()?;
            b.recv(9, 0, 64)?;
            a.expect_ok(1)?;
            Ok(())
        })
        .needs(QpType::Rc, op.caps());
    table
        .add(name("a-sleeping-owner-goes-on"), RNR, move |a, b| {
            join(a, b, &Setup::rc())?;
            a.arm(false)?;
            a.post(op.request(1, a, b, 8, REMOTE))?;
            a.expect_no_cq_event()?;
            b.recv(9, 0, 64)?;
            a.expect_cq_event(a.cq)?;
            a.expect_ok(1)?;
            Ok(())
        })
        .needs(QpType::Rc, op.caps());
}

/// What makes a target silent.
#[derive(Clone, Copy, Debug)]
enum Silent {
    Init,
    Reset,
    Error,
    Destroyed,
}

fn transport(table: &mut Table, op: Op) {
    let name = |what: &str| format!("rc/{}/retry/{what}", op.name());
    for (what, silent) in [
        ("target-in-init", Silent::Init),
        ("target-in-reset", Silent::Reset),
        ("target-in-err", Silent::Error),
        ("target-destroyed", Silent::Destroyed),
    ] {
        table
            .add(name(what), TRANSPORT, move |a, b| no_answer(a, b, op, silent))
            .needs(QpType::Rc, op.caps());
    }
    table
        .add(name("ready-in-time"), TRANSPORT, move |a, b| becomes_ready(a, b, op))
        .needs(QpType::Rc, op.caps());
    table
        .add(name("timeout-zero-is-for-ever"), TRANSPORT, move |a, b| {
            half_connected(a, b, &Setup::rc().impatient(), Some(0))?;
            a.post(op.request(1, a, b, 8, REMOTE))?;
            // Whether it is sent again is left open; it does not give up.
            for _ in 0..5 {
                a.expect_quiet()?;
            }
            a.fail_qp()?;
            a.expect(1, WcStatus::WR_FLUSH_ERR)?;
            Ok(())
        })
        .needs(QpType::Rc, op.caps());
    table
        .add(name("exhausted-while-its-owner-sleeps"), TRANSPORT, move |a, b| {
            half_connected(a, b, &Setup::rc().impatient(), None)?;
            a.arm(false)?;
            a.post(op.request(1, a, b, 8, REMOTE))?;
            a.expect_cq_event(a.cq)?;
            a.expect(1, WcStatus::RETRY_EXC_ERR)?;
            Ok(())
        })
        .needs(QpType::Rc, op.caps() | OpCaps::SEND);
}

/// `a` in RTS, `b` in INIT.
fn half_connected(a: &mut Peer, b: &mut Peer, setup: &Setup, timeout: Option<u8>) -> Verdict {
    a.equip(setup)?;
    b.equip(setup)?;
    let to_b = b.address(b.qp);
    a.modify(a.qp, a.init_attr(setup))?;
    b.modify(b.qp, b.init_attr(setup))?;
    a.modify(a.qp, a.rtr_attr(setup, &to_b))?;
    let rts = a.rts_attr(setup);
    a.modify(a.qp, QpAttr { timeout: timeout.or(rts.timeout), ..rts })?;
    Ok(())
}

fn no_answer(a: &mut Peer, b: &mut Peer, op: Op, silent: Silent) -> Verdict {
    let setup = Setup::rc().impatient();
    half_connected(a, b, &setup, None)?;
    let to_a = a.address(a.qp);
    if op.consumes_receive() {
        b.recv(100, 0, 64)?;
    }
    if !matches!(silent, Silent::Init) {
        b.modify(b.qp, b.rtr_attr(&setup, &to_a))?;
    }
    match silent {
        Silent::Init => {}
        Silent::Reset => b.modify(b.qp, QpAttr::to(QpState::Reset))?,
        Silent::Error => b.fail_qp()?,
        Silent::Destroyed => b.destroy(b.qp.handle)?,
    }
    a.put(0, &[1; 8])?;
    a.post(op.request(1, a, b, 8, REMOTE))?;
    a.post(op.request(2, a, b, 8, REMOTE).unsignaled())?;
    a.expect(1, WcStatus::RETRY_EXC_ERR)?;
    a.expect(2, WcStatus::WR_FLUSH_ERR)?;
    a.expect_state(a.qp, QpState::Err)?;
    same("the target's word", b.word(REMOTE)?, 0)
}

fn becomes_ready(a: &mut Peer, b: &mut Peer, op: Op) -> Verdict {
    let setup = Setup::rc();
    half_connected(a, b, &setup, Some(14))?;
    if op.consumes_receive() {
        b.recv(9, 0, 64)?;
    }
    a.put(0, &[1; 8])?;
    a.post(op.request(1, a, b, 8, REMOTE))?;
    a.expect_quiet()?;
    same("the target's word before it is ready", b.word(REMOTE)?, 0)?;
    let to_a = a.address(a.qp);
    b.modify(b.qp, b.rtr_attr(&setup, &to_a))?;
    a.expect_ok(1)?;
    if op.consumes_receive() {
        b.expect_ok(9)?;
    }
    Ok(())
}
