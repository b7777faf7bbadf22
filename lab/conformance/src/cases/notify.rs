//! Completion events.

use farcall_verbs::{OpCaps, QpType, SendFlags, WcStatus, WrOpcode};

use crate::case::{Body, Table};
use crate::end::{End, another_pair_of, equip};
use crate::executor::QpInit;
use crate::finding::{Verdict, refused, same};
use crate::op::{SEND, TRANSPORTS, WRITE, transport_name};
use crate::setup::Setup;

const SOURCE: &str = "IBA 11.4.2.2; ibv_req_notify_cq(3), ibv_get_cq_event(3)";
const AT: u64 = 4096;
const PLAIN: SendFlags = SendFlags::empty();

pub(super) fn add(table: &mut Table) {
    for qp_type in TRANSPORTS {
        let t = transport_name(qp_type);
        let mut case = |what, body: Body| {
            table.joined(Setup::new(qp_type), format!("{t}/notify/{what}"), SEND, SOURCE, body);
        };
        case("armed-then-completed-is-one-event", one_event);
        case("completed-then-armed-is-found-by-a-poll", completed_first);
        case("not-armed-is-no-event", not_armed);
        case("solicited-only", solicited_only);
        case("the-stronger-arming-holds", stronger);
        case("every-arming-its-event", every_arming);
        case("sends-notify-too", sends_notify);
    }
    table.rc("rc/notify/write-imm-solicits", OpCaps::WRITE_IMM, SOURCE, |a, b| {
        b.recv(1, 0, 0)?;
        b.arm(true)?;
        a.post(a.request(WrOpcode::WRITE_WITH_IMM, 1, b, 8, 0).flagged(SendFlags::SOLICITED))?;
        b.expect_cq_event(b.cq)?;
        b.expect_ok(1)
    });
    table.rc("rc/notify/failures-count-as-solicited", WRITE, SOURCE, |a, b| {
        a.arm(true)?;
        a.post(a.write_with_wrong_key(1, b))?;
        a.expect_cq_event(a.cq)?;
        a.expect(1, WcStatus::REM_ACCESS_ERR)
    });
    table.rc("rc/notify/a-plain-write-wakes-nobody", WRITE, SOURCE, |a, b| {
        b.recv(1, 0, 0)?;
        b.arm(false)?;
        a.complete(a.request(WrOpcode::WRITE, 1, b, 8, 0))?;
        b.expect_no_cq_event()
    });
    table.rc("rc/notify/one-channel-names-its-queues", SEND, SOURCE, names_queues);
    table.add("cq/arming-without-channel-is-refused", SOURCE, |a, b| {
        equip(a, b, &Setup::rc())?;
        let cq = a.new_cq(8, None)?;
        refused("arming", a.arm_on(cq, false)).map(drop)
    });
}

fn send(a: &mut End, b: &mut End, id: u64, flags: SendFlags) -> Verdict {
    b.recv_message(id, AT, 64)?;
    a.complete(a.request(WrOpcode::SEND, id, b, 8, 0).flagged(flags))
}

fn one_event(a: &mut End, b: &mut End) -> Verdict {
    b.arm(false)?;
    b.expect_no_cq_event()?;
    for id in 0..5 {
        send(a, b, id, PLAIN)?;
    }
    b.expect_cq_event(b.cq)?;
    b.expect_no_cq_event()?;
    for id in 0..5 {
        b.expect_ok(id)?;
    }
    Ok(())
}

fn completed_first(a: &mut End, b: &mut End) -> Verdict {
    if a.setup.qp_type != QpType::Rc {
        // Over UC and UD the completion of a send does not imply its arrival, and the first message may wait for the
        // resolution of its destination.
        send(a, b, 0, PLAIN)?;
        b.expect_ok(0)?;
    }
    send(a, b, 1, PLAIN)?;
    b.pause();
    b.arm(false)?;
    b.expect_no_cq_event()?;
    b.expect_ok(1)?;
    // The notification request still applies to the next completion.
    send(a, b, 2, PLAIN)?;
    b.expect_cq_event(b.cq)?;
    b.expect_ok(2)
}

fn not_armed(a: &mut End, b: &mut End) -> Verdict {
    send(a, b, 1, PLAIN)?;
    b.expect_no_cq_event()?;
    b.expect_ok(1)
}

fn solicited_only(a: &mut End, b: &mut End) -> Verdict {
    b.arm(true)?;
    send(a, b, 1, PLAIN)?;
    b.expect_no_cq_event()?;
    send(a, b, 2, SendFlags::SOLICITED)?;
    b.expect_cq_event(b.cq)?;
    b.expect_ok(1)?;
    b.expect_ok(2)
}

/// Checks that a request for the next completion replaces one for the next solicited completion, but not the other way
/// round.
fn stronger(a: &mut End, b: &mut End) -> Verdict {
    for (id, order) in [(1, [true, false]), (2, [false, true])] {
        for solicited_only in order {
            b.arm(solicited_only)?;
        }
        send(a, b, id, PLAIN)?;
        b.expect_cq_event(b.cq)?;
        b.expect_ok(id)?;
        b.expect_no_cq_event()?;
    }
    Ok(())
}

/// The target sleeps before each message and polls only after it was woken.
fn every_arming(a: &mut End, b: &mut End) -> Verdict {
    for id in 0..50 {
        b.recv_message(id, AT, 64)?;
        b.arm(false)?;
        if b.poll()?.is_some() {
            return Err(crate::Finding::new("a completion of nothing"));
        }
        a.send(id, b)?;
        b.expect_cq_event(b.cq)?;
        b.expect_ok(id)?;
        a.expect_ok(id)?;
    }
    Ok(())
}

fn sends_notify(a: &mut End, b: &mut End) -> Verdict {
    b.recv_message(1, AT, 64)?;
    a.arm(false)?;
    a.send(1, b)?;
    a.expect_cq_event(a.cq)?;
    a.expect_ok(1)?;
    // An unsignalled request raises neither a completion nor an event.
    b.recv_message(2, AT, 64)?;
    a.arm(false)?;
    a.post(a.request(WrOpcode::SEND, 2, b, 8, 0).unsignaled())?;
    a.expect_no_cq_event()
}

fn names_queues(a: &mut End, b: &mut End) -> Verdict {
    let mut ends = Vec::new();
    for _ in 0..3 {
        let cq = b.new_cq(16, Some(b.channel))?;
        let of_b = QpInit { send_cq: cq.handle, recv_cq: cq.handle, ..b.qp_init() };
        let (qa, qb) = another_pair_of(a, a.qp_init(), b, of_b)?;
        b.recv_on(qb.handle, 1, vec![b.sge(0, 64)])?;
        b.arm_on(cq, false)?;
        ends.push((qa, cq));
    }
    for (qa, cq) in ends.iter().rev() {
        a.send_on(*qa, 1, b)?;
        b.expect_cq_event(*cq)?;
        same("completions there", b.wait_on(*cq)?.wr_id, 1)?;
    }
    b.expect_no_cq_event()
}
