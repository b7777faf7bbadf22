//! Local elements: keys, bounds and permissions of our own side.

use farcall_verbs::{Access, OpCaps, QpState, QpType, WcStatus};

use crate::case::Table;
use crate::finding::{Verdict, same, same_bytes};
use crate::op::{Op, operations, transport_name};
use crate::peer::{Peer, join};
use crate::setup::{ALL_ACCESS, Setup};
use crate::side::Piece;

const SOURCE: &str = "IBA 10.6.3, 11.6.2: Local Protection Error";
const REMOTE: u64 = 4096;

/// What is wrong with a piece of eight bytes.
type WrongPiece = (&'static str, fn(&mut Peer) -> Verdict<Piece>);

const WRONG: [WrongPiece; 7] = [
    ("key-of-nothing", |a| Ok(Piece { lkey: a.mr.lkey ^ 0x5A5A, ..a.piece(0, 8) })),
    ("highest-key", |a| Ok(Piece { lkey: u32::MAX, ..a.piece(0, 8) })),
    ("before-the-region", |a| Ok(Piece { addr: a.mr.addr - 1, ..a.piece(0, 8) })),
    ("over-the-end", |a| Ok(Piece { addr: a.mr.addr + a.mr.len - 7, ..a.piece(0, 8) })),
    ("wraps-around", |a| Ok(Piece { addr: u64::MAX - 3, ..a.piece(0, 8) })),
    ("key-of-another-domain", |a| {
        let pd = a.new_pd()?;
        let other = a.new_mr(pd, 4096, ALL_ACCESS)?;
        Ok(Piece { addr: other.addr, len: 8, lkey: other.lkey })
    }),
    ("deregistered", |a| {
        let old = a.new_mr(a.pd, 4096, ALL_ACCESS)?;
        a.dereg(old)?;
        Ok(Piece { addr: old.addr, len: 8, lkey: old.lkey })
    }),
];

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        for (what, piece) in WRONG {
            let name = format!("{}/{}/local-protection/{what}", transport_name(qp_type), op.name());
            table
                .add(name, SOURCE, move |a, b| {
                    join(a, b, &Setup::new(qp_type))?;
                    let piece = piece(a)?;
                    protection(a, b, qp_type, op, piece)
                })
                .needs(qp_type, op.caps());
        }
        if op.returns_data() {
            let name =
                format!("{}/{}/local-protection/no-write-permission", transport_name(qp_type), op.name());
            table
                .add(name, SOURCE, move |a, b| {
                    join(a, b, &Setup::new(qp_type))?;
                    let fixed = a.new_mr(a.pd, 4096, Access::empty())?;
                    let piece = Piece { addr: fixed.addr, len: 8, lkey: fixed.lkey };
                    protection(a, b, qp_type, op, piece)?;
                    same_bytes("the read-only region", &a.get_in(fixed, 0, 8)?, &[0; 8])
                })
                .needs(qp_type, op.caps());
        } else {
            let name = format!(
                "{}/{}/local-protection/reading-needs-no-permission",
                transport_name(qp_type),
                op.name()
            );
            table
                .add(name, SOURCE, move |a, b| reads_without_permission(a, b, qp_type, op))
                .needs(qp_type, op.caps());
        }
    }
    receives(table);
}

/// The request fails at the initiator alone; the queue pair goes to the error state, of unreliable ones the send queue
/// alone (IBA 10.3.1: SQE).
fn protection(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op, piece: Piece) -> Verdict {
    if op.consumes_receive() {
        b.recv(1, 0, 64)?;
    }
    a.post(op.request_from(5, vec![piece], a, b, b.mr.addr + REMOTE, b.mr.rkey))?;
    a.expect(5, WcStatus::LOC_PROT_ERR)?;
    let state = if qp_type == QpType::Rc { QpState::Err } else { QpState::Sqe };
    a.expect_state(a.qp, state)?;
    b.expect_quiet()?;
    same("state of the target", b.state(b.qp)?, QpState::Rts)?;
    if op.caps() == OpCaps::ATOMIC {
        // Where its answer goes is looked at when it comes: the atomic may have been executed.
        return Ok(());
    }
    same("the target's word", b.word(REMOTE)?, 0)
}

fn reads_without_permission(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    let fixed = a.new_mr(a.pd, 4096, Access::empty())?;
    if op.consumes_receive() {
        b.recv(1, 0, 64)?;
    }
    let piece = Piece { addr: fixed.addr, len: 8, lkey: fixed.lkey };
    a.post(op.request_from(5, vec![piece], a, b, b.mr.addr + REMOTE, b.mr.rkey))?;
    a.expect_ok(5)?;
    Ok(())
}

/// A receive's element is looked at when a message comes: the receiver sees a local protection error, an RC sender a
/// remote operation error.
fn receives(table: &mut Table) {
    for (what, piece) in WRONG {
        table
            .add(
                format!("rc/recv/local-protection/{what}"),
                "IBA 11.6.2: Remote Operation Error",
                move |a, b| {
                    join(a, b, &Setup::rc())?;
                    let piece = piece(b)?;
                    b.recv_into(1, vec![piece])?;
                    a.post(Op::Send.request(2, a, b, 8, 0))?;
                    a.expect(2, WcStatus::REM_OP_ERR)?;
                    b.expect(1, WcStatus::LOC_PROT_ERR)?;
                    b.expect_state(b.qp, QpState::Err)
                },
            )
            .needs(QpType::Rc, Op::Send.caps());
    }
    table
        .add("rc/recv/local-protection/no-write-permission", SOURCE, |a, b| {
            join(a, b, &Setup::rc())?;
            let fixed = b.new_mr(b.pd, 4096, Access::empty())?;
            b.recv_into(1, vec![Piece { addr: fixed.addr, len: 8, lkey: fixed.lkey }])?;
            a.post(Op::Send.request(2, a, b, 8, 0))?;
            a.expect(2, WcStatus::REM_OP_ERR)?;
            b.expect(1, WcStatus::LOC_PROT_ERR)?;
            same_bytes("the read-only region", &b.get_in(fixed, 0, 8)?, &[0; 8])
        })
        .needs(QpType::Rc, Op::Send.caps());
    table
        .add("rc/send/longer-than-its-receive", "IBA 11.6.2: Local Length Error", too_long)
        .needs(QpType::Rc, Op::Send.caps());
}

fn too_long(a: &mut Peer, b: &mut Peer) -> Verdict {
    for (len, room) in [(9, 8), (1, 0), (1025, 1024), (5000, 4999)] {
        join(a, b, &Setup::rc())?;
        b.put(0, &[0x5A; 8192])?;
        b.recv(1, 0, room)?;
        b.recv(2, 0, 8192)?;
        a.post(Op::Send.request(10, a, b, len, 0))?;
        a.post(Op::Send.request(11, a, b, len, 0))?;
        a.expect(10, WcStatus::REM_INV_REQ_ERR)?;
        a.expect(11, WcStatus::WR_FLUSH_ERR)?;
        b.expect(1, WcStatus::LOC_LEN_ERR)?;
        b.expect(2, WcStatus::WR_FLUSH_ERR)?;
        let rest = 8192 - room;
        same_bytes("beyond the receive", &b.get(room.into(), rest)?, &vec![0x5A; rest as usize])?;
        a.expect_state(a.qp, QpState::Err)?;
        b.expect_state(b.qp, QpState::Err)?;
    }
    Ok(())
}
