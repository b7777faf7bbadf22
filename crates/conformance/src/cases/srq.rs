//! Shared receive queues.

use farcall_verbs::{AsyncEventKind, OpCaps, QpAttr, QpState, QpType, WcStatus};

use super::data::GRH_BYTES;
use crate::case::{Feature, Table};
use crate::finding::{Verdict, ensure, refused, same};
use crate::op::{Op, TRANSPORTS, transport_name};
use crate::peer::{Peer, connect, join};
use crate::setup::Setup;
use crate::side::{Qp, RecvRequest, SendRequest};

const SOURCE: &str = "IBA 10.2.9; ibv_create_srq(3), ibv_post_srq_recv(3)";
const LIMIT: &str = "IBA 10.2.9.1, 11.6.3: SRQ Limit Reached; ibv_modify_srq(3)";
const NEEDS: OpCaps = OpCaps::SEND.union(OpCaps::SRQ);

pub(super) fn add(table: &mut Table) {
    for qp_type in TRANSPORTS {
        let name = |what: &str| format!("{}/srq/{what}", transport_name(qp_type));
        let mut case = |what: &str, body: fn(&mut Peer, &mut Peer, QpType) -> Verdict| {
            table.add(name(what), SOURCE, move |a, b| body(a, b, qp_type)).needs(qp_type, NEEDS);
        };
        case("takes-receives-in-order", in_order);
        case("a-pair-has-no-receives-of-its-own", no_own);
        case("full-refuses-the-rest", full);
        case("arming-notifies", notifies);
    }
    let mut case = |what: &str, source: &'static str, body: fn(&mut Peer, &mut Peer) -> Verdict| {
        table.add(format!("rc/srq/{what}"), source, body).needs(QpType::Rc, NEEDS);
    };
    case("shared-by-many-pairs", SOURCE, shared);
    case("a-failed-pair-leaves-the-receives", "IBA 10.3.1.7", survives);
    case("a-destroyed-pair-leaves-the-receives", SOURCE, destroyed);
    case("empty-makes-senders-wait", "IBA 9.7.5.2.8", waits);
    case("empty-ends-retries", "IBA 9.7.5.2.8", exhausted);
    case("a-message-too-long-fails-one-pair", "IBA 11.6.2: Local Length Error", too_long);
    case("in-use-cannot-be-destroyed", "ibv_destroy_srq(3)", in_use);
    case("last-receive-is-told", "IBA 11.6.3: Last WQE Reached", last_reached);
    for (what, body) in [
        ("limit-is-told-once", limit as fn(&mut Peer, &mut Peer) -> Verdict),
        ("limit-can-be-armed-again", limit_again),
        ("limit-already-passed-is-told", limit_passed),
        ("limit-not-reached-is-not-told", limit_not_reached),
    ] {
        table.add(format!("rc/srq/{what}"), LIMIT, body).needs(QpType::Rc, NEEDS).optional(Feature::SrqLimit);
    }
    table
        .add("rc/srq/write-imm-takes-one", SOURCE, |a, b| {
            join(a, b, &setup(QpType::Rc))?;
            b.recv(1, 0, 64)?;
            a.post(Op::WriteImm.request(1, a, b, 8, 4096))?;
            a.expect_ok(1)?;
            b.expect_ok(1)?;
            Ok(())
        })
        .needs(QpType::Rc, NEEDS | OpCaps::WRITE_IMM);
}

fn setup(qp_type: QpType) -> Setup {
    Setup { srq: Some(64), ..Setup::new(qp_type) }
}

fn room(qp_type: QpType) -> u32 {
    if qp_type == QpType::Ud { 64 + GRH_BYTES } else { 64 }
}

fn in_order(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &setup(qp_type))?;
    for round in 0..5 {
        for id in 0..10_u64 {
            b.recv(round * 10 + id, id * 256, room(qp_type))?;
        }
        for id in 0..10_u64 {
            a.put(0, &id.to_le_bytes())?;
            a.post(Op::Send.request(id, a, b, 8, 0))?;
            a.expect_ok(id)?;
            b.expect_ok(round * 10 + id)?;
            let at = id * 256 + u64::from(room(qp_type) - 64);
            same("the message", b.word(at)?, id)?;
        }
    }
    Ok(())
}

fn no_own(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &setup(qp_type))?;
    let receive = RecvRequest { wr_id: 1, pieces: vec![b.piece(0, 64)] };
    refused("a receive of its own", b.recv_on(b.qp.handle, vec![receive])).map(drop)
}

fn full(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &setup(qp_type))?;
    let Some((srq, _)) = b.srq else { return Err(crate::Finding::new("no shared receive queue")) };
    let receive = |wr_id| RecvRequest { wr_id, pieces: vec![b.piece(0, room(qp_type))] };
    // Providers may give more than asked for.
    let receives: Vec<RecvRequest> = (0..1000).map(receive).collect();
    let refusal = refused("a thousand receives into 64 places", b.recv_on(srq, receives))?;
    ensure(refusal.posted >= 64, || format!("only {} of 64 receives posted", refusal.posted))?;
    for id in 0..64 {
        a.post(Op::Send.request(id, a, b, 8, 0))?;
        a.expect_ok(id)?;
        b.expect_ok(id)?;
    }
    Ok(())
}

fn notifies(a: &mut Peer, b: &mut Peer, qp_type: QpType) -> Verdict {
    join(a, b, &setup(qp_type))?;
    for id in 0..10_u64 {
        b.arm(false)?;
        b.recv(id, 0, room(qp_type))?;
        a.post(Op::Send.request(id, a, b, 8, 0))?;
        b.expect_cq_event(b.cq)?;
        b.expect_ok(id)?;
        a.expect_ok(id)?;
    }
    Ok(())
}

/// Further pairs at `b`'s shared queue.
fn more_pairs(a: &mut Peer, b: &mut Peer, count: usize, setup: &Setup) -> Verdict<Vec<(Qp, Qp)>> {
    let mut pairs = vec![(a.qp, b.qp)];
    for _ in 0..count {
        let (qa, qb) = (a.new_qp(&a.qp_make(setup))?, b.new_qp(&b.qp_make(setup))?);
        connect(a, qa, b, qb, setup)?;
        pairs.push((qa, qb));
    }
    Ok(pairs)
}

fn send(a: &Peer, b: &Peer, id: u64) -> Vec<SendRequest> {
    vec![Op::Send.request(id, a, b, 8, 0)]
}

fn shared(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = setup(QpType::Rc);
    join(a, b, &setup)?;
    let pairs = more_pairs(a, b, 3, &setup)?;
    for id in 0..40_u64 {
        b.recv(id, id * 64, 64)?;
    }
    for id in 0..40_u64 {
        // Some pairs take more than others.
        let (qa, qb) = pairs[(id * id % 4) as usize];
        a.put(0, &id.to_le_bytes())?;
        a.post_on(qa, send(a, b, id))?;
        same("status at the sender", a.wait()?.status, WcStatus::SUCCESS)?;
        let wc = b.wait()?;
        same("wr_id, qp_num, status", (wc.wr_id, wc.qp_num, wc.status), (id, qb.qpn, WcStatus::SUCCESS))?;
        same("the message", b.word(id * 64)?, id)?;
    }
    b.expect_quiet()
}

fn survives(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = setup(QpType::Rc);
    join(a, b, &setup)?;
    let pairs = more_pairs(a, b, 1, &setup)?;
    b.recv(1, 0, 64)?;
    b.modify(pairs[0].1, QpAttr::to(QpState::Err))?;
    b.expect_quiet()?;
    a.post_on(pairs[1].0, send(a, b, 5))?;
    same("status at the sender", a.wait()?.status, WcStatus::SUCCESS)?;
    let wc = b.wait()?;
    same("wr_id, qp_num", (wc.wr_id, wc.qp_num), (1, pairs[1].1.qpn))
}

fn destroyed(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = setup(QpType::Rc);
    join(a, b, &setup)?;
    let pairs = more_pairs(a, b, 1, &setup)?;
    b.recv(1, 0, 64)?;
    b.destroy(pairs[0].1.handle)?;
    b.expect_quiet()?;
    a.post_on(pairs[1].0, send(a, b, 5))?;
    same("status at the sender", a.wait()?.status, WcStatus::SUCCESS)?;
    same("wr_id", b.wait()?.wr_id, 1)
}

fn waits(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = setup(QpType::Rc);
    join(a, b, &setup)?;
    let pairs = more_pairs(a, b, 2, &setup)?;
    for (id, (qa, _)) in (0_u64..).zip(&pairs) {
        a.post_on(*qa, send(a, b, id))?;
    }
    a.expect_quiet()?;
    for id in 0..3 {
        b.recv(id, 0, 64)?;
    }
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let wc = a.wait()?;
        same("status", wc.status, WcStatus::SUCCESS)?;
        sent.push(wc.wr_id);
        received.push(b.wait()?.wr_id);
    }
    sent.sort_unstable();
    received.sort_unstable();
    same("sends, receives", (sent, received), (vec![0, 1, 2], vec![0, 1, 2]))
}

fn in_use(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &setup(QpType::Rc))?;
    let Some((srq, _)) = b.srq else { return Err(crate::Finding::new("no shared receive queue")) };
    refused("destroying it under its pair", b.destroy(srq))?;
    b.recv(1, 0, 64)?;
    a.post(Op::Send.request(5, a, b, 8, 0))?;
    a.expect_ok(5)?;
    b.expect_ok(1)?;
    b.destroy(b.qp.handle)?;
    Ok(b.destroy(srq)?)
}

fn exhausted(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup { rnr_retry: 1, min_rnr_timer: 12, ..setup(QpType::Rc) })?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    a.expect(1, WcStatus::RNR_RETRY_EXC_ERR)?;
    same("state of the target", b.state(b.qp)?, QpState::Rts)
}

fn too_long(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = setup(QpType::Rc);
    join(a, b, &setup)?;
    let pairs = more_pairs(a, b, 1, &setup)?;
    b.recv(1, 0, 4)?;
    b.recv(2, 0, 64)?;
    a.post(Op::Send.request(5, a, b, 8, 0))?;
    a.expect(5, WcStatus::REM_INV_REQ_ERR)?;
    b.expect(1, WcStatus::LOC_LEN_ERR)?;
    a.post_on(pairs[1].0, send(a, b, 6))?;
    same("status at the other pair", a.wait()?.status, WcStatus::SUCCESS)?;
    let wc = b.wait()?;
    same("wr_id, qp_num, status", (wc.wr_id, wc.qp_num, wc.status), (2, pairs[1].1.qpn, WcStatus::SUCCESS))
}

fn last_reached(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &setup(QpType::Rc))?;
    b.recv(1, 0, 64)?;
    b.fail_qp()?;
    b.expect_async(AsyncEventKind::QpLastWqeReached, b.qp.qpn)?;
    b.expect_quiet()
}

fn armed(a: &mut Peer, b: &mut Peer, receives: u64, at: u32) -> Verdict<u32> {
    join(a, b, &setup(QpType::Rc))?;
    for id in 0..receives {
        b.recv(id, 0, 64)?;
    }
    let Some((srq, number)) = b.srq else { return Err(crate::Finding::new("no shared receive queue")) };
    b.arm_srq(srq, at)?;
    Ok(number)
}

fn take(a: &mut Peer, b: &mut Peer, count: u64) -> Verdict {
    for id in 0..count {
        a.post(Op::Send.request(id, a, b, 8, 0))?;
        a.expect_ok(id)?;
        same("status of the receive", b.wait()?.status, WcStatus::SUCCESS)?;
    }
    Ok(())
}

fn limit(a: &mut Peer, b: &mut Peer) -> Verdict {
    let number = armed(a, b, 10, 5)?;
    take(a, b, 5)?;
    b.expect_quiet()?;
    same("an event with as many receives as the limit", b.async_event()?, None)?;
    take(a, b, 1)?;
    b.expect_async(AsyncEventKind::SrqLimitReached, number)?;
    take(a, b, 4)?;
    b.expect_quiet()?;
    same("a second event of one arming", b.async_event()?, None)
}

fn limit_again(a: &mut Peer, b: &mut Peer) -> Verdict {
    let number = armed(a, b, 4, 4)?;
    let Some((srq, _)) = b.srq else { return Err(crate::Finding::new("no shared receive queue")) };
    for round in 0..3 {
        take(a, b, 1)?;
        b.expect_async(AsyncEventKind::SrqLimitReached, number)?;
        b.recv(100 + round, 0, 64)?;
        b.arm_srq(srq, 4)?;
    }
    Ok(())
}

fn limit_passed(a: &mut Peer, b: &mut Peer) -> Verdict {
    let number = armed(a, b, 2, 5)?;
    // Some tell at once, others with the next receive taken.
    take(a, b, 1)?;
    b.expect_async(AsyncEventKind::SrqLimitReached, number)
}

fn limit_not_reached(a: &mut Peer, b: &mut Peer) -> Verdict {
    armed(a, b, 10, 2)?;
    take(a, b, 8)?;
    b.expect_quiet()?;
    same("events", b.async_event()?, None)
}
