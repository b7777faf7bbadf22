//! Completion events.

use farcall_verbs::{OpCaps, QpType, SendFlags, WcStatus};

use super::data::GRH_BYTES;
use crate::case::Table;
use crate::finding::{Verdict, refused, same};
use crate::op::{Op, TRANSPORTS, transport_name};
use crate::peer::{Peer, connect, join};
use crate::setup::Setup;
use crate::side::{QpMake, RecvRequest};

const SOURCE: &str = "IBA 11.4.2.2; ibv_req_notify_cq(3), ibv_get_cq_event(3)";

pub(super) fn add(table: &mut Table) {
    for qp_type in TRANSPORTS {
        let name = |what: &str| format!("{}/notify/{what}", transport_name(qp_type));
        let mut case = |what: &str, body: fn(&mut Peer, &mut Peer, QpType) -> Verdict| {
            table.add(name(what), SOURCE, move |a, b| body(a, b, qp_type)).needs(qp_type, OpCaps::SEND);
        };
        case("armed-then-completed-is-one-event", one_event);
        case("completed-then-armed-is-found-by-a-poll", completed_first);
        case("not-armed-is-no-event", not_armed);
        case("solicited-only", solicited_only);
        case("the-stronger-arming-holds", stronger);
        case("every-arming-its-event", every_arming);
        case("sends-notify-too", sends_notify);
    }
    table
        .add("rc/notify/write-imm-solicits", SOURCE, |a, b| {
            join(a, b, &Setup::rc())?;
            b.recv(1, 0, 0)?;
            b.arm(true)?;
            a.post(Op::WriteImm.request(1, a, b, 8, 0).flagged(SendFlags::SOLICITED))?;
            b.expect_cq_event(b.cq)?;
            b.expect_ok(1)?;
            Ok(())
        })
        .needs(QpType::Rc, OpCaps::WRITE_IMM);
    table
        .add("rc/notify/failures-count-as-solicited", SOURCE, |a, b| {
            join(a, b, &Setup::rc())?;
            a.arm(true)?;
            let wrong = b.mr.rkey ^ 0x5A5A;
            a.post(Op::Write.request_from(1, vec![a.piece(0, 8)], a, b, b.mr.addr, wrong))?;
            a.expect_cq_event(a.cq)?;
            a.expect(1, WcStatus::REM_ACCESS_ERR)?;
            Ok(())
        })
        .needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/notify/a-plain-write-wakes-nobody", SOURCE, |a, b| {
            join(a, b, &Setup::rc())?;
            b.recv(1, 0, 0)?;
            b.arm(false)?;
            a.post(Op::Write.request(1, a, b, 8, 0))?;
            a.expect_ok(1)?;
            b.expect_no_cq_event()
        })
        .needs(QpType::Rc, OpCaps::WRITE);
    table.add("rc/notify/one-channel-names-its-queues", SOURCE, names_queues).needs(QpType::Rc, OpCaps::SEND);
    table.add("cq/arming-without-channel-is-refused", SOURCE, |a, b| {
        a.equip(&Setup::rc())?;
        b.equip(&Setup::rc())?;
        let cq = a.new_cq(8, None)?;
        refused("arming", a.arm_on(cq, false)).map(drop)
    });
}

fn send(a: &mut Peer, b: &mut Peer, qp_type: QpType, id: u64, flags: SendFlags) -> Verdict {
    receive(b, qp_type, id)?;
    a.post(Op::Send.request(id, a, b, 8, 0).flagged(flags))?;
    a.expect_ok(id)?;
    Ok(())
}

fn receive(b: &mut Peer, qp_type: QpType, id: u64) -> Verdict {
    let grh = if qp_type == QpType::Ud { GRH_BYTES } else { 0 };
    Ok(b.recv(id, 0, 64 + grh)?)
}

fn plain() -> SendFlags {
    SendFlags::empty()
}

fn one_event(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    b.arm(false)?;
    b.expect_no_cq_event()?;
    for id in 0..5 {
        send(a, b, qp_type, id, plain())?;
    }
    b.expect_cq_event(b.cq)?;
    b.expect_no_cq_event()?;
    for id in 0..5 {
        b.expect_ok(id)?;
    }
    Ok(())
}

fn completed_first(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    if qp_type != QpType::Rc {
        // Over UC and UD a completed send says nothing of its arrival, and the first may wait for its way to be found.
        send(a, b, qp_type, 0, plain())?;
        b.expect_ok(0)?;
    }
    send(a, b, qp_type, 1, plain())?;
    b.pause();
    b.arm(false)?;
    b.expect_no_cq_event()?;
    b.expect_ok(1)?;
    // The arming still holds for the next.
    send(a, b, qp_type, 2, plain())?;
    b.expect_cq_event(b.cq)?;
    b.expect_ok(2)?;
    Ok(())
}

fn not_armed(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    send(a, b, qp_type, 1, plain())?;
    b.expect_no_cq_event()?;
    b.expect_ok(1)?;
    Ok(())
}

fn solicited_only(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    b.arm(true)?;
    send(a, b, qp_type, 1, plain())?;
    b.expect_no_cq_event()?;
    send(a, b, qp_type, 2, SendFlags::SOLICITED)?;
    b.expect_cq_event(b.cq)?;
    b.expect_ok(1)?;
    b.expect_ok(2)?;
    Ok(())
}

/// Arming for any completion replaces arming for solicited ones, not the other way round.
fn stronger(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    for (id, order) in [(1, [true, false]), (2, [false, true])] {
        for solicited_only in order {
            b.arm(solicited_only)?;
        }
        send(a, b, qp_type, id, plain())?;
        b.expect_cq_event(b.cq)?;
        b.expect_ok(id)?;
        b.expect_no_cq_event()?;
    }
    Ok(())
}

/// The target sleeps every time and never polls without having been woken.
fn every_arming(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    for id in 0..50 {
        receive(b, qp_type, id)?;
        b.arm(false)?;
        if b.poll()?.is_some() {
            return Err(crate::Finding::new("a completion of nothing"));
        }
        a.post(Op::Send.request(id, a, b, 8, 0))?;
        b.expect_cq_event(b.cq)?;
        b.expect_ok(id)?;
        a.expect_ok(id)?;
    }
    Ok(())
}

fn sends_notify(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    receive(b, qp_type, 1)?;
    a.arm(false)?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    a.expect_cq_event(a.cq)?;
    a.expect_ok(1)?;
    // An unsignalled one makes neither completion nor event.
    receive(b, qp_type, 2)?;
    a.arm(false)?;
    a.post(Op::Send.request(2, a, b, 8, 0).unsignaled())?;
    a.expect_no_cq_event()
}

fn names_queues(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc();
    a.equip(&setup)?;
    b.equip(&setup)?;
    let mut ends = Vec::new();
    for _ in 0..3 {
        let cq = b.new_cq(16, Some(b.channel))?;
        let make = QpMake { send_cq: cq.handle, recv_cq: cq.handle, ..b.qp_make(&setup) };
        let (qa, qb) = (a.new_qp(&a.qp_make(&setup))?, b.new_qp(&make)?);
        connect(a, qa, b, qb, &setup)?;
        b.recv_on(qb.handle, vec![RecvRequest { wr_id: 1, pieces: vec![b.piece(0, 64)] }])?;
        b.arm_on(cq, false)?;
        ends.push((qa, cq));
    }
    for (qa, cq) in ends.iter().rev() {
        a.post_on(*qa, vec![Op::Send.request(1, a, b, 8, 0)])?;
        b.expect_cq_event(*cq)?;
        same("completions there", b.wait_on(*cq)?.wr_id, 1)?;
    }
    b.expect_no_cq_event()
}
