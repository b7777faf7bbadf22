//! Which requests complete, and in which order.

use farcall_verbs::{QpState, QpType, WcStatus};

use super::data::GRH_BYTES;
use crate::case::Table;
use crate::finding::{Verdict, same};
use crate::op::{ALL_OPS, Op, operations, transport_name};
use crate::peer::{Peer, join};
use crate::setup::Setup;

const SOURCE: &str = "IBA 10.8.6; ibv_post_send(3): IBV_SEND_SIGNALED, ibv_create_qp(3): sq_sig_all";
const REMOTE: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        let name = |what: &str| format!("{}/{}/signals/{what}", transport_name(qp_type), op.name());
        table
            .add(name("only-where-asked"), SOURCE, move |a, b| only_asked(a, b, qp_type, op))
            .needs(qp_type, op.caps());
        table.add(name("all"), SOURCE, move |a, b| all(a, b, qp_type, op)).needs(qp_type, op.caps());
        table
            .add(name("places-come-back"), SOURCE, move |a, b| places(a, b, qp_type, op))
            .needs(qp_type, op.caps());
        if qp_type == QpType::Rc && op.is_one_sided() {
            table
                .add(name("failures-always"), SOURCE, move |a, b| failure(a, b, op))
                .needs(qp_type, op.caps());
        }
    }
    let mixed = table.add("rc/signals/completions-in-order", "IBA 10.8.5", in_order);
    for op in [Op::Send, Op::Write, Op::Read] {
        mixed.needs(QpType::Rc, op.caps());
    }
}

fn receives(b: &mut Peer, op: Op, count: u64) -> Verdict {
    if op.consumes_receive() {
        for id in 0..count {
            b.recv(id, REMOTE, 64 + GRH_BYTES)?;
        }
    }
    Ok(())
}

fn only_asked(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    receives(b, op, 5)?;
    for id in 0..5 {
        let request = op.request(id, a, b, 8, REMOTE);
        a.post(if id % 2 == 1 { request } else { request.unsignaled() })?;
    }
    a.expect_ok(1)?;
    a.expect_ok(3)?;
    a.expect_quiet()?;
    if op.consumes_receive() {
        for id in 0..5 {
            b.expect_ok(id)?;
        }
    }
    Ok(())
}

fn all(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup { signal_all: true, ..Setup::new(qp_type) })?;
    receives(b, op, 3)?;
    for id in 0..3 {
        a.post(op.request(id, a, b, 8, REMOTE).unsignaled())?;
    }
    for id in 0..3 {
        let wc = a.expect_ok(id)?;
        same("opcode", wc.opcode, op.wc_opcode())?;
    }
    a.expect_quiet()
}

/// The completion of a signalled request gives back the places of the unsignalled ones before it.
fn places(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    let depth = u64::from(a.qp.max_send_wr);
    for round in 0..3 {
        for id in 0..depth {
            if op.consumes_receive() && id % 16 == 0 {
                // As many as fit, so that datagrams are not lost either.
                while b.poll()?.is_some() {}
                receives(b, op, 16)?;
            }
            let request = op.request(round * depth + id, a, b, 8, REMOTE);
            a.post(if id == depth - 1 { request } else { request.unsignaled() })?;
            if op.consumes_receive() && id % 16 == 15 {
                for _ in 0..16 {
                    b.wait()?;
                }
            }
        }
        a.expect_ok(round * depth + depth - 1)?;
        if op.consumes_receive() {
            drain_receives(b, depth % 16)?;
        }
    }
    a.expect_quiet()
}

fn drain_receives(b: &mut Peer, count: u64) -> Verdict {
    for _ in 0..count {
        b.wait()?;
    }
    Ok(())
}

fn failure(a: &mut Peer, b: &mut Peer, op: Op) -> Verdict {
    join(a, b, &Setup::rc())?;
    receives(b, op, 1)?;
    let wrong_key = b.mr.rkey ^ 0x5A5A;
    let request = op.request_from(9, vec![a.piece(0, 8)], a, b, b.mr.addr + REMOTE, wrong_key);
    a.post(request.unsignaled())?;
    a.expect(9, WcStatus::REM_ACCESS_ERR)?;
    a.expect_state(a.qp, QpState::Err)
}

fn in_order(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::rc())?;
    let supported = a.ops(QpType::Rc);
    let ops: Vec<Op> = ALL_OPS.into_iter().filter(|op| supported.contains(op.caps())).collect();
    for round in 0..20 {
        let (first, count) = (round * 8, 8);
        let mut receives = Vec::new();
        for i in 0..count {
            let op = ops[((round * 3 + i) % ops.len() as u64) as usize];
            if op.consumes_receive() {
                b.recv(first + i, REMOTE, 64)?;
                receives.push(first + i);
            }
            a.post(op.request(first + i, a, b, 8, REMOTE))?;
        }
        for i in 0..count {
            a.expect_ok(first + i)?;
        }
        for id in receives {
            b.expect_ok(id)?;
        }
    }
    Ok(())
}
