//! Shared receive queues.

use farcall_verbs::{AsyncEventKind, OpCaps, QpState, QpType, WcStatus, WrOpcode};

use crate::case::{Body, Feature, Table};
use crate::end::{End, another_pair, deliver, deliver_on};
use crate::executor::{Qp, RecvRequest, Refusal};
use crate::finding::{Verdict, ensure, refused, same};
use crate::op::{TRANSPORTS, transport_name};
use crate::setup::Setup;

const SOURCE: &str = "IBA 10.2.9; ibv_create_srq(3), ibv_post_srq_recv(3)";
const LIMIT: &str = "IBA 10.2.9.1, 11.6.3: SRQ Limit Reached; ibv_modify_srq(3)";
const AT: u64 = 4096;
const NEEDS: OpCaps = OpCaps::SEND.union(OpCaps::SRQ);

pub(super) fn add(table: &mut Table) {
    for qp_type in TRANSPORTS {
        let t = transport_name(qp_type);
        let mut case = |what, body: Body| {
            table.joined(setup(qp_type), format!("{t}/srq/{what}"), NEEDS, SOURCE, body);
        };
        case("takes-receives-in-order", in_order);
        case("a-pair-has-no-receives-of-its-own", no_own);
        case("full-refuses-the-rest", full);
        case("arming-notifies", notifies);
    }
    let rc = setup(QpType::Rc);
    let mut case = |what, source, body: Body| {
        table.joined(rc, format!("rc/srq/{what}"), NEEDS, source, body);
    };
    case("shared-by-many-pairs", SOURCE, shared);
    case("a-failed-pair-leaves-the-receives", "IBA 10.3.1.7", |a, b| survive(a, b, End::fail_qp));
    case("a-destroyed-pair-leaves-the-receives", SOURCE, |a, b| survive(a, b, |b| b.destroy(b.qp.handle)));
    case("empty-makes-senders-wait", "IBA 9.7.5.2.8", waits);
    case("a-message-too-long-fails-one-pair", "IBA 11.6.2: Local Length Error", too_long);
    case("in-use-cannot-be-destroyed", "ibv_destroy_srq(3)", in_use);
    case("last-receive-is-told", "IBA 11.6.3: Last WQE Reached", last_reached);
    let gives_up = Setup { rnr_retry: 1, min_rnr_timer: 12, ..rc };
    table.joined(gives_up, "rc/srq/empty-ends-retries", NEEDS, "IBA 9.7.5.2.8", exhausted);
    let mut case = |what, body: Body| {
        table.joined(rc, format!("rc/srq/{what}"), NEEDS, LIMIT, body).optional(Feature::SrqLimit);
    };
    case("limit-is-told-once", limit);
    case("limit-can-be-armed-again", limit_again);
    case("limit-already-passed-is-told", limit_passed);
    case("limit-not-reached-is-not-told", limit_not_reached);
    let write_imm = NEEDS | OpCaps::WRITE_IMM;
    table.joined(rc, "rc/srq/write-imm-takes-one", write_imm, SOURCE, |a, b| {
        b.recv(1, 0, 64)?;
        a.complete(a.request(WrOpcode::WRITE_WITH_IMM, 1, b, 8, 4096))?;
        b.expect_ok(1)
    });
}

fn setup(qp_type: QpType) -> Setup {
    Setup { srq: Some(64), ..Setup::new(qp_type) }
}

fn in_order(a: &mut End, b: &mut End) -> Verdict {
    for round in 0..5 {
        for id in 0..10_u64 {
            b.recv_message(round * 10 + id, AT + id * 256, 64)?;
        }
        for id in 0..10_u64 {
            a.put(0, &id.to_le_bytes())?;
            deliver(a, b, id, round * 10 + id)?;
            same("the message", b.word(AT + id * 256)?, id)?;
        }
    }
    Ok(())
}

fn no_own(_: &mut End, b: &mut End) -> Verdict {
    refused("a receive of its own", b.recv_on(b.qp.handle, 1, vec![b.sge(0, 64)])).map(drop)
}

fn full(a: &mut End, b: &mut End) -> Verdict {
    let (srq, _) = b.srq();
    let receive = |wr_id| RecvRequest { wr_id, sges: vec![b.message_sge(AT, 64)] };
    // Providers may allocate more than requested.
    let receives: Vec<RecvRequest> = (0..1000).map(receive).collect();
    let refusal = refused("a thousand receives into 64 places", b.recv_all(srq, receives))?;
    ensure(refusal.posted >= 64, || format!("only {} of 64 receives posted", refusal.posted))?;
    for id in 0..64 {
        deliver(a, b, id, id)?;
    }
    Ok(())
}

fn notifies(a: &mut End, b: &mut End) -> Verdict {
    for id in 0..10_u64 {
        b.arm(false)?;
        b.recv_message(id, AT, 64)?;
        a.send(id, b)?;
        b.expect_cq_event(b.cq)?;
        b.expect_ok(id)?;
        a.expect_ok(id)?;
    }
    Ok(())
}

/// Connects further pairs that use `b`'s shared queue.
fn more_pairs(a: &mut End, b: &mut End, count: usize) -> Verdict<Vec<(Qp, Qp)>> {
    let mut pairs = vec![(a.qp, b.qp)];
    for _ in 0..count {
        pairs.push(another_pair(a, b)?);
    }
    Ok(pairs)
}

fn shared(a: &mut End, b: &mut End) -> Verdict {
    let pairs = more_pairs(a, b, 3)?;
    for id in 0..40_u64 {
        b.recv(id, id * 64, 64)?;
    }
    for id in 0..40_u64 {
        a.put(0, &id.to_le_bytes())?;
        // Some pairs consume more receives than others.
        deliver_on(a, b, pairs[(id * id % 4) as usize], id, id)?;
        same("the message", b.word(id * 64)?, id)?;
    }
    b.expect_quiet()
}

/// Ends one pair; the receives of the shared queue must remain for the others.
fn survive(a: &mut End, b: &mut End, end: fn(&mut End) -> Result<(), Refusal>) -> Verdict {
    let pair = another_pair(a, b)?;
    b.recv(1, 0, 64)?;
    end(b)?;
    b.expect_quiet()?;
    deliver_on(a, b, pair, 5, 1)
}

fn waits(a: &mut End, b: &mut End) -> Verdict {
    let pairs = more_pairs(a, b, 2)?;
    for (id, (qa, _)) in (0_u64..).zip(&pairs) {
        a.send_on(*qa, id, b)?;
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

fn in_use(a: &mut End, b: &mut End) -> Verdict {
    let (srq, _) = b.srq();
    refused("destroying it under its pair", b.destroy(srq))?;
    b.recv(1, 0, 64)?;
    deliver(a, b, 5, 1)?;
    b.destroy(b.qp.handle)?;
    Ok(b.destroy(srq)?)
}

fn exhausted(a: &mut End, b: &mut End) -> Verdict {
    a.send(1, b)?;
    a.expect(1, WcStatus::RNR_RETRY_EXC_ERR)?;
    same("state of the target", b.state(b.qp)?, QpState::Rts)
}

fn too_long(a: &mut End, b: &mut End) -> Verdict {
    let (qa, qb) = another_pair(a, b)?;
    b.recv(1, 0, 4)?;
    b.recv(2, 0, 64)?;
    a.send(5, b)?;
    a.expect(5, WcStatus::REM_INV_REQ_ERR)?;
    b.expect(1, WcStatus::LOC_LEN_ERR)?;
    deliver_on(a, b, (qa, qb), 6, 2)
}

fn last_reached(_: &mut End, b: &mut End) -> Verdict {
    b.recv(1, 0, 64)?;
    b.fail_qp()?;
    b.expect_async(AsyncEventKind::QpLastWqeReached, b.qp.qpn)?;
    b.expect_quiet()
}

fn armed(b: &mut End, receives: u64, at: u32) -> Verdict<u32> {
    for id in 0..receives {
        b.recv(id, 0, 64)?;
    }
    let (srq, number) = b.srq();
    b.arm_srq(srq, at)?;
    Ok(number)
}

fn take(a: &mut End, b: &mut End, count: u64) -> Verdict {
    for id in 0..count {
        a.complete_send(id, b)?;
        same("status of the receive", b.wait()?.status, WcStatus::SUCCESS)?;
    }
    Ok(())
}

fn limit(a: &mut End, b: &mut End) -> Verdict {
    let number = armed(b, 10, 5)?;
    take(a, b, 5)?;
    b.expect_quiet()?;
    same("an event with as many receives as the limit", b.async_event()?, None)?;
    take(a, b, 1)?;
    b.expect_async(AsyncEventKind::SrqLimitReached, number)?;
    take(a, b, 4)?;
    b.expect_quiet()?;
    same("a second event of one arming", b.async_event()?, None)
}

fn limit_again(a: &mut End, b: &mut End) -> Verdict {
    let number = armed(b, 4, 4)?;
    let (srq, _) = b.srq();
    for round in 0..3 {
        take(a, b, 1)?;
        b.expect_async(AsyncEventKind::SrqLimitReached, number)?;
        b.recv(100 + round, 0, 64)?;
        b.arm_srq(srq, 4)?;
    }
    Ok(())
}

fn limit_passed(a: &mut End, b: &mut End) -> Verdict {
    let number = armed(b, 2, 5)?;
    // Some providers raise the event immediately, others when the next receive is consumed.
    take(a, b, 1)?;
    b.expect_async(AsyncEventKind::SrqLimitReached, number)
}

fn limit_not_reached(a: &mut End, b: &mut End) -> Verdict {
    armed(b, 10, 2)?;
    take(a, b, 8)?;
    b.expect_quiet()?;
    same("events", b.async_event()?, None)
}
