//! Data transferred by each operation, and content of its completions.

use farcall_verbs::{QpState, QpType, WcFlags, WcOpcode, WrOpcode};

use crate::case::Table;
use crate::end::{End, IMM, pattern};
use crate::finding::{Verdict, ensure, same, same_bytes};
use crate::op::operations;
use crate::setup::Setup;

/// Offset in the target's region at which operations access it.
const REMOTE: u64 = 4096;

/// Sizes around the limits at which implementations use another path.
const SIZES: [u32; 16] = [1, 7, 8, 9, 47, 48, 49, 63, 64, 255, 256, 1024, 1025, 4096, 65_537, 1 << 20];

/// Length of a datagram in bytes that fits every MTU.
const UD_BYTES: u32 = 1024;

pub(super) fn add(table: &mut Table) {
    for (qp_type, op) in operations() {
        if op.is_atomic() {
            continue;
        }
        let setup = Setup::new(qp_type);
        let large = Setup { mr_len: 2 << 20, ..setup };
        table.op_case(large, op, "moves-exact-bytes", "IBA 9.4; ibv_post_send(3)", exact);
        table.op_case(setup, op, "zero-length", "IBA 9.4; ibv_post_send(3)", zero);
        table.op_case(setup, op, "completion-fields", "IBA 11.4.2.1; ibv_poll_cq(3)", fields);
    }
}

/// Executes one operation between filled surroundings, and waits for the completions of both ends.
fn once(a: &mut End, b: &mut End, op: WrOpcode, len: u32) -> Verdict {
    let seed = u64::from(len) + 1;
    let (from, around) = (pattern(len, seed), 64);
    let grh = b.grh_bytes();
    let window = grh + len + 2 * around;
    let (source, sink): (&mut End, &mut End) =
        if op.returns_data() { (&mut *b, &mut *a) } else { (&mut *a, &mut *b) };
    // The initiator uses offset 0, the target offset REMOTE, where receives are placed as well.
    let (source_at, sink_at) = if op.returns_data() { (REMOTE, 0) } else { (0, REMOTE) };
    source.put(source_at, &from)?;
    let sink_from = sink_at.saturating_sub(u64::from(around) + u64::from(grh));
    sink.put(sink_from, &vec![0x5A; window as usize])?;
    b.recv_for(op, seed, REMOTE, if op.is_one_sided() { 0 } else { len })?;
    a.complete(a.request(op, seed, b, len, REMOTE))?;
    if op.consumes_receive() {
        let wc = b.expect_wc(seed)?;
        same("byte_len at the target", wc.byte_len, grh + len)?;
    }
    b.let_arrive(op);
    let sink = if op.returns_data() { a } else { b };
    same_bytes("the destination", &sink.get(sink_at, len)?, &from)?;
    same_bytes("after the destination", &sink.get(sink_at + u64::from(len), around)?, &[0x5A; 64])?;
    if sink_at == 0 {
        return Ok(());
    }
    same_bytes("before the destination", &sink.get(sink_from, around)?, &[0x5A; 64])
}

fn exact(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    let len_max = if a.setup.qp_type == QpType::Ud { UD_BYTES } else { u32::MAX };
    SIZES.into_iter().filter(|len| *len <= len_max).try_for_each(|len| once(a, b, op, len))
}

fn zero(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    once(a, b, op, 0)?;
    // A request without elements has zero length as well.
    b.recv_for(op, 2, REMOTE, 0)?;
    let mut request = a.request(op, 2, b, 0, REMOTE);
    request.sges.clear();
    a.post(request)?;
    a.expect_ok(2)?;
    b.expect_received(op, 2)?;
    same("state of the target", b.state(b.qp)?, QpState::Rts)
}

fn fields(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    b.recv_for(op, 0xFFFF_FFFF_FFFF_FFF0, REMOTE, 100)?;
    a.post(a.request(op, 0xDEAD_BEEF_0000_0001, b, 100, 0))?;
    let wc = a.expect_wc(0xDEAD_BEEF_0000_0001)?;
    same("opcode at the initiator", wc.opcode, op.wc_opcode().unwrap())?;
    if op.returns_data() {
        same("byte_len at the initiator", wc.byte_len, 100)?;
    }
    if !op.consumes_receive() {
        return b.expect_quiet();
    }
    let wc = b.expect_wc(0xFFFF_FFFF_FFFF_FFF0)?;
    let opcode = if op == WrOpcode::WRITE_WITH_IMM { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV };
    same("opcode, byte_len at the target", (wc.opcode, wc.byte_len), (opcode, b.grh_bytes() + 100))?;
    same("immediate data at the target", wc.imm(), op.has_imm().then_some(IMM))?;
    if b.setup.qp_type == QpType::Ud {
        same("src_qp", wc.src_qp, a.qp.qpn)?;
        ensure(wc.wc_flags.contains(WcFlags::GRH), || "the completion does not report the GRH".into())?;
    }
    Ok(())
}
