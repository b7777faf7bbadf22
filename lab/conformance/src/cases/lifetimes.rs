//! Creation, destruction in every order, and reuse of numbers.

use farcall_verbs::{Access, QpAttr, QpState, QpType, WcStatus, WrOpcode};

use crate::case::Table;
use crate::end::{End, another_pair, connect, deliver, equip, pattern};
use crate::finding::{Verdict, ensure, refused, same, same_bytes};
use crate::op::{ALL_OPS, SEND, WRITE};
use crate::setup::{ALL_ACCESS, Setup};

const REMOTE: u64 = 4096;
const DESTROY: &str = "ibv_destroy_qp(3), ibv_destroy_cq(3), ibv_dereg_mr(3), ibv_dealloc_pd(3)";

/// Returns the `n`-th of the 24 orders of four objects.
fn order(mut n: usize) -> [usize; 4] {
    let mut rest = vec![0, 1, 2, 3];
    std::array::from_fn(|_| {
        let pick = n % rest.len();
        n /= rest.len();
        rest.remove(pick)
    })
}

pub(super) fn add(table: &mut Table) {
    for n in 0..24 {
        table.rc(format!("rc/lives/destroyed-in-order-{n}"), SEND, DESTROY, move |a, b| {
            destroy(a, b, order(n))
        });
    }
    table.rc("rc/lives/a-destroyed-pair-delivers-nothing", WRITE, "ibv_destroy_qp(3)", delivers_nothing);
    table.rc("rc/lives/a-number-is-not-used-again-at-once", SEND, "IBA 9.7.1, 10.2.4", numbers);
    let impatient = Setup::rc().impatient();
    table.joined(impatient, "rc/lives/an-old-peer-does-not-reach-a-new-pair", SEND, "IBA 9.7.1", old_peer);
    table.joined(impatient, "rc/lives/reset-connects-to-another-peer", SEND, "IBA 10.3.1.1", other_peer);
    table.joined(impatient, "rc/lives/only-the-named-pair-reaches-it", WRITE, "IBA 9.6.1", stranger);
    table.add("rc/lives/a-pair-connected-to-itself", "IBA 17.2.2", loopback).needs(QpType::Rc, SEND | WRITE);
    table.rc("mr/impossible-regions-are-refused", SEND, "IBA 10.6.3.1; ibv_reg_mr(3)", impossible);
    table.rc("mr/keys-of-many-regions-differ", WRITE, "IBA 10.6.3", many_regions);
    table.rc("pd/a-domain-outlives-its-neighbour", SEND, "ibv_alloc_pd(3)", domains);
    for op in ALL_OPS.into_iter().filter(|op| op.is_one_sided()) {
        table.op_case(Setup::rc(), op, "lives/deregistered-while-used", "ibv_dereg_mr(3)", dereg_under_load);
    }
}

fn destroy(a: &mut End, b: &mut End, order: [usize; 4]) -> Verdict {
    b.recv(1, 0, 64)?;
    a.recv(1, 0, 64)?;
    a.send(1, b)?;
    // Waits forever for a second receive.
    a.post(a.request(WrOpcode::SEND, 2, b, 8, 0).unsignaled())?;
    a.expect_ok(1)?;
    let objects = [a.qp.handle, a.cq.handle, a.mr.handle, a.channel];
    for object in order {
        // An object that is still in use is destroyed for the program; the provider retains it as long as necessary.
        a.destroy(objects[object])?;
    }
    b.expect_ok(1)?;
    b.expect_quiet()?;
    same("state of the other end", b.state(b.qp)?, QpState::Rts)
}

fn delivers_nothing(a: &mut End, b: &mut End) -> Verdict {
    a.recv(1, 0, 64)?;
    a.post(a.request(WrOpcode::WRITE, 2, b, 8, REMOTE))?;
    // Both complete without being polled.
    a.pause();
    a.destroy(a.qp.handle)?;
    a.expect_quiet()
}

fn numbers(a: &mut End, _: &mut End) -> Verdict {
    let first = a.new_qp(&a.qp_init())?;
    a.destroy(first.handle)?;
    for _ in 0..20 {
        let next = a.new_qp(&a.qp_init())?;
        ensure(next.qpn != first.qpn, || format!("number {:#x} is used again at once", first.qpn))?;
        ensure(next.qpn > 1 && next.qpn < 1 << 24, || format!("number {:#x} is no ordinary one", next.qpn))?;
        a.destroy(next.handle)?;
    }
    Ok(())
}

fn old_peer(a: &mut End, b: &mut End) -> Verdict {
    b.recv(1, 0, 64)?;
    deliver(a, b, 1, 1)?;
    b.destroy(b.qp.handle)?;
    let (other, new) = another_pair(a, b)?;
    b.qp = new;
    b.recv(2, 0, 64)?;
    a.send(2, b)?;
    a.expect(2, WcStatus::RETRY_EXC_ERR)?;
    b.expect_quiet()?;
    a.send_on(other, 3, b)?;
    a.expect_at(other, 3, WcStatus::SUCCESS)?;
    b.expect_ok(2)
}

fn other_peer(a: &mut End, b: &mut End) -> Verdict {
    let other = b.new_qp(&b.qp_init())?;
    a.move_to(a.qp, QpState::Reset)?;
    connect(a, a.qp, b, other)?;
    b.recv_on(other.handle, 5, vec![b.sge(0, 64)])?;
    a.complete_send(1, b)?;
    b.expect_at(other, 5, WcStatus::SUCCESS)?;
    // The old peer has no counterpart any more.
    b.send(9, a)?;
    b.expect(9, WcStatus::RETRY_EXC_ERR)?;
    a.expect_quiet()
}

fn stranger(a: &mut End, b: &mut End) -> Verdict {
    let stranger = a.new_qp(&a.qp_init())?;
    let to_b = b.address(b.qp);
    a.modify(stranger, a.init_attr())?;
    // The connection may be refused here, or its requests remain without a response later; in either case they must
    // not be executed.
    if a.modify(stranger, a.rtr_attr(&to_b)).is_ok() {
        // On the wire, only the packet sequence numbers distinguish the two.
        a.modify(stranger, QpAttr { sq_psn: Some(0x40_0000), ..a.rts_attr() })?;
        a.put(0, &[1; 8])?;
        a.post_on(stranger, vec![a.request(WrOpcode::WRITE, 1, b, 8, REMOTE)])?;
        a.expect_at(stranger, 1, WcStatus::RETRY_EXC_ERR)?;
    }
    same("the target's word", b.word(REMOTE)?, 0)?;
    a.complete(a.request(WrOpcode::WRITE, 2, b, 8, REMOTE))
}

fn loopback(a: &mut End, b: &mut End) -> Verdict {
    equip(a, b, &Setup::rc())?;
    a.bring_up(a.qp, QpState::Rts, &a.address(a.qp))?;
    let bytes = pattern(100, 1);
    a.put(0, &bytes)?;
    a.recv(1, REMOTE, 100)?;
    a.post(a.request(WrOpcode::SEND, 2, a, 100, 0))?;
    let mut ids = vec![a.wait()?.wr_id, a.wait()?.wr_id];
    ids.sort_unstable();
    same("completions", ids, vec![1, 2])?;
    same_bytes("the message", &a.get(REMOTE, 100)?, &bytes)?;
    a.complete(a.request(WrOpcode::WRITE, 3, a, 100, REMOTE * 2))?;
    same_bytes("what was written", &a.get(REMOTE * 2, 100)?, &bytes)
}

fn impossible(a: &mut End, _: &mut End) -> Verdict {
    refused("no bytes", a.new_mr(a.pd, 0, ALL_ACCESS))?;
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_READ] {
        refused(&format!("{access:?} without LOCAL_WRITE"), a.new_mr(a.pd, 4096, access))?;
    }
    refused("more bytes than there are", a.new_mr(a.pd, u64::MAX - 4096, ALL_ACCESS)).map(drop)
}

fn many_regions(a: &mut End, b: &mut End) -> Verdict {
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
        a.complete(a.request_from(WrOpcode::WRITE, id, vec![a.sge(0, 8)], b, mr.addr, mr.rkey))?;
    }
    for (id, mr) in (0_u64..).zip(regions) {
        same_bytes("a region", &b.get_in(mr, 0, 8)?, &id.to_le_bytes())?;
    }
    Ok(())
}

fn domains(a: &mut End, b: &mut End) -> Verdict {
    let other = a.new_pd()?;
    let mr = a.new_mr(other, 4096, ALL_ACCESS)?;
    a.dereg(mr)?;
    a.destroy(other)?;
    b.recv(1, 0, 64)?;
    deliver(a, b, 1, 1)
}

/// Requests are outstanding when the region is deregistered: each succeeds or fails, and after the first failure all
/// fail.
fn dereg_under_load(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    let mr = b.new_mr(b.pd, 4096, ALL_ACCESS)?;
    let count = u64::from(a.qp.cap.max_send_wr.min(16));
    for id in 0..count {
        b.recv_for(op, id, 0, 0)?;
    }
    let request = |id| a.request_from(op, id, vec![a.sge(0, 8)], b, mr.addr, mr.rkey);
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
            // The response was lost, and before the initiator sent the request again the peer had failed at a later
            // request.
            (false, WcStatus::RETRY_EXC_ERR) => {
                failed = true;
                b.state(b.qp)? == QpState::Err
            }
            _ => false,
        };
        ensure(allowed, || format!("request {id} ended in {:?} (failed before: {failed})", wc.status))?;
    }
    if failed {
        return Ok(());
    }
    b.recv_for(op, count, 0, 0)?;
    a.post_on(a.qp, vec![requests[0].clone()])?;
    a.expect(0, WcStatus::REM_ACCESS_ERR)
}
