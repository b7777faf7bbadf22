//! Inline data: copied while posting.

use farcall_verbs::{QpType, SendFlags};

use super::data::GRH_BYTES;
use crate::case::Table;
use crate::finding::{Verdict, refused, same, same_bytes};
use crate::op::{Op, operations, transport_name};
use crate::peer::{Peer, join, pattern};
use crate::setup::Setup;
use crate::side::Piece;

const SOURCE: &str = "ibv_post_send(3): IBV_SEND_INLINE";
const REMOTE: u64 = 4096;
/// No region has this key.
const NO_KEY: u32 = 0xDEAD_BEEF;

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        let name = |what: &str| format!("{}/{}/inline/{what}", transport_name(qp_type), op.name());
        if op.returns_data() {
            table.add(name("refused"), SOURCE, move |a, b| returns_data(a, b, op)).needs(qp_type, op.caps());
            continue;
        }
        table
            .add(name("needs-no-key"), SOURCE, move |a, b| no_key(a, b, qp_type, op))
            .needs(qp_type, op.caps());
        table
            .add(name("up-to-its-limit"), SOURCE, move |a, b| limit(a, b, qp_type, op))
            .needs(qp_type, op.caps());
        if qp_type == QpType::Rc && op.consumes_receive() {
            table
                .add(name("free-while-it-waits"), SOURCE, move |a, b| waits(a, b, op))
                .needs(qp_type, op.caps());
        }
    }
}

fn grh(qp_type: QpType) -> u32 {
    if qp_type == QpType::Ud { GRH_BYTES } else { 0 }
}

/// Posts a receive where messages then lie at REMOTE.
fn receive(b: &mut Peer, qp_type: QpType, op: Op, wr_id: u64, len: u32) -> Verdict {
    if op.consumes_receive() {
        b.recv(wr_id, REMOTE - u64::from(grh(qp_type)), len + grh(qp_type))?;
    }
    Ok(())
}

fn no_key(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    let len = a.qp.max_inline_data.min(48);
    receive(b, qp_type, op, 1, len)?;
    let bytes = pattern(len, 1);
    a.put(3, &bytes)?;
    // Two elements, neither with a key that exists.
    let pieces = vec![
        Piece { lkey: NO_KEY, ..a.piece(3, len / 3) },
        Piece { lkey: 0, ..a.piece(3 + u64::from(len / 3), len - len / 3) },
    ];
    let request = op.request_from(1, pieces, a, b, b.mr.addr + REMOTE, b.mr.rkey).flagged(SendFlags::INLINE);
    a.post(request)?;
    a.put(0, &[0; 64])?;
    a.expect_ok(1)?;
    if op.consumes_receive() {
        b.expect_ok(1)?;
    }
    b.let_arrive(qp_type, op);
    same_bytes("the destination", &b.get(REMOTE, len)?, &bytes)
}

fn limit(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    let most = a.qp.max_inline_data;
    receive(b, qp_type, op, 1, most)?;
    let bytes = pattern(most, 2);
    a.put(0, &bytes)?;
    a.post(op.request(1, a, b, most, REMOTE).flagged(SendFlags::INLINE))?;
    a.expect_ok(1)?;
    if op.consumes_receive() {
        b.expect_ok(1)?;
    }
    b.let_arrive(qp_type, op);
    same_bytes("the destination", &b.get(REMOTE, most)?, &bytes)?;
    let request = op.request(2, a, b, most + 1, REMOTE).flagged(SendFlags::INLINE);
    refused("one byte more than max_inline_data", a.post(request))?;
    a.expect_quiet()
}

fn returns_data(a: &mut Peer, b: &mut Peer, op: Op) -> Verdict {
    join(a, b, &Setup::rc())?;
    refused("inline", a.post(op.request(1, a, b, 8, REMOTE).flagged(SendFlags::INLINE)))?;
    a.expect_quiet()?;
    same("the target's word", b.word(REMOTE)?, 0)
}

fn waits(a: &mut Peer, b: &mut Peer, op: Op) -> Verdict {
    join(a, b, &Setup::rc())?;
    let bytes = pattern(32, 3);
    a.put(0, &bytes)?;
    a.post(op.request(1, a, b, 32, REMOTE).flagged(SendFlags::INLINE))?;
    a.put(0, &[0xEE; 32])?;
    a.expect_quiet()?;
    b.recv(7, REMOTE, 32)?;
    a.expect_ok(1)?;
    b.expect_ok(7)?;
    same_bytes("the destination", &b.get(REMOTE, 32)?, &bytes)
}
