//! Unreliable connections: what is lost is lost silently.

use farcall_verbs::{OpCaps, QpState, QpType};

use crate::case::Table;
use crate::finding::{Verdict, refused, same, same_bytes};
use crate::op::{ALL_OPS, Op};
use crate::peer::{Peer, join};
use crate::setup::Setup;

const SOURCE: &str = "IBA 9.8.2";
const AT: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    for op in [Op::Send, Op::SendImm, Op::WriteImm] {
        table
            .add(format!("uc/{}/without-a-receive-is-dropped-silently", op.name()), SOURCE, move |a, b| {
                join(a, b, &Setup::new(QpType::Uc))?;
                for id in 0..5 {
                    a.post(op.request(id, a, b, 8, AT))?;
                    a.expect_ok(id)?;
                }
                b.expect_quiet()?;
                same("state of the target", b.state(b.qp)?, QpState::Rts)?;
                goes_on(a, b)
            })
            .needs(QpType::Uc, op.caps() | OpCaps::SEND);
    }
    for op in ALL_OPS.into_iter().filter(|op| op.is_of(QpType::Uc)) {
        table
            .add(
                format!("uc/{}/to-a-target-not-ready-is-dropped-silently", op.name()),
                SOURCE,
                move |a, b| not_ready(a, b, op),
            )
            .needs(QpType::Uc, op.caps() | OpCaps::SEND);
    }
    for op in ALL_OPS.into_iter().filter(|op| !op.is_of(QpType::Uc)) {
        table
            .add(format!("uc/{}/refused", op.name()), "IBA table 38; ibv_post_send(3)", move |a, b| {
                join(a, b, &Setup::new(QpType::Uc))?;
                refused("posting", a.post(op.request(1, a, b, 8, AT)))?;
                a.expect_quiet()?;
                same("the target's word", b.word(AT)?, 0)
            })
            .needs(QpType::Uc, OpCaps::SEND);
    }
    table
        .add("uc/send/longer-than-its-receive-writes-nothing-beyond", SOURCE, |a, b| {
            join(a, b, &Setup::new(QpType::Uc))?;
            b.put(0, &vec![0x5A; 8192])?;
            b.recv(1, AT, 64)?;
            a.post(Op::Send.request(1, a, b, 65, 0))?;
            a.expect_ok(1)?;
            b.pause();
            same_bytes("beyond the receive", &b.get(AT + 64, 64)?, &[0x5A; 64])
        })
        .needs(QpType::Uc, OpCaps::SEND);
    table
        .add("uc/write/goes-on-after-a-violation", SOURCE, |a, b| {
            join(a, b, &Setup::new(QpType::Uc))?;
            let wrong = b.mr.rkey ^ 0x5A5A;
            a.post(Op::Write.request_from(1, vec![a.piece(0, 8)], a, b, b.mr.addr, wrong))?;
            a.expect_ok(1)?;
            goes_on(a, b)
        })
        .needs(QpType::Uc, OpCaps::WRITE | OpCaps::SEND);
}

/// A message with a receive arrives.
fn goes_on(a: &mut Peer, b: &mut Peer) -> Verdict {
    a.put(0, &[9; 8])?;
    b.recv(50, 0, 8)?;
    a.post(Op::Send.request(51, a, b, 8, 0))?;
    a.expect_ok(51)?;
    b.expect_ok(50)?;
    same_bytes("the message that follows", &b.get(0, 8)?, &[9; 8])
}

fn not_ready(a: &mut Peer, b: &mut Peer, op: Op) -> Verdict {
    let setup = Setup::new(QpType::Uc);
    a.equip(&setup)?;
    b.equip(&setup)?;
    let (to_a, to_b) = (a.address(a.qp), b.address(b.qp));
    a.modify(a.qp, a.init_attr(&setup))?;
    b.modify(b.qp, b.init_attr(&setup))?;
    a.modify(a.qp, a.rtr_attr(&setup, &to_b))?;
    a.modify(a.qp, a.rts_attr(&setup))?;
    a.put(0, &[1; 8])?;
    a.post(op.request(1, a, b, 8, AT))?;
    a.expect_ok(1)?;
    // It is sent; not ready must be the target that it comes to.
    b.pause();
    b.modify(b.qp, b.rtr_attr(&setup, &to_a))?;
    b.expect_quiet()?;
    same("the target's word", b.word(AT)?, 0)?;
    goes_on(a, b)
}
