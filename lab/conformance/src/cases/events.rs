//! Asynchronous events.

use farcall_verbs::{AsyncEventKind, QpState, WcStatus, WrOpcode};

use crate::case::{Feature, Table};
use crate::end::{End, deliver, reconnect};
use crate::finding::{Verdict, ensure, same};
use crate::op::{SEND, WRITE};

const SOURCE: &str = "IBA 11.6.3; ibv_get_async_event(3)";
const REMOTE: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    table.rc("rc/events/none-where-nothing-fails", SEND, SOURCE, none);
    table.rc("rc/events/each-device-its-own", WRITE, SOURCE, own);
    table.rc("rc/events/a-violation-is-told-without-polling", WRITE, SOURCE, without_polling);
    table.rc("rc/events/a-violation-is-told-once", WRITE, SOURCE, once);
    let drained = "IBA 10.3.1.5";
    let waits = table.rc("rc/sqd/sends-wait-and-go-on", SEND | WRITE, drained, sqd_waits);
    waits.optional(Feature::SendQueueDrain);
    let go_on = table.rc("rc/sqd/receives-go-on", SEND, drained, sqd_receives);
    go_on.optional(Feature::SendQueueDrain);
}

fn none(a: &mut End, b: &mut End) -> Verdict {
    for id in 0..10 {
        b.recv(id, 0, 64)?;
        deliver(a, b, id, id)?;
    }
    a.fail_qp()?;
    a.expect_quiet()?;
    // COMM_EST indicates a message received in RTR; there was none.
    same("events at the initiator", a.async_event()?, None)?;
    same("events at the target", b.async_event()?, None)
}

/// Executes a request that the target must refuse.
fn violate(a: &mut End, b: &mut End) -> Verdict {
    a.complete_as(a.write_with_wrong_key(1, b), WcStatus::REM_ACCESS_ERR)
}

fn own(a: &mut End, b: &mut End) -> Verdict {
    violate(a, b)?;
    b.expect_state(b.qp, QpState::Err)?;
    // The event belongs to the target, regardless of which end reads first.
    a.expect_quiet()?;
    let taken = a.async_event()?;
    ensure(taken.is_none(), || format!("the initiator's device reports the target's event: {taken:?}"))?;
    b.expect_async(AsyncEventKind::QpAccessErr, b.qp.qpn)
}

/// The responder enters the error state when it detects the violation, whether or not the application polls.
fn without_polling(a: &mut End, b: &mut End) -> Verdict {
    violate(a, b)?;
    let qp = b.qp;
    b.until("its queue pair to fail without a poll", |b| Ok((b.state(qp)? == QpState::Err).then_some(())))?;
    b.until("the event, without a poll", |b| {
        Ok(b.async_event()?.filter(|event| event.kind == AsyncEventKind::QpAccessErr))
    })?;
    Ok(())
}

fn once(a: &mut End, b: &mut End) -> Verdict {
    for round in 0..3 {
        violate(a, b)?;
        b.expect_async(AsyncEventKind::QpAccessErr, b.qp.qpn)?;
        b.expect_state(b.qp, QpState::Err)?;
        b.expect_quiet()?;
        same(&format!("a second event in round {round}"), b.async_event()?, None)?;
        reconnect(a, b)?;
    }
    Ok(())
}

fn sqd_waits(a: &mut End, b: &mut End) -> Verdict {
    a.put(0, &7_u64.to_le_bytes())?;
    a.move_to(a.qp, QpState::Sqd)?;
    a.expect_state(a.qp, QpState::Sqd)?;
    a.post(a.request(WrOpcode::WRITE, 1, b, 8, REMOTE))?;
    a.expect_quiet()?;
    same("the target's word while the queue is drained", b.word(REMOTE)?, 0)?;
    a.move_to(a.qp, QpState::Rts)?;
    a.expect_ok(1)?;
    same("the target's word", b.word(REMOTE)?, 7)
}

fn sqd_receives(a: &mut End, b: &mut End) -> Verdict {
    a.recv(1, 0, 64)?;
    a.move_to(a.qp, QpState::Sqd)?;
    deliver(b, a, 2, 1)
}
