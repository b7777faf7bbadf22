//! The error state: every posted request completes in order, once.

use farcall_verbs::{OpCaps, QpState, QpType, WcStatus, WrOpcode};

use crate::case::{Body, Table};
use crate::end::{End, another_pair_of, deliver, reconnect};
use crate::executor::QpInit;
use crate::finding::{Verdict, same};
use crate::op::{ALL_OPS, SEND, TRANSPORTS, WRITE, transport_name};
use crate::setup::Setup;

const SOURCE: &str = "IBA 10.3.1.7, 10.10.2; ibv_modify_qp(3)";
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;
const REMOTE: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    for qp_type in TRANSPORTS {
        let t = transport_name(qp_type);
        let mut case = |what, setup, body: Body| {
            table.joined(setup, format!("{t}/flush/{what}"), SEND, SOURCE, body);
        };
        case("posted-receives-in-order", Setup::new(qp_type), receives);
        case("what-is-posted-later-too", Setup::new(qp_type), later);
        case("nothing-is-delivered-any-more", Setup::new(qp_type).impatient(), nothing_delivered);
    }
    let mut case = |what, needs: OpCaps, body: Body| {
        table.rc(format!("rc/flush/{what}"), needs, SOURCE, body);
    };
    case("waiting-sends-in-order", SEND | WRITE, waiting_sends);
    case("what-follows-a-failure", SEND | WRITE, follows_failure);
    case("each-queue-to-its-own-completion-queue", SEND, two_queues);
    case("what-succeeded-before-keeps-its-status", SEND | WRITE, succeeded_before);
    case("sleepers-are-woken", SEND, wakes);
    case("then-reset-and-use-again", SEND, again);
    for op in ALL_OPS {
        let case = table.op_case(Setup::rc(), op, "flush/behind-one-that-waits", SOURCE, behind);
        case.needs(QpType::Rc, SEND);
    }
}

fn receives(a: &mut End, _: &mut End) -> Verdict {
    let depth = u64::from(a.qp.cap.max_recv_wr);
    for id in 0..depth {
        a.recv(id, 0, 64)?;
    }
    a.fail_qp()?;
    for id in 0..depth {
        a.expect(id, FLUSHED)?;
    }
    a.expect_quiet()
}

fn later(a: &mut End, b: &mut End) -> Verdict {
    a.fail_qp()?;
    // More requests than the queues can hold at once, because completions are polled in between.
    for id in 0..u64::from(a.qp.cap.max_send_wr) * 2 {
        a.complete_as(a.request(WrOpcode::SEND, id, b, 8, 0).unsignaled(), FLUSHED)?;
        a.recv(id, 0, 64)?;
        a.expect(id, FLUSHED)?;
    }
    a.expect_quiet()
}

fn nothing_delivered(a: &mut End, b: &mut End) -> Verdict {
    b.recv(1, 0, 64)?;
    b.fail_qp()?;
    b.expect(1, FLUSHED)?;
    a.send(2, b)?;
    // Over RC the response is missing; over the other transports no response is expected.
    let is_answered = a.setup.qp_type == QpType::Rc;
    a.expect(2, if is_answered { WcStatus::RETRY_EXC_ERR } else { WcStatus::SUCCESS })?;
    b.expect_quiet()
}

/// The first SEND waits for a receive that is never posted, so all later requests wait as well.
fn waiting_sends(a: &mut End, b: &mut End) -> Verdict {
    for id in 0..20 {
        let op = if id % 2 == 0 { WrOpcode::SEND } else { WrOpcode::WRITE };
        let request = a.request(op, id, b, 8, REMOTE);
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

fn behind(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    a.put(0, &[1; 8])?;
    a.send(1, b)?;
    a.post(a.request(op, 2, b, 8, REMOTE).unsignaled())?;
    a.expect_quiet()?;
    a.fail_qp()?;
    a.expect(1, FLUSHED)?;
    a.expect(2, FLUSHED)?;
    a.expect_quiet()?;
    same("the target's word", b.word(REMOTE)?, 0)
}

fn follows_failure(a: &mut End, b: &mut End) -> Verdict {
    a.recv(100, 0, 64)?;
    let requests = vec![
        a.request(WrOpcode::WRITE, 0, b, 8, REMOTE),
        a.write_with_wrong_key(1, b),
        a.request(WrOpcode::WRITE, 2, b, 8, REMOTE + 8).unsignaled(),
        a.request(WrOpcode::SEND, 3, b, 8, 0),
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

fn two_queues(a: &mut End, b: &mut End) -> Verdict {
    let recv_cq = a.new_cq(64, None)?;
    let (qp, _) = another_pair_of(a, QpInit { recv_cq: recv_cq.handle, ..a.qp_init() }, b, b.qp_init())?;
    a.send_on(qp, 1, b)?;
    a.recv_on(qp.handle, 2, vec![a.sge(0, 8)])?;
    a.move_to(qp, QpState::Err)?;
    let (send, recv) = (a.wait()?, a.wait_on(recv_cq)?);
    same("at the send queue's", (send.wr_id, send.status, send.qp_num), (1, FLUSHED, qp.qpn))?;
    same("at the receive queue's", (recv.wr_id, recv.status, recv.qp_num), (2, FLUSHED, qp.qpn))?;
    a.expect_quiet()?;
    same("more at the receive queue's", a.poll_on(recv_cq, 8)?.len(), 0)
}

fn succeeded_before(a: &mut End, b: &mut End) -> Verdict {
    b.recv(1, 0, 64)?;
    b.recv(2, 0, 64)?;
    a.send(1, b)?;
    // The target has not polled so far; messages that it has received are retained.
    a.expect_ok(1)?;
    a.complete(a.request(WrOpcode::WRITE, 2, b, 8, REMOTE))?;
    b.fail_qp()?;
    b.expect_ok(1)?;
    b.expect(2, FLUSHED)?;
    b.expect_quiet()
}

fn wakes(a: &mut End, _: &mut End) -> Verdict {
    a.recv(1, 0, 64)?;
    // A failed completion also raises the event if only solicited completions were requested.
    a.arm(true)?;
    a.fail_qp()?;
    a.expect_cq_event(a.cq)?;
    a.expect(1, FLUSHED)
}

fn again(a: &mut End, b: &mut End) -> Verdict {
    for round in 0..5 {
        a.recv(round, 0, 64)?;
        a.fail_qp()?;
        b.fail_qp()?;
        a.expect(round, FLUSHED)?;
        reconnect(a, b)?;
        b.recv(round, 0, 64)?;
        deliver(a, b, round, round)?;
    }
    Ok(())
}
