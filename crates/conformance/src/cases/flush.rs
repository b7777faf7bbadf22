//! The error state: everything posted comes back, in order, once.

use farcall_verbs::{OpCaps, QpState, QpType, WcStatus};

use crate::case::Table;
use crate::finding::{Verdict, same};
use crate::op::{ALL_OPS, Op, TRANSPORTS, transport_name};
use crate::peer::{Peer, connect, join};
use crate::setup::Setup;

const SOURCE: &str = "IBA 10.3.1.7, 10.10.2; ibv_modify_qp(3)";
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;
const REMOTE: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    for qp_type in TRANSPORTS {
        let name = |what: &str| format!("{}/flush/{what}", transport_name(qp_type));
        table
            .add(name("posted-receives-in-order"), SOURCE, move |a, b| receives(a, b, qp_type))
            .needs(qp_type, OpCaps::SEND);
        table
            .add(name("what-is-posted-later-too"), SOURCE, move |a, b| later(a, b, qp_type))
            .needs(qp_type, OpCaps::SEND);
        table
            .add(name("nothing-is-delivered-any-more"), SOURCE, move |a, b| nothing_delivered(a, b, qp_type))
            .needs(qp_type, OpCaps::SEND);
    }
    table
        .add("rc/flush/waiting-sends-in-order", SOURCE, waiting_sends)
        .needs(QpType::Rc, OpCaps::SEND | OpCaps::WRITE);
    table
        .add("rc/flush/what-follows-a-failure", SOURCE, follows_failure)
        .needs(QpType::Rc, OpCaps::SEND | OpCaps::WRITE);
    table
        .add("rc/flush/each-queue-to-its-own-completion-queue", SOURCE, two_queues)
        .needs(QpType::Rc, OpCaps::SEND);
    table
        .add("rc/flush/what-succeeded-before-keeps-its-status", SOURCE, succeeded_before)
        .needs(QpType::Rc, OpCaps::SEND | OpCaps::WRITE);
    table.add("rc/flush/sleepers-are-woken", SOURCE, wakes).needs(QpType::Rc, OpCaps::SEND);
    table.add("rc/flush/then-reset-and-use-again", SOURCE, again).needs(QpType::Rc, OpCaps::SEND);
    for op in ALL_OPS {
        table
            .add(format!("rc/{}/flush/behind-one-that-waits", op.name()), SOURCE, move |a, b| {
                behind(a, b, op)
            })
            .needs(QpType::Rc, op.caps() | OpCaps::SEND);
    }
}

fn receives(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    let depth = u64::from(a.qp.max_recv_wr);
    for id in 0..depth {
        a.recv(id, 0, 64)?;
    }
    a.fail_qp()?;
    for id in 0..depth {
        a.expect(id, FLUSHED)?;
    }
    a.expect_quiet()
}

fn later(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    a.fail_qp()?;
    // More than the queues hold, as completions are taken.
    for id in 0..u64::from(a.qp.max_send_wr) * 2 {
        a.post(Op::Send.request(id, a, b, 8, 0).unsignaled())?;
        a.expect(id, FLUSHED)?;
        a.recv(id, 0, 64)?;
        a.expect(id, FLUSHED)?;
    }
    a.expect_quiet()
}

fn nothing_delivered(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &Setup::new(qp_type).impatient())?;
    b.recv(1, 0, 64)?;
    b.fail_qp()?;
    b.expect(1, FLUSHED)?;
    a.post(Op::Send.request(2, a, b, 8, 0))?;
    // Nobody answers over RC; over the others nobody asks.
    let status = if qp_type == QpType::Rc { WcStatus::RETRY_EXC_ERR } else { WcStatus::SUCCESS };
    a.expect(2, status)?;
    b.expect_quiet()
}

/// The first SEND waits for a receive that never comes, so that all others wait too.
fn waiting_sends(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    for id in 0..20 {
        let op = if id % 2 == 0 { Op::Send } else { Op::Write };
        let request = op.request(id, a, b, 8, REMOTE);
        a.post(if id % 3 == 0 { request } else { request.unsignaled() })?;
    }
    for id in 100..110 {
        a.recv(id, 0, 64)?;
    }
    a.expect_quiet()?;
    a.fail_qp()?;
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        let wc = a.wait()?;
        same("status", wc.status, FLUSHED)?;
        if wc.wr_id < 100 { sends.push(wc.wr_id) } else { receives.push(wc.wr_id) }
    }
    same("sends", sends, (0..20).collect())?;
    same("receives", receives, (100..110).collect())?;
    a.expect_quiet()?;
    same("the target's word", b.word(REMOTE)?, 0)
}

fn behind(a: &mut Peer, b: &mut Peer, op: Op) -> Verdict {
    join(a, b, &Setup::rc())?;
    a.put(0, &[1; 8])?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    a.post(op.request(2, a, b, 8, REMOTE).unsignaled())?;
    a.expect_quiet()?;
    a.fail_qp()?;
    a.expect(1, FLUSHED)?;
    a.expect(2, FLUSHED)?;
    a.expect_quiet()?;
    same("the target's word", b.word(REMOTE)?, 0)
}

fn follows_failure(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    a.recv(100, 0, 64)?;
    let wrong = b.mr.rkey ^ 0x5A5A;
    let bad = Op::Write.request_from(1, vec![a.piece(0, 8)], a, b, b.mr.addr, wrong);
    let requests = vec![
        Op::Write.request(0, a, b, 8, REMOTE),
        bad,
        Op::Write.request(2, a, b, 8, REMOTE + 8).unsignaled(),
        Op::Send.request(3, a, b, 8, 0),
    ];
    a.put(0, &[1; 8])?;
    a.post_on(a.qp, requests)?;
    let mut sends = Vec::new();
    for _ in 0..5 {
        let wc = a.wait()?;
        if wc.wr_id == 100 {
            same("the receive", wc.status, FLUSHED)?;
        } else {
            sends.push((wc.wr_id, wc.status));
        }
    }
    let expected = vec![(0, WcStatus::SUCCESS), (1, WcStatus::REM_ACCESS_ERR), (2, FLUSHED), (3, FLUSHED)];
    same("the sends", sends, expected)?;
    same("what came before the failure", b.word(REMOTE)?, u64::from_le_bytes([1; 8]))?;
    same("what came after", b.word(REMOTE + 8)?, 0)
}

fn two_queues(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc();
    a.equip(&setup)?;
    b.equip(&setup)?;
    let recv_cq = a.new_cq(64, None)?;
    let make = crate::side::QpMake { recv_cq: recv_cq.handle, ..a.qp_make(&setup) };
    let qp = a.new_qp(&make)?;
    connect(a, qp, b, b.qp, &setup)?;
    a.post_on(qp, vec![Op::Send.request(1, a, b, 8, 0)])?;
    a.recv_on(qp.handle, vec![crate::side::RecvRequest { wr_id: 2, pieces: vec![a.piece(0, 8)] }])?;
    a.modify(qp, farcall_verbs::QpAttr::to(QpState::Err))?;
    let (send, recv) = (a.wait()?, a.wait_on(recv_cq)?);
    same("at the send queue's", (send.wr_id, send.status, send.qp_num), (1, FLUSHED, qp.qpn))?;
    same("at the receive queue's", (recv.wr_id, recv.status, recv.qp_num), (2, FLUSHED, qp.qpn))?;
    a.expect_quiet()?;
    same("more at the receive queue's", a.poll_on(recv_cq, 8)?.len(), 0)
}

fn succeeded_before(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    b.recv(1, 0, 64)?;
    b.recv(2, 0, 64)?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    // The target polled nothing so far; what it received it keeps.
    a.expect_ok(1)?;
    a.post(Op::Write.request(2, a, b, 8, REMOTE))?;
    a.expect_ok(2)?;
    b.fail_qp()?;
    b.expect_ok(1)?;
    b.expect(2, FLUSHED)?;
    b.expect_quiet()
}

fn wakes(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    a.recv(1, 0, 64)?;
    // A failed completion wakes also who waits for solicited ones.
    a.arm(true)?;
    a.fail_qp()?;
    a.expect_cq_event(a.cq)?;
    a.expect(1, FLUSHED)?;
    Ok(())
}

fn again(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc();
    join(a, b, &setup)?;
    for round in 0..5 {
        a.recv(round, 0, 64)?;
        a.fail_qp()?;
        b.fail_qp()?;
        a.expect(round, FLUSHED)?;
        a.modify(a.qp, farcall_verbs::QpAttr::to(QpState::Reset))?;
        b.modify(b.qp, farcall_verbs::QpAttr::to(QpState::Reset))?;
        connect(a, a.qp, b, b.qp, &setup)?;
        b.recv(round, 0, 64)?;
        a.post(Op::Send.request(round, a, b, 8, 0))?;
        a.expect_ok(round)?;
        b.expect_ok(round)?;
    }
    Ok(())
}
