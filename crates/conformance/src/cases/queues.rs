//! Completion queues and the sizes of queues.

use farcall_verbs::{AsyncEventKind, OpCaps, QpCap, QpType, WcStatus};

use crate::case::Table;
use crate::finding::{Verdict, ensure, refused, same};
use crate::op::Op;
use crate::peer::{Peer, connect, join};
use crate::setup::Setup;
use crate::side::{QpMake, Reason, RecvRequest, SendRequest};

const REMOTE: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    table
        .add("rc/queues/a-full-send-queue-refuses-the-rest", "ibv_post_send(3): bad_wr", full_send)
        .needs(QpType::Rc, OpCaps::SEND);
    table
        .add("rc/queues/a-full-receive-queue-refuses-the-rest", "ibv_post_recv(3): bad_wr", full_recv)
        .needs(QpType::Rc, OpCaps::SEND);
    table
        .add(
            "rc/queues/a-bad-request-in-a-batch-keeps-those-before",
            "ibv_post_send(3): bad_wr",
            bad_in_batch,
        )
        .needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/queues/sizes-are-at-least-those-asked-for", "ibv_create_qp(3)", sizes)
        .needs(QpType::Rc, OpCaps::SEND);
    table
        .add("rc/queues/impossible-sizes-are-refused", "ibv_create_qp(3)", impossible)
        .needs(QpType::Rc, OpCaps::SEND);
    table
        .add("rc/queues/an-unknown-opcode-is-refused", "ibv_post_send(3)", unknown_opcode)
        .needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("cq/sends-and-receives-apart", "ibv_create_qp(3): send_cq, recv_cq", apart)
        .needs(QpType::Rc, OpCaps::SEND);
    table.add("cq/one-queue-for-many-pairs", "IBA 10.2.8", shared).needs(QpType::Rc, OpCaps::SEND);
    table.add("cq/no-more-than-asked-for", "ibv_poll_cq(3)", batches).needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("cq/overrun-loses-nothing-silently", "IBA 10.2.8, 11.6.3: CQ Error; ibv_create_cq(3)", overrun)
        .needs(QpType::Rc, OpCaps::WRITE);
}

fn writes(a: &Peer, b: &Peer, count: u64) -> Vec<SendRequest> {
    (0..count).map(|id| Op::Write.request(id, a, b, 8, REMOTE)).collect()
}

fn full_send(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    let depth = u64::from(a.qp.max_send_wr);
    // They wait for receives, so that none ends early. A queue may hold somewhat more than it says.
    let sends: Vec<SendRequest> = (0..depth * 4).map(|id| Op::Send.request(id, a, b, 8, 0)).collect();
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
    a.post(Op::Send.request(7, a, b, 8, 0))?;
    a.expect_ok(7)?;
    Ok(())
}

fn full_recv(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    let depth = u64::from(b.qp.max_recv_wr);
    let receive = |wr_id| RecvRequest { wr_id, pieces: vec![b.piece(0, 64)] };
    let receives: Vec<RecvRequest> = (0..depth * 4).map(receive).collect();
    let refusal = refused("four times max_recv_wr", b.recv_on(b.qp.handle, receives))?;
    let posted = refusal.posted as u64;
    ensure(posted >= depth, || format!("{posted} of {depth} receives posted"))?;
    same("the reason", refusal.reason, Reason::Exhausted)?;
    for id in 0..posted {
        a.post(Op::Send.request(id, a, b, 8, 0))?;
        a.expect_ok(id)?;
        b.expect_ok(id)?;
    }
    Ok(())
}

fn bad_in_batch(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    let mut batch = writes(a, b, 4);
    batch[2].pieces = vec![a.piece(0, 1); a.qp.max_send_sge as usize + 1];
    let refusal = refused("a batch with a bad request", a.post_on(a.qp, batch))?;
    same("requests posted", refusal.posted, 2)?;
    a.expect_ok(0)?;
    a.expect_ok(1)?;
    a.expect_quiet()?;
    a.post(Op::Write.request(9, a, b, 8, REMOTE))?;
    a.expect_ok(9)?;
    Ok(())
}

fn sizes(a: &mut Peer, b: &mut Peer) -> Verdict {
    b.equip(&Setup::rc())?;
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
            qp.max_send_wr >= wr
                && qp.max_recv_wr >= wr
                && qp.max_send_sge >= sge
                && qp.max_recv_sge >= sge
                && qp.max_inline_data >= inline,
            || format!("{qp:?} for {cap:?}"),
        )?;
    }
    Ok(())
}

fn impossible(a: &mut Peer, b: &mut Peer) -> Verdict {
    b.equip(&Setup::rc())?;
    a.equip(&Setup::rc())?;
    let good = a.qp_make(&Setup::rc());
    let about = a.about().clone();
    let wrong = [
        ("max_send_wr", QpMake { max_send_wr: about.max_qp_wr.saturating_add(1), ..good }),
        ("max_recv_wr", QpMake { max_recv_wr: about.max_qp_wr.saturating_add(1), ..good }),
        ("max_send_sge", QpMake { max_send_sge: about.max_sge + 1, ..good }),
        ("max_recv_sge", QpMake { max_recv_sge: about.max_sge + 1, ..good }),
        ("max_inline_data", QpMake { max_inline_data: 1 << 20, ..good }),
    ];
    for (what, make) in wrong {
        refused(what, a.new_qp(&make))?;
    }
    a.new_qp(&good)?;
    refused("a completion queue that is too large", a.new_cq(about.max_cqe.saturating_add(1), None)).map(drop)
}

fn unknown_opcode(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    for opcode in [20, 200, u32::MAX] {
        let request = SendRequest { opcode, ..Op::Write.request(1, a, b, 8, REMOTE) };
        refused(&format!("opcode {opcode}"), a.post(request))?;
    }
    a.expect_quiet()?;
    a.post(Op::Write.request(2, a, b, 8, REMOTE))?;
    a.expect_ok(2)?;
    Ok(())
}

fn apart(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc();
    a.equip(&setup)?;
    b.equip(&setup)?;
    let recv_cq = a.new_cq(16, None)?;
    let make = QpMake { recv_cq: recv_cq.handle, ..a.qp_make(&setup) };
    let qp = a.new_qp(&make)?;
    connect(a, qp, b, b.qp, &setup)?;
    b.recv(1, 0, 64)?;
    a.recv_on(qp.handle, vec![RecvRequest { wr_id: 2, pieces: vec![a.piece(0, 64)] }])?;
    a.post_on(qp, vec![Op::Send.request(3, a, b, 8, 0)])?;
    b.post(Op::Send.request(4, b, a, 8, 0))?;
    b.wait()?;
    b.wait()?;
    let (send, recv) = (a.wait()?, a.wait_on(recv_cq)?);
    same("at the send queue's", (send.wr_id, send.opcode.is_receive()), (3, false))?;
    same("at the receive queue's", (recv.wr_id, recv.opcode.is_receive()), (2, true))?;
    a.expect_quiet()?;
    same("more at the receive queue's", a.poll_on(recv_cq, 8)?.len(), 0)
}

fn shared(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc();
    a.equip(&setup)?;
    b.equip(&setup)?;
    let mut pairs = Vec::new();
    for id in 0..8 {
        let (qa, qb) = (a.new_qp(&a.qp_make(&setup))?, b.new_qp(&b.qp_make(&setup))?);
        connect(a, qa, b, qb, &setup)?;
        b.recv_on(qb.handle, vec![RecvRequest { wr_id: 100 + id, pieces: vec![b.piece(id * 64, 64)] }])?;
        pairs.push((id, qa, qb));
    }
    for (id, qa, _) in &pairs {
        a.put(0, &id.to_le_bytes())?;
        a.post_on(*qa, vec![Op::Send.request(*id, a, b, 8, 0)])?;
        let wc = a.wait()?;
        same("wr_id, qp_num at the initiator", (wc.wr_id, wc.qp_num), (*id, qa.qpn))?;
    }
    for _ in &pairs {
        let wc = b.wait()?;
        let found = pairs.iter().find(|(id, _, qb)| wc.wr_id == 100 + id && wc.qp_num == qb.qpn);
        let (id, ..) = found.ok_or_else(|| crate::Finding::new(format!("a completion of nobody: {wc:?}")))?;
        same("the message", b.word(id * 64)?, *id)?;
    }
    b.expect_quiet()
}

fn batches(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
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

/// Far more completions than asked for: either all are there, or the queue says that it overran.
fn overrun(a: &mut Peer, b: &mut Peer) -> Verdict {
    let cap = QpCap { max_send_wr: 512.min(a.about().max_qp_wr), ..Setup::rc().cap };
    join(a, b, &Setup { cap, cqe: 4, ..Setup::rc() })?;
    let count = u64::from(cap.max_send_wr);
    let requests = writes(a, b, count);
    a.post_on(a.qp, requests)?;
    // Nobody polls meanwhile.
    a.pause();
    let mut seen = 0;
    a.until("the rest of the completions, or word of an overrun", |a| {
        // The queue itself may say it.
        let Ok(wcs) = a.poll_on(a.cq, 16) else { return Ok(Some(())) };
        for wc in wcs {
            same("wr_id, status", (wc.wr_id, wc.status), (seen, WcStatus::SUCCESS))?;
            seen += 1;
        }
        let told = a.async_event()?.is_some_and(|event| event.is(AsyncEventKind::CqErr));
        Ok((told || seen == count).then_some(()))
    })
}
