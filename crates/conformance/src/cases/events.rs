//! Asynchronous events.

use farcall_verbs::{AsyncEventKind, OpCaps, QpAttr, QpState, QpType, WcStatus};

use crate::case::{Feature, Table};
use crate::finding::{Verdict, ensure, same};
use crate::op::Op;
use crate::peer::{Peer, connect, join};
use crate::setup::Setup;

const SOURCE: &str = "IBA 11.6.3; ibv_get_async_event(3)";
const REMOTE: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    table.add("rc/events/none-where-nothing-fails", SOURCE, none).needs(QpType::Rc, OpCaps::SEND);
    table.add("rc/events/each-device-its-own", SOURCE, own).needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/events/a-violation-is-told-without-polling", SOURCE, without_polling)
        .needs(QpType::Rc, OpCaps::WRITE);
    table.add("rc/events/a-violation-is-told-once", SOURCE, once).needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/sqd/sends-wait-and-go-on", "IBA 10.3.1.5", sqd_waits)
        .needs(QpType::Rc, OpCaps::SEND | OpCaps::WRITE)
        .optional(Feature::SendQueueDrain);
    table
        .add("rc/sqd/receives-go-on", "IBA 10.3.1.5", sqd_receives)
        .needs(QpType::Rc, OpCaps::SEND)
        .optional(Feature::SendQueueDrain);
}

fn none(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    for id in 0..10 {
        b.recv(id, 0, 64)?;
        a.post(Op::Send.request(id, a, b, 8, 0))?;
        a.expect_ok(id)?;
        b.expect_ok(id)?;
    }
    a.fail_qp()?;
    a.expect_quiet()?;
    // COMM_EST tells that a message came in RTR; it did not.
    same("events at the initiator", a.async_event()?, None)?;
    same("events at the target", b.async_event()?, None)
}

/// A request that the target must not allow.
fn violate(a: &mut Peer, b: &mut Peer) -> Verdict {
    let wrong = b.mr.rkey ^ 0x5A5A;
    a.post(Op::Write.request_from(1, vec![a.piece(0, 8)], a, b, b.mr.addr, wrong))?;
    a.expect(1, WcStatus::REM_ACCESS_ERR)?;
    Ok(())
}

fn own(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    violate(a, b)?;
    b.expect_state(b.qp, QpState::Err)?;
    // Whoever asks first: the event is the target's.
    a.expect_quiet()?;
    let taken = a.async_event()?;
    ensure(taken.is_none(), || format!("the initiator's device tells the target's event: {taken:?}"))?;
    b.expect_async(AsyncEventKind::QpAccessErr, b.qp.qpn)
}

/// The responder fails when it sees the violation, whether or not its owner polls.
fn without_polling(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    violate(a, b)?;
    let qp = b.qp;
    b.until("its queue pair to fail without a poll", |b| Ok((b.state(qp)? == QpState::Err).then_some(())))?;
    b.until("the event, without a poll", |b| {
        Ok(b.async_event()?.filter(|event| event.is(AsyncEventKind::QpAccessErr)))
    })?;
    Ok(())
}

fn once(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc();
    join(a, b, &setup)?;
    for round in 0..3 {
        violate(a, b)?;
        b.expect_async(AsyncEventKind::QpAccessErr, b.qp.qpn)?;
        b.expect_state(b.qp, QpState::Err)?;
        b.expect_quiet()?;
        same(&format!("a second event in round {round}"), b.async_event()?, None)?;
        a.modify(a.qp, QpAttr::to(QpState::Reset))?;
        b.modify(b.qp, QpAttr::to(QpState::Reset))?;
        connect(a, a.qp, b, b.qp, &setup)?;
    }
    Ok(())
}

fn sqd_waits(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    a.put(0, &7_u64.to_le_bytes())?;
    a.modify(a.qp, QpAttr::to(QpState::Sqd))?;
    a.expect_state(a.qp, QpState::Sqd)?;
    a.post(Op::Write.request(1, a, b, 8, REMOTE))?;
    a.expect_quiet()?;
    same("the target's word while the queue is drained", b.word(REMOTE)?, 0)?;
    a.modify(a.qp, QpAttr::to(QpState::Rts))?;
    a.expect_ok(1)?;
    same("the target's word", b.word(REMOTE)?, 7)
}

fn sqd_receives(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    a.recv(1, 0, 64)?;
    a.modify(a.qp, QpAttr::to(QpState::Sqd))?;
    b.post(Op::Send.request(2, b, a, 8, 0))?;
    b.expect_ok(2)?;
    a.expect_ok(1)?;
    Ok(())
}
