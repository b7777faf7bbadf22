//! What each operation moves, and what its completions say.

use farcall_verbs::{QpState, QpType, WcFlags, WcOpcode, WcStatus};

use crate::case::Table;
use crate::finding::{Verdict, ensure, same, same_bytes};
use crate::op::{IMM, Op, operations, transport_name};
use crate::peer::{Peer, join, pattern};
use crate::setup::Setup;

/// A GRH precedes every datagram in its receive.
pub(super) const GRH_BYTES: u32 = 40;

/// Where operations meet the target's region.
const REMOTE: u64 = 4096;

/// Sizes around those at which implementations change their ways; 0 and the largest too.
const SIZES: [u32; 12] = [1, 7, 8, 9, 63, 64, 255, 256, 1024, 1025, 4096, 20_000];

/// Bytes that a datagram may have here: within every MTU.
const UD_BYTES: u32 = 1024;

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        let name = |what: &str| format!("{}/{}/{what}", transport_name(qp_type), op.name());
        if op.is_atomic() {
            continue;
        }
        table
            .add(name("moves-exact-bytes"), "IBA 9.4; ibv_post_send(3)", move |a, b| exact(a, b, qp_type, op))
            .needs(qp_type, op.caps());
        table
            .add(name("zero-length"), "IBA 9.4; ibv_post_send(3)", move |a, b| zero(a, b, qp_type, op))
            .needs(qp_type, op.caps());
        table
            .add(name("completion-fields"), "IBA 11.4.2.1; ibv_poll_cq(3)", move |a, b| {
                fields(a, b, qp_type, op)
            })
            .needs(qp_type, op.caps());
    }
}

/// One operation, between filled surroundings, until both ends know.
fn once(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op, len: u32) -> Verdict {
    let seed = u64::from(len) + 1;
    let (from, around) = (pattern(len, seed), 64);
    let grh = if qp_type == QpType::Ud { GRH_BYTES } else { 0 };
    let window = grh + len + 2 * around;
    let (source, sink): (&mut Peer, &mut Peer) =
        if op.returns_data() { (&mut *b, &mut *a) } else { (&mut *a, &mut *b) };
    // The initiator works at offset 0, the target at REMOTE; receives lie there too.
    let (source_at, sink_at) = if op.returns_data() { (REMOTE, 0) } else { (0, REMOTE) };
    source.put(source_at, &from)?;
    let sink_from = sink_at.saturating_sub(u64::from(around) + u64::from(grh));
    sink.put(sink_from, &vec![0x5A; window as usize])?;
    if op.consumes_receive() {
        let (at, room) = if op.is_one_sided() { (0, 0) } else { (REMOTE - u64::from(grh), grh + len) };
        b.recv(seed, at, room)?;
    }
    let request = op.request(seed, a, b, len, REMOTE);
    a.post(request)?;
    a.expect_ok(seed)?;
    if op.consumes_receive() {
        let wc = b.expect_ok(seed)?;
        same("byte_len at the target", wc.byte_len, grh + len)?;
    }
    b.let_arrive(qp_type, op);
    let sink = if op.returns_data() { a } else { b };
    same_bytes("the destination", &sink.get(sink_at, len)?, &from)?;
    same_bytes("after the destination", &sink.get(sink_at + u64::from(len), around)?, &[0x5A; 64])?;
    if sink_at > 0 {
        let before = sink.get(sink_from, around)?;
        same_bytes("before the destination", &before, &[0x5A; 64])?;
    }
    Ok(())
}

fn exact(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    for len in SIZES.into_iter().filter(|len| qp_type != QpType::Ud || *len <= UD_BYTES) {
        once(a, b, qp_type, op, len)?;
    }
    Ok(())
}

fn zero(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    once(a, b, qp_type, op, 0)?;
    // No element at all is zero length as well.
    if op.consumes_receive() {
        b.recv(2, REMOTE, GRH_BYTES)?;
    }
    let mut request = op.request(2, a, b, 0, REMOTE);
    request.pieces.clear();
    a.post(request)?;
    a.expect_ok(2)?;
    if op.consumes_receive() {
        b.expect_ok(2)?;
    }
    same("state of the target", b.state(b.qp)?, QpState::Rts)
}

fn fields(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    let grh = if qp_type == QpType::Ud { GRH_BYTES } else { 0 };
    if op.consumes_receive() {
        b.recv(0xFFFF_FFFF_FFFF_FFF0, REMOTE, 100 + grh)?;
    }
    a.post(op.request(0xDEAD_BEEF_0000_0001, a, b, 100, 0))?;
    let wc = a.wait()?;
    same(
        "wr_id, status, opcode, qp_num at the initiator",
        (wc.wr_id, wc.status, wc.opcode, wc.qp_num),
        (0xDEAD_BEEF_0000_0001, WcStatus::SUCCESS, op.wc_opcode(), a.qp.qpn),
    )?;
    if op.returns_data() {
        same("byte_len at the initiator", wc.byte_len, 100)?;
    }
    if !op.consumes_receive() {
        return b.expect_quiet();
    }
    let wc = b.wait()?;
    let opcode = if op == Op::WriteImm { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV };
    same(
        "wr_id, status, opcode, qp_num at the target",
        (wc.wr_id, wc.status, wc.opcode, wc.qp_num),
        (0xFFFF_FFFF_FFFF_FFF0, WcStatus::SUCCESS, opcode, b.qp.qpn),
    )?;
    same("byte_len at the target", wc.byte_len, 100 + grh)?;
    same("immediate data at the target", wc.imm(), op.has_imm().then_some(IMM))?;
    if qp_type == QpType::Ud {
        same("src_qp", wc.src_qp, a.qp.qpn)?;
        ensure(wc.wc_flags.contains(WcFlags::GRH), || "the completion does not tell of the GRH".into())?;
    }
    Ok(())
}
