//! Creation, destruction in every order, numbers used again.

use farcall_verbs::{Access, OpCaps, QpAttr, QpState, QpType, WcStatus};

use crate::case::Table;
use crate::finding::{Verdict, ensure, refused, same, same_bytes};
use crate::op::{ALL_OPS, Op};
use crate::peer::{Peer, connect, join, pattern};
use crate::setup::{ALL_ACCESS, Setup};

const REMOTE: u64 = 4096;
const DESTROY: &str = "ibv_destroy_qp(3), ibv_destroy_cq(3), ibv_dereg_mr(3), ibv_dealloc_pd(3)";

/// Objects of an end, in an order to destroy them in.
const ORDERS: [[usize; 4]; 24] = {
    let mut orders = [[0; 4]; 24];
    let mut n = 0;
    while n < 24 {
        let mut rest = [0, 1, 2, 3];
        let (mut left, mut at, mut value) = (4, 0, n);
        while at < 4 {
            let pick = value % left;
            value /= left;
            orders[n][at] = rest[pick];
            let mut shift = pick;
            while shift + 1 < left {
                rest[shift] = rest[shift + 1];
                shift += 1;
            }
            left -= 1;
            at += 1;
        }
        n += 1;
    }
    orders
};

pub(super) fn add(table: &mut Table) {
    for (n, order) in ORDERS.into_iter().enumerate() {
        table
            .add(format!("rc/lives/destroyed-in-order-{n}"), DESTROY, move |a, b| destroy(a, b, order))
            .needs(QpType::Rc, OpCaps::SEND);
    }
    table
        .add("rc/lives/a-destroyed-pair-delivers-nothing", "ibv_destroy_qp(3)", delivers_nothing)
        .needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/lives/a-number-is-not-used-again-at-once", "IBA 9.7.1, 10.2.4", numbers)
        .needs(QpType::Rc, OpCaps::SEND);
    table
        .add("rc/lives/an-old-peer-does-not-reach-a-new-pair", "IBA 9.7.1", old_peer)
        .needs(QpType::Rc, OpCaps::SEND);
    table
        .add("rc/lives/reset-connects-to-another-peer", "IBA 10.3.1.1", other_peer)
        .needs(QpType::Rc, OpCaps::SEND);
    table
        .add("rc/lives/only-the-named-pair-reaches-it", "IBA 9.6.1", stranger)
        .needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/lives/a-pair-connected-to-itself", "IBA 17.2.2", loopback)
        .needs(QpType::Rc, OpCaps::SEND | OpCaps::WRITE);
    table
        .add("mr/impossible-regions-are-refused", "IBA 10.6.3.1; ibv_reg_mr(3)", impossible)
        .needs(QpType::Rc, OpCaps::SEND);
    table.add("mr/keys-of-many-regions-differ", "IBA 10.6.3", many_regions).needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("pd/a-domain-outlives-its-neighbour", "ibv_alloc_pd(3)", domains)
        .needs(QpType::Rc, OpCaps::SEND);
    for op in ALL_OPS.into_iter().filter(|op| op.is_one_sided()) {
        table
            .add(format!("rc/{}/lives/deregistered-while-used", op.name()), "ibv_dereg_mr(3)", move |a, b| {
                dereg_under_load(a, b, op)
            })
            .needs(QpType::Rc, op.caps());
    }
}

fn destroy(a: &mut Peer, b: &mut Peer, order: [usize; 4]) -> Verdict {
    join(a, b, &Setup::rc())?;
    b.recv(1, 0, 64)?;
    a.recv(1, 0, 64)?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    // Waits for a second receive, for ever.
    a.post(Op::Send.request(2, a, b, 8, 0).unsignaled())?;
    a.expect_ok(1)?;
    let objects = [a.qp.handle, a.cq.handle, a.mr.handle, a.channel];
    for object in order {
        // What is still in use goes for the program; the provider keeps it as long as it must.
        a.destroy(objects[object])?;
    }
    b.expect_ok(1)?;
    b.expect_quiet()?;
    same("state of the other end", b.state(b.qp)?, QpState::Rts)
}

fn delivers_nothing(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    a.recv(1, 0, 64)?;
    a.post(Op::Write.request(2, a, b, 8, REMOTE))?;
    // Both complete, and nobody polls.
    a.pause();
    let qp = a.qp;
    a.destroy(qp.handle)?;
    a.expect_quiet()
}

fn numbers(a: &mut Peer, b: &mut Peer) -> Verdict {
    b.equip(&Setup::rc())?;
    a.equip(&Setup::rc())?;
    let make = a.qp_make(&Setup::rc());
    let first = a.new_qp(&make)?;
    a.destroy(first.handle)?;
    for _ in 0..20 {
        let next = a.new_qp(&make)?;
        ensure(next.qpn != first.qpn, || format!("number {:#x} is used again at once", first.qpn))?;
        ensure(next.qpn > 1 && next.qpn < 1 << 24, || format!("number {:#x} is no ordinary one", next.qpn))?;
        a.destroy(next.handle)?;
    }
    Ok(())
}

fn old_peer(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc().impatient();
    join(a, b, &setup)?;
    b.recv(1, 0, 64)?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    a.expect_ok(1)?;
    b.expect_ok(1)?;
    b.destroy(b.qp.handle)?;
    b.qp = b.new_qp(&b.qp_make(&setup))?;
    let other = a.new_qp(&a.qp_make(&setup))?;
    connect(a, other, b, b.qp, &setup)?;
    b.recv(2, 0, 64)?;
    a.post(Op::Send.request(2, a, b, 8, 0))?;
    a.expect(2, WcStatus::RETRY_EXC_ERR)?;
    b.expect_quiet()?;
    a.post_on(other, vec![Op::Send.request(3, a, b, 8, 0)])?;
    same("the new peer's message", a.wait()?.status, WcStatus::SUCCESS)?;
    b.expect_ok(2)?;
    Ok(())
}

fn other_peer(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc().impatient();
    join(a, b, &setup)?;
    let other = b.new_qp(&b.qp_make(&setup))?;
    a.modify(a.qp, QpAttr::to(QpState::Reset))?;
    connect(a, a.qp, b, other, &setup)?;
    let receive = crate::side::RecvRequest { wr_id: 5, pieces: vec![b.piece(0, 64)] };
    b.recv_on(other.handle, vec![receive])?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    a.expect_ok(1)?;
    let wc = b.wait()?;
    same("wr_id, qp_num", (wc.wr_id, wc.qp_num), (5, other.qpn))?;
    // The old peer finds nobody.
    b.post(Op::Send.request(9, b, a, 8, 0))?;
    b.expect(9, WcStatus::RETRY_EXC_ERR)?;
    a.expect_quiet()
}

fn stranger(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc().impatient();
    join(a, b, &setup)?;
    let stranger = a.new_qp(&a.qp_make(&setup))?;
    let to_b = b.address(b.qp);
    a.modify(stranger, a.init_attr(&setup))?;
    // Whether it is refused here or unanswered later: it does not get through.
    if a.modify(stranger, a.rtr_attr(&setup, &to_b)).is_ok() {
        // Over a wire, sequence numbers are all that tells them apart.
        a.modify(stranger, QpAttr { sq_psn: Some(0x40_0000), ..a.rts_attr(&setup) })?;
        a.put(0, &[1; 8])?;
        a.post_on(stranger, vec![Op::Write.request(1, a, b, 8, REMOTE)])?;
        same("the stranger's WRITE", a.wait()?.status, WcStatus::RETRY_EXC_ERR)?;
    }
    same("the target's word", b.word(REMOTE)?, 0)?;
    a.post(Op::Write.request(2, a, b, 8, REMOTE))?;
    a.expect_ok(2)?;
    Ok(())
}

fn loopback(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::rc();
    a.equip(&setup)?;
    b.equip(&setup)?;
    let to_a = a.address(a.qp);
    a.modify(a.qp, a.init_attr(&setup))?;
    a.modify(a.qp, a.rtr_attr(&setup, &to_a))?;
    a.modify(a.qp, a.rts_attr(&setup))?;
    let bytes = pattern(100, 1);
    a.put(0, &bytes)?;
    a.recv(1, REMOTE, 100)?;
    a.post(Op::Send.request(2, a, a, 100, 0))?;
    let mut ids = vec![a.wait()?.wr_id, a.wait()?.wr_id];
    ids.sort_unstable();
    same("completions", ids, vec![1, 2])?;
    same_bytes("the message", &a.get(REMOTE, 100)?, &bytes)?;
    a.post(Op::Write.request(3, a, a, 100, REMOTE * 2))?;
    a.expect_ok(3)?;
    same_bytes("what was written", &a.get(REMOTE * 2, 100)?, &bytes)
}

fn impossible(a: &mut Peer, b: &mut Peer) -> Verdict {
    b.equip(&Setup::rc())?;
    a.equip(&Setup::rc())?;
    refused("no bytes", a.new_mr(a.pd, 0, ALL_ACCESS))?;
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_READ] {
        refused(&format!("{access:?} without LOCAL_WRITE"), a.new_mr(a.pd, 4096, access))?;
    }
    refused("more bytes than there are", a.new_mr(a.pd, u64::MAX - 4096, ALL_ACCESS)).map(drop)
}

fn many_regions(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    let mut regions = Vec::new();
    for _ in 0..64 {
        regions.push(b.new_mr(b.pd, 4096, ALL_ACCESS)?);
    }
    let mut keys: Vec<u32> = regions.iter().map(|mr| mr.rkey).collect();
    keys.sort_unstable();
    keys.dedup();
    same("different keys", keys.len(), regions.len())?;
    for (id, mr) in (0_u64..).zip(&regions) {
        a.put(0, &id.to_le_bytes())?;
        a.post(Op::Write.request_from(id, vec![a.piece(0, 8)], a, b, mr.addr, mr.rkey))?;
        a.expect_ok(id)?;
    }
    for (id, mr) in (0_u64..).zip(regions) {
        same_bytes("a region", &b.get_in(mr, 0, 8)?, &id.to_le_bytes())?;
    }
    Ok(())
}

fn domains(a: &mut Peer, b: &mut Peer) -> Verdict {
    let other = a.new_pd()?;
    let mr = a.new_mr(other, 4096, ALL_ACCESS)?;
    join(a, b, &Setup::rc())?;
    a.dereg(mr)?;
    a.destroy(other)?;
    b.recv(1, 0, 64)?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    a.expect_ok(1)?;
    b.expect_ok(1)?;
    Ok(())
}

/// Requests are under way when the region goes: each succeeds or fails, and the first failure ends all.
fn dereg_under_load(a: &mut Peer, b: &mut Peer, op: Op) -> Verdict {
    join(a, b, &Setup::rc())?;
    let mr = b.new_mr(b.pd, 4096, ALL_ACCESS)?;
    let count = u64::from(a.qp.max_send_wr.min(16));
    if op.consumes_receive() {
        for id in 0..count {
            b.recv(id, 0, 0)?;
        }
    }
    let request = |id| op.request_from(id, vec![a.piece(0, 8)], a, b, mr.addr, mr.rkey);
    let requests: Vec<_> = (0..count).map(request).collect();
    a.post_on(a.qp, requests.clone())?;
    b.dereg(mr)?;
    let mut failed = false;
    for id in 0..count {
        let wc = a.wait()?;
        same("wr_id", wc.wr_id, id)?;
        let allowed = match (failed, wc.status) {
            (false, WcStatus::SUCCESS) => true,
            (false, WcStatus::REM_ACCESS_ERR) | (true, WcStatus::WR_FLUSH_ERR) => {
                failed = true;
                true
            }
            _ => false,
        };
        ensure(allowed, || format!("request {id} ended in {:?} (failed before: {failed})", wc.status))?;
    }
    if !failed {
        if op.consumes_receive() {
            b.recv(count, 0, 0)?;
        }
        a.post_on(a.qp, vec![requests[0].clone()])?;
        a.expect(0, WcStatus::REM_ACCESS_ERR)?;
    }
    Ok(())
}
