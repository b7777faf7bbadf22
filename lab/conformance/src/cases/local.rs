//! Local elements: keys, bounds and permissions of the local side.

use farcall_verbs::{Access, OpCaps, QpState, QpType, Sge, WcStatus, WrOpcode};

use crate::case::{BoxedBody, Table};
use crate::end::{End, join};
use crate::finding::{Verdict, same, same_bytes};
use crate::op::{ATOMIC, Operation, SEND, operations};
use crate::setup::{ALL_ACCESS, Setup};

const SOURCE: &str = "IBA 10.6.3, 11.6.2: Local Protection Error";
const REMOTE: u64 = 4096;

/// A fault of an element of eight bytes, and a function that returns the element.
type WrongPiece = (&'static str, fn(&mut End) -> Verdict<Sge>);

const WRONG: [WrongPiece; 7] = [
    ("key-of-nothing", |a| Ok(Sge { lkey: a.mr.lkey ^ 0x5A5A, ..a.sge(0, 8) })),
    ("highest-key", |a| Ok(Sge { lkey: u32::MAX, ..a.sge(0, 8) })),
    ("before-the-region", |a| Ok(Sge { addr: a.mr.addr - 1, ..a.sge(0, 8) })),
    ("over-the-end", |a| Ok(Sge { addr: a.mr.addr + a.mr.len - 7, ..a.sge(0, 8) })),
    ("wraps-around", |a| Ok(Sge { addr: u64::MAX - 3, ..a.sge(0, 8) })),
    ("key-of-another-domain", |a| {
        let pd = a.new_pd()?;
        let other = a.new_mr(pd, 4096, ALL_ACCESS)?;
        Ok(other.sge(0, 8))
    }),
    ("deregistered", |a| {
        let old = a.new_mr(a.pd, 4096, ALL_ACCESS)?;
        a.dereg(old)?;
        Ok(old.sge(0, 8))
    }),
];

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        let setup = Setup::new(qp_type);
        for (what, sge) in WRONG {
            table.op_case(setup, op, &format!("local-protection/{what}"), SOURCE, move |a, b, op| {
                let sge = sge(a)?;
                protection(a, b, op, sge)
            });
        }
        if op.returns_data() {
            table.op_case(setup, op, "local-protection/no-write-permission", SOURCE, |a, b, op| {
                let fixed = a.new_mr(a.pd, 4096, Access::empty())?;
                protection(a, b, op, fixed.sge(0, 8))?;
                same_bytes("the read-only region", &a.get_in(fixed, 0, 8)?, &[0; 8])
            });
            continue;
        }
        table.op_case(setup, op, "local-protection/reading-needs-no-permission", SOURCE, |a, b, op| {
            let fixed = a.new_mr(a.pd, 4096, Access::empty())?;
            b.recv_for(op, 1, REMOTE, 64)?;
            a.complete(a.request_from(op, 5, vec![fixed.sge(0, 8)], b, b.mr.addr + REMOTE, b.mr.rkey))
        });
    }
    receives(table);
}

/// The request fails at the initiator only. The queue pair enters the error state; of an unreliable queue pair only
/// the send queue does (IBA 10.3.1: SQE).
fn protection(a: &mut End, b: &mut End, op: WrOpcode, sge: Sge) -> Verdict {
    b.recv_for(op, 1, REMOTE * 2, 64)?;
    a.complete_as(
        a.request_from(op, 5, vec![sge], b, b.mr.addr + REMOTE, b.mr.rkey),
        WcStatus::LOC_PROT_ERR,
    )?;
    let state = if a.setup.qp_type == QpType::Rc { QpState::Err } else { QpState::Sqe };
    a.expect_state(a.qp, state)?;
    b.expect_quiet()?;
    same("state of the target", b.state(b.qp)?, QpState::Rts)?;
    if op.needed_caps() == ATOMIC {
        // The buffer of the response is checked when the response arrives, so the atomic may have been executed.
        return Ok(());
    }
    same("the target's word", b.word(REMOTE)?, 0)
}

/// The element of a receive is checked when a message arrives. The receiver gets a local protection error, an RC
/// sender a remote operation error.
fn receives(table: &mut Table) {
    let shared = Setup { srq: Some(64), ..Setup::rc() };
    for (queue, setup, needs) in [("rc", Setup::rc(), SEND), ("rc/srq", shared, SEND | OpCaps::SRQ)] {
        let mut case = |what: &str, source, body: BoxedBody| {
            table.joined(setup, format!("{queue}/recv/local-protection/{what}"), needs, source, body);
        };
        for (what, sge) in WRONG {
            let body = move |a: &mut End, b: &mut End| {
                let sge = sge(b)?;
                received_into(a, b, sge)?;
                b.expect_state(b.qp, QpState::Err)
            };
            case(what, "IBA 11.6.2: Remote Operation Error", Box::new(body));
        }
        case("no-write-permission", SOURCE, Box::new(into_read_only));
        let body = move |a: &mut End, b: &mut End| deregistered_later(a, b, &setup);
        case("deregistered-after-posting", SOURCE, Box::new(body));
    }
    table.joined(
        Setup::new(QpType::Ud),
        "ud/recv/local-protection/key-of-nothing",
        SEND,
        SOURCE,
        datagram_into_wrong_key,
    );
    table
        .add("rc/send/longer-than-its-receive", "IBA 11.6.2: Local Length Error", too_long)
        .needs(QpType::Rc, SEND);
}

fn into_read_only(a: &mut End, b: &mut End) -> Verdict {
    let fixed = b.new_mr(b.pd, 4096, Access::empty())?;
    received_into(a, b, fixed.sge(0, 8))?;
    same_bytes("the read-only region", &b.get_in(fixed, 0, 8)?, &[0; 8])
}

/// Checks receives whose region is deregistered before the message arrives, for short and long messages.
fn deregistered_later(a: &mut End, b: &mut End, setup: &Setup) -> Verdict {
    for len in [8, 20_000] {
        join(a, b, setup)?;
        let mr = b.new_mr(b.pd, len.into(), ALL_ACCESS)?;
        b.recv_into(1, vec![mr.sge(0, len)])?;
        b.dereg(mr)?;
        a.complete_as(a.request(WrOpcode::SEND, 2, b, len, 0), WcStatus::REM_OP_ERR)?;
        b.expect(1, WcStatus::LOC_PROT_ERR)?;
        b.expect_state(b.qp, QpState::Err)?;
    }
    Ok(())
}

/// Checks that the sender of a datagram is not notified of the receiver's error.
fn datagram_into_wrong_key(a: &mut End, b: &mut End) -> Verdict {
    let right = b.message_sge(REMOTE, 8);
    b.recv_into(1, vec![Sge { lkey: right.lkey ^ 0x5A5A, ..right }])?;
    a.complete_send(2, b)?;
    b.expect(1, WcStatus::LOC_PROT_ERR)?;
    same("the receive's first word", b.word(REMOTE)?, 0)
}

fn received_into(a: &mut End, b: &mut End, sge: Sge) -> Verdict {
    b.recv_into(1, vec![sge])?;
    a.send(2, b)?;
    a.expect(2, WcStatus::REM_OP_ERR)?;
    b.expect(1, WcStatus::LOC_PROT_ERR)
}

fn too_long(a: &mut End, b: &mut End) -> Verdict {
    for (len, room) in [(9, 8), (1, 0), (1024, 1023), (1025, 1024), (5000, 4999), (50_000, 49_999)] {
        join(a, b, &Setup::rc())?;
        let whole = room + 4096;
        b.put(0, &vec![0x5A; whole as usize])?;
        b.recv(1, 0, room)?;
        b.recv(2, 0, whole)?;
        a.post(a.request(WrOpcode::SEND, 10, b, len, 0))?;
        a.post(a.request(WrOpcode::SEND, 11, b, len, 0))?;
        a.expect(10, WcStatus::REM_INV_REQ_ERR)?;
        a.expect(11, WcStatus::WR_FLUSH_ERR)?;
        b.expect(1, WcStatus::LOC_LEN_ERR)?;
        b.expect(2, WcStatus::WR_FLUSH_ERR)?;
        same_bytes("beyond the receive", &b.get(room.into(), 4096)?, &[0x5A; 4096])?;
        a.expect_state(a.qp, QpState::Err)?;
        b.expect_state(b.qp, QpState::Err)?;
    }
    Ok(())
}
