//! Scatter and gather lists.

use farcall_verbs::{QpCap, QpType, Sge, WrOpcode};

use crate::case::Table;
use crate::end::{End, join, pattern};
use crate::finding::{Verdict, refused, same_bytes};
use crate::op::operations;
use crate::setup::{ALL_ACCESS, Setup};

const SOURCE: &str = "IBA 10.2.6; ibv_post_send(3), ibv_post_recv(3)";
const REMOTE: u64 = 4096;
/// Lengths of the elements: odd, empty, one, large.
const LENS: [u32; 4] = [13, 0, 1, 300];

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        if !op.is_atomic() {
            table.op_case_apart(qp_type, op, "elements/joined-in-order", SOURCE, gather);
        }
        if matches!(op, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM) {
            table.op_case_apart(qp_type, op, "elements/scattered-in-order", SOURCE, scatter);
        }
        table.op_case(Setup::new(qp_type), op, "elements/too-many-refused", SOURCE, too_many);
    }
    table.add("rc/recv/elements/too-many-refused", SOURCE, |a, b| {
        join(a, b, &Setup::rc())?;
        let sges = vec![b.sge(0, 1); b.qp.cap.max_recv_sge as usize + 1];
        refused("a receive with too many elements", b.recv_into(1, sges))?;
        b.expect_quiet()
    });
}

fn setup(a: &End, qp_type: QpType) -> Setup {
    let sges = a.about().device.max_sge.min(4);
    let base = Setup::new(qp_type);
    Setup { cap: QpCap { max_send_sge: sges, max_recv_sge: sges, ..base.cap }, ..base }
}

/// Returns elements of the region and of another one, in descending order of address, and their bytes concatenated.
fn sges(end: &mut End, count: u32, seed: u64) -> Verdict<(Vec<Sge>, Vec<u8>)> {
    let other = end.new_mr(end.pd, 4096, ALL_ACCESS)?;
    let (mut sges, mut all) = (Vec::new(), Vec::new());
    for (i, len) in (0_u64..).zip(LENS).take(count as usize) {
        let (mr, offset) = if i % 2 == 0 { (end.mr, 30_001 - i * 1000) } else { (other, 1001 - i * 100) };
        let bytes = pattern(len, seed + i);
        end.put_in(mr, offset, &bytes)?;
        sges.push(mr.sge(offset, len));
        all.extend(bytes);
    }
    Ok((sges, all))
}

fn gather(a: &mut End, b: &mut End, qp_type: QpType, op: WrOpcode) -> Verdict {
    join(a, b, &setup(a, qp_type))?;
    let (list, bytes) = sges(a, a.qp.cap.max_send_sge, 10)?;
    let len = bytes.len() as u32;
    b.recv_for(op, 1, REMOTE, len)?;
    let target = pattern(len, 99);
    if op.returns_data() {
        b.put(REMOTE, &target)?;
    }
    a.complete(a.request_from(op, 1, list.clone(), b, b.mr.addr + REMOTE, b.mr.rkey))?;
    b.expect_received(op, 1)?;
    if !op.returns_data() {
        b.let_arrive(op);
        return same_bytes("the destination", &b.get(REMOTE, len)?, &bytes);
    }
    // A READ scatters its data. Only elements in the initiator's main region can be read by offset.
    let mut at = 0;
    for sge in list {
        let expected = &target[at..at + sge.length as usize];
        at += sge.length as usize;
        if sge.lkey == a.mr.lkey {
            same_bytes("a sge", &a.get(sge.addr - a.mr.addr, sge.length)?, expected)?;
        }
    }
    Ok(())
}

fn scatter(a: &mut End, b: &mut End, qp_type: QpType, op: WrOpcode) -> Verdict {
    join(a, b, &setup(a, qp_type))?;
    let grh = b.grh_bytes();
    // The first element is long enough for the GRH, and its length is odd.
    let lens = [grh + 5, 0, 7, 500];
    let list: Vec<Sge> = (0_u64..)
        .zip(lens)
        .take(b.qp.cap.max_recv_sge as usize)
        .map(|(i, len)| b.sge(REMOTE - i * 1000, len))
        .collect();
    let room: u32 = list.iter().map(|sge| sge.length).sum();
    // The message ends in the middle of the last element.
    let len = (room - grh).min(212);
    let bytes = pattern(len, 4);
    a.put(0, &bytes)?;
    b.put(0, &vec![0x5A; 8192])?;
    b.recv_into(1, list.clone())?;
    a.complete(a.request(op, 1, b, len, 0))?;
    b.expect_ok(1)?;
    let mut seen = Vec::new();
    for sge in &list {
        seen.extend(b.get(sge.addr - b.mr.addr, sge.length)?);
    }
    let (message, rest) = seen.split_at((grh + len) as usize);
    same_bytes("the sges joined", &message[grh as usize..], &bytes)?;
    same_bytes("what the message did not fill", rest, &vec![0x5A; rest.len()])
}

fn too_many(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    let mut request = a.request(op, 1, b, 8, REMOTE);
    request.sges = vec![a.sge(0, 1); a.qp.cap.max_send_sge as usize + 1];
    refused("more elements than max_send_sge", a.post(request))?;
    a.expect_quiet()
}
