//! Scatter and gather lists.

use farcall_verbs::{QpCap, QpType};

use super::data::GRH_BYTES;
use crate::case::Table;
use crate::finding::{Verdict, refused, same_bytes};
use crate::op::{Op, operations, transport_name};
use crate::peer::{Peer, join, pattern};
use crate::setup::{ALL_ACCESS, Setup};
use crate::side::Piece;

const SOURCE: &str = "IBA 10.2.6; ibv_post_send(3), ibv_post_recv(3)";
const REMOTE: u64 = 4096;
/// Lengths of the pieces: odd, empty, one, large.
const LENS: [u32; 4] = [13, 0, 1, 300];

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        let name = |what: &str| format!("{}/{}/elements/{what}", transport_name(qp_type), op.name());
        if !op.is_atomic() {
            table
                .add(name("joined-in-order"), SOURCE, move |a, b| gather(a, b, qp_type, op))
                .needs(qp_type, op.caps());
        }
        if matches!(op, Op::Send | Op::SendImm) {
            table
                .add(name("scattered-in-order"), SOURCE, move |a, b| scatter(a, b, qp_type, op))
                .needs(qp_type, op.caps());
        }
        table
            .add(name("too-many-refused"), SOURCE, move |a, b| too_many(a, b, qp_type, op))
            .needs(qp_type, op.caps());
    }
    table.add("rc/recv/elements/too-many-refused", SOURCE, |a, b| {
        join(a, b, &Setup::rc())?;
        let pieces = vec![b.piece(0, 1); b.qp.max_recv_sge as usize + 1];
        refused("a receive with too many elements", b.recv_into(1, pieces))?;
        b.expect_quiet()
    });
}

fn setup(a: &Peer, qp_type: QpType) -> Setup {
    let sges = a.about().max_sge.min(4);
    let base = Setup::new(qp_type);
    Setup { cap: QpCap { max_send_sge: sges, max_recv_sge: sges, ..base.cap }, ..base }
}

/// Pieces of the region and of another, in descending order of address; their bytes one after the other.
fn pieces(end: &mut Peer, count: u32, seed: u64) -> Verdict<(Vec<Piece>, Vec<u8>)> {
    let other = end.new_mr(end.pd, 4096, ALL_ACCESS)?;
    let (mut pieces, mut all) = (Vec::new(), Vec::new());
    for (i, len) in (0_u64..).zip(LENS).take(count as usize) {
        let (mr, offset) = if i % 2 == 0 { (end.mr, 30_001 - i * 1000) } else { (other, 1001 - i * 100) };
        let bytes = pattern(len, seed + i);
        end.put_in(mr, offset, &bytes)?;
        pieces.push(Piece { addr: mr.addr + offset, len, lkey: mr.lkey });
        all.extend(bytes);
    }
    Ok((pieces, all))
}

fn gather(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &setup(a, qp_type))?;
    let (list, bytes) = pieces(a, a.qp.max_send_sge, 10)?;
    let len = bytes.len() as u32;
    let grh = if qp_type == QpType::Ud { GRH_BYTES } else { 0 };
    if op.consumes_receive() {
        b.recv(1, REMOTE - u64::from(grh), len + grh)?;
    }
    let target = pattern(len, 99);
    if op.returns_data() {
        b.put(REMOTE, &target)?;
    }
    a.post(op.request_from(1, list.clone(), a, b, b.mr.addr + REMOTE, b.mr.rkey))?;
    a.expect_ok(1)?;
    if op.consumes_receive() {
        b.expect_ok(1)?;
    }
    if !op.returns_data() {
        b.let_arrive(qp_type, op);
        return same_bytes("the destination", &b.get(REMOTE, len)?, &bytes);
    }
    // A READ scatters: only the pieces of our own region can be looked at by offset.
    let mut at = 0;
    for piece in list {
        let expected = &target[at..at + piece.len as usize];
        at += piece.len as usize;
        if piece.lkey == a.mr.lkey {
            same_bytes("a piece", &a.get(piece.addr - a.mr.addr, piece.len)?, expected)?;
        }
    }
    Ok(())
}

fn scatter(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &setup(a, qp_type))?;
    let grh = if qp_type == QpType::Ud { GRH_BYTES } else { 0 };
    // The first piece is long enough for the GRH and not a multiple of anything.
    let lens = [grh + 5, 0, 7, 500];
    let list: Vec<Piece> = (0_u64..)
        .zip(lens)
        .take(b.qp.max_recv_sge as usize)
        .map(|(i, len)| b.piece(REMOTE - i * 1000, len))
        .collect();
    let room: u32 = list.iter().map(|piece| piece.len).sum();
    // The message ends in the middle of the last piece.
    let len = (room - grh).min(212);
    let bytes = pattern(len, 4);
    a.put(0, &bytes)?;
    b.put(0, &vec![0x5A; 8192])?;
    b.recv_into(1, list.clone())?;
    a.post(op.request(1, a, b, len, 0))?;
    a.expect_ok(1)?;
    b.expect_ok(1)?;
    let mut seen = Vec::new();
    for piece in &list {
        seen.extend(b.get(piece.addr - b.mr.addr, piece.len)?);
    }
    let (message, rest) = seen.split_at((grh + len) as usize);
    same_bytes("the pieces joined", &message[grh as usize..], &bytes)?;
    same_bytes("what the message did not fill", rest, &vec![0x5A; rest.len()])
}

fn too_many(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    let mut request = op.request(1, a, b, 8, REMOTE);
    request.pieces = vec![a.piece(0, 1); a.qp.max_send_sge as usize + 1];
    refused("more elements than max_send_sge", a.post(request))?;
    a.expect_quiet()
}
