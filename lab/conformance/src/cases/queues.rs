//! Completion queues and the sizes of queues.

use farcall_verbs::{AsyncEventKind, QpCap, QpType, WcStatus, WrOpcode};

use crate::case::{Body, Table};
use crate::end::{End, another_pair, another_pair_of, deliver, join};
use crate::executor::{QpInit, Reason, RecvRequest, SendRequest};
use crate::finding::{Verdict, ensure, refused, same};
use crate::op::{SEND, WRITE};
use crate::setup::Setup;

const REMOTE: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    let mut case = |what, needs, source, body: Body| {
        table.rc(format!("rc/queues/{what}"), needs, source, body);
    };
    case("a-full-send-queue-refuses-the-rest", SEND, "ibv_post_send(3): bad_wr", full_send);
    case("a-full-receive-queue-refuses-the-rest", SEND, "ibv_post_recv(3): bad_wr", full_recv);
    case("a-bad-request-in-a-batch-keeps-those-before", WRITE, "ibv_post_send(3): bad_wr", bad_in_batch);
    case("sizes-are-at-least-those-asked-for", SEND, "ibv_create_qp(3)", sizes);
    case("impossible-sizes-are-refused", SEND, "ibv_create_qp(3)", impossible);
    case("an-unknown-opcode-is-refused", WRITE, "ibv_post_send(3)", unknown_opcode);
    table.rc("cq/sends-and-receives-apart", SEND, "ibv_create_qp(3): send_cq, recv_cq", apart);
    table.rc("cq/one-queue-for-many-pairs", SEND, "IBA 10.2.8", shared);
    table.rc("cq/no-more-than-asked-for", WRITE, "ibv_poll_cq(3)", batches);
    let source = "IBA 10.2.8, 11.6.3: CQ Error; ibv_create_cq(3)";
    table.add("cq/overrun-loses-nothing-silently", source, overrun).needs(QpType::Rc, WRITE);
}

fn writes(a: &End, b: &End, count: u64) -> Vec<SendRequest> {
    (0..count).map(|id| a.request(WrOpcode::WRITE, id, b, 8, REMOTE)).collect()
}

fn full_send(a: &mut End, b: &mut End) -> Verdict {
    let depth = u64::from(a.qp.cap.max_send_wr);
    // The requests wait for receives, so that none completes early. A queue may hold somewhat more than it reports.
    let sends: Vec<SendRequest> = (0..depth * 4).map(|id| a.request(WrOpcode::SEND, id, b, 8, 0)).collect();
    let refusal = refused("four times max_send_wr", a.post_on(a.qp, sends))?;
    let posted = refusal.posted as u64;
    ensure(posted >= depth, || format!("{posted} of {depth} requests posted"))?;
    same("the reason", refusal.reason, Reason::Exhausted)?;
    for id in 0..posted {
        b.recv(id, 0, 64)?;
        b.expect_ok(id)?;
        a.expect_ok(id)?;
    }
    a.expect_quiet()?;
    b.recv(7, 0, 64)?;
    a.complete_send(7, b)
}

fn full_recv(a: &mut End, b: &mut End) -> Verdict {
    let depth = u64::from(b.qp.cap.max_recv_wr);
    let receive = |wr_id| RecvRequest { wr_id, sges: vec![b.sge(0, 64)] };
    let receives: Vec<RecvRequest> = (0..depth * 4).map(receive).collect();
    let refusal = refused("four times max_recv_wr", b.recv_all(b.qp.handle, receives))?;
    let posted = refusal.posted as u64;
    ensure(posted >= depth, || format!("{posted} of {depth} receives posted"))?;
    same("the reason", refusal.reason, Reason::Exhausted)?;
    for id in 0..posted {
        deliver(a, b, id, id)?;
    }
    Ok(())
}

fn bad_in_batch(a: &mut End, b: &mut End) -> Verdict {
    let mut batch = writes(a, b, 4);
    batch[2].sges = vec![a.sge(0, 1); a.qp.cap.max_send_sge as usize + 1];
    let refusal = refused("a batch with a bad request", a.post_on(a.qp, batch))?;
    same("requests posted", refusal.posted, 2)?;
    a.expect_ok(0)?;
    a.expect_ok(1)?;
    a.expect_quiet()?;
    a.complete(a.request(WrOpcode::WRITE, 9, b, 8, REMOTE))
}

fn sizes(a: &mut End, _: &mut End) -> Verdict {
    for (wr, sge, inline) in [(1, 1, 0), (3, 1, 8), (100, 2, 64)] {
        let cap = QpCap {
            max_send_wr: wr,
            max_recv_wr: wr,
            max_send_sge: sge,
            max_recv_sge: sge,
            max_inline_data: inline,
        };
        a.equip(&Setup { cap, ..Setup::rc() })?;
        let qp = a.qp;
        ensure(
            qp.cap.max_send_wr >= wr
                && qp.cap.max_recv_wr >= wr
                && qp.cap.max_send_sge >= sge
                && qp.cap.max_recv_sge >= sge
                && qp.cap.max_inline_data >= inline,
            || format!("{qp:?} for {cap:?}"),
        )?;
    }
    Ok(())
}

fn impossible(a: &mut End, _: &mut End) -> Verdict {
    let good = a.qp_init();
    let device = a.about().device.clone();
    let wrong = [
        ("max_send_wr", QpCap { max_send_wr: device.max_qp_wr.saturating_add(1), ..good.cap }),
        ("max_recv_wr", QpCap { max_recv_wr: device.max_qp_wr.saturating_add(1), ..good.cap }),
        ("max_send_sge", QpCap { max_send_sge: device.max_sge + 1, ..good.cap }),
        ("max_recv_sge", QpCap { max_recv_sge: device.max_sge + 1, ..good.cap }),
        ("max_inline_data", QpCap { max_inline_data: 1 << 20, ..good.cap }),
    ];
    for (what, cap) in wrong {
        refused(what, a.new_qp(&QpInit { cap, ..good }))?;
    }
    a.new_qp(&good)?;
    refused("a completion queue that is too large", a.new_cq(device.max_cqe.saturating_add(1), None))
        .map(drop)
}

fn unknown_opcode(a: &mut End, b: &mut End) -> Verdict {
    for opcode in [20, 200, u32::MAX] {
        let request = SendRequest { opcode: WrOpcode(opcode), ..a.request(WrOpcode::WRITE, 1, b, 8, REMOTE) };
        refused(&format!("opcode {opcode}"), a.post(request))?;
    }
    a.expect_quiet()?;
    a.complete(a.request(WrOpcode::WRITE, 2, b, 8, REMOTE))
}

fn apart(a: &mut End, b: &mut End) -> Verdict {
    let recv_cq = a.new_cq(16, None)?;
    let of_a = QpInit { recv_cq: recv_cq.handle, ..a.qp_init() };
    let (qa, qb) = another_pair_of(a, of_a, b, b.qp_init())?;
    b.recv_on(qb.handle, 1, vec![b.sge(0, 64)])?;
    a.recv_on(qa.handle, 2, vec![a.sge(0, 64)])?;
    a.send_on(qa, 3, b)?;
    b.send_on(qb, 4, a)?;
    b.wait()?;
    b.wait()?;
    let (send, recv) = (a.wait()?, a.wait_on(recv_cq)?);
    same("at the send queue's", (send.wr_id, send.opcode.is_receive()), (3, false))?;
    same("at the receive queue's", (recv.wr_id, recv.opcode.is_receive()), (2, true))?;
    a.expect_quiet()?;
    same("more at the receive queue's", a.poll_on(recv_cq, 8)?.len(), 0)
}

fn shared(a: &mut End, b: &mut End) -> Verdict {
    let mut pairs = Vec::new();
    for id in 0..8 {
        let (qa, qb) = another_pair(a, b)?;
        b.recv_on(qb.handle, 100 + id, vec![b.sge(id * 64, 64)])?;
        pairs.push((id, qa, qb));
    }
    for (id, qa, _) in &pairs {
        a.put(0, &id.to_le_bytes())?;
        a.send_on(*qa, *id, b)?;
        let wc = a.wait()?;
        same("wr_id, qp_num at the initiator", (wc.wr_id, wc.qp_num), (*id, qa.qpn))?;
    }
    for _ in &pairs {
        let wc = b.wait()?;
        let found = pairs.iter().find(|(id, _, qb)| wc.wr_id == 100 + id && wc.qp_num == qb.qpn);
        let (id, ..) =
            found.ok_or_else(|| crate::Finding::new(format!("a completion of no work request: {wc:?}")))?;
        same("the message", b.word(id * 64)?, *id)?;
    }
    b.expect_quiet()
}

fn batches(a: &mut End, b: &mut End) -> Verdict {
    let requests = writes(a, b, 20);
    a.post_on(a.qp, requests)?;
    let mut ids = Vec::new();
    a.until("all completions", |a| {
        let wcs = a.poll_on(a.cq, 7)?;
        ensure(wcs.len() <= 7, || format!("{} completions, asked for 7", wcs.len()))?;
        ids.extend(wcs.iter().map(|wc| wc.wr_id));
        Ok((ids.len() >= 20).then_some(()))
    })?;
    same("wr_ids", ids, (0..20).collect())?;
    same("completions into no room", a.poll_on(a.cq, 0)?.len(), 0)
}

/// Creates far more completions than the queue has requested entries: either all are delivered, or the queue reports
/// an overrun.
fn overrun(a: &mut End, b: &mut End) -> Verdict {
    let cap = QpCap { max_send_wr: 512.min(a.about().device.max_qp_wr), ..Setup::rc().cap };
    join(a, b, &Setup { cap, cqe: 4, ..Setup::rc() })?;
    let count = u64::from(cap.max_send_wr);
    let requests = writes(a, b, count);
    a.post_on(a.qp, requests)?;
    // No poll in the meantime.
    a.pause();
    let mut seen = 0;
    a.until("the rest of the completions, or word of an overrun", |a| {
        // The queue itself may report the overrun.
        let Ok(wcs) = a.poll_on(a.cq, 16) else { return Ok(Some(())) };
        for wc in wcs {
            same("wr_id, status", (wc.wr_id, wc.status), (seen, WcStatus::SUCCESS))?;
            seen += 1;
        }
        let told = a.async_event()?.is_some_and(|event| event.kind == AsyncEventKind::CqErr);
        Ok((told || seen == count).then_some(()))
    })
}
