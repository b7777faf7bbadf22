//! Registering memory of every kind.

use farcall_verbs::{Access, QpState, WcStatus, WrOpcode};

use crate::case::{Feature, Table};
use crate::end::{End, equip, pattern};
use crate::executor::{Memory, Mr};
use crate::finding::{Verdict, refused, same, same_bytes};
use crate::op::{Operation, READ, WRITE};
use crate::setup::{ALL_ACCESS, Setup};

const SOURCE: &str = "IBA 10.6.3; ibv_reg_mr(3)";
const LEN: u64 = 20_000;

pub(super) fn add(table: &mut Table) {
    for (what, memory) in [
        ("heap", Memory::Heap),
        ("stack", Memory::Stack),
        ("shared-file", Memory::SharedFile),
        ("private-file", Memory::PrivateFile),
        ("huge-pages", Memory::HugePages),
    ] {
        for op in [
            WrOpcode::WRITE,
            WrOpcode::WRITE_WITH_IMM,
            WrOpcode::READ,
            WrOpcode::ATOMIC_FETCH_AND_ADD,
            WrOpcode::ATOMIC_CMP_AND_SWP,
        ] {
            register(table, &format!("mr/{what}/target-of-{}", op.name()), memory, op, target);
        }
        for op in [WrOpcode::SEND, WrOpcode::WRITE, WrOpcode::READ] {
            register(table, &format!("mr/{what}/initiator-of-{}", op.name()), memory, op, initiator);
        }
        register(table, &format!("mr/{what}/receives"), memory, WrOpcode::SEND, receives);
        register(table, &format!("mr/{what}/no-more-after-dereg"), memory, WrOpcode::WRITE, after_dereg);
    }
    for (what, access) in [("local-write", Access::LOCAL_WRITE), ("remote-write", ALL_ACCESS)] {
        table
            .add(format!("mr/read-only-pages/{what}-refused"), SOURCE, move |a, b| {
                equip(a, b, &Setup::rc())?;
                let region = a.register(Memory::ReadOnly, LEN, access);
                let refusal = refused("pages without write permission", region)?;
                if refusal.reason == crate::Reason::Unsupported { Err(refusal.into()) } else { Ok(()) }
            })
            .optional(Feature::RegisterMemory);
    }
    table
        .rc("mr/read-only-pages/remote-read", READ, SOURCE, |a, b| {
            let mr = b.register(Memory::ReadOnly, LEN, Access::REMOTE_READ)?;
            a.put(0, &[0xEE; 64])?;
            a.complete(a.request_from(WrOpcode::READ, 1, vec![a.sge(0, 64)], b, mr.addr, mr.rkey))?;
            same_bytes("what was read", &a.get(0, 64)?, &[0; 64])
        })
        .optional(Feature::RegisterMemory);
    table
        .rc("mr/overlapping-regions", WRITE | READ, SOURCE, |a, b| {
            // The same memory with all permissions, a part of it for READs only, and another part of which the first
            // region ends before this one does.
            let whole = b.register(Memory::Heap, LEN, ALL_ACCESS)?;
            let part = b.register_part(whole, 1_000, 10_000, Access::REMOTE_READ)?;
            let other = b.register_part(whole, 5_000, 15_000, ALL_ACCESS)?;
            same("one key for two regions", whole.rkey == part.rkey || part.rkey == other.rkey, false)?;
            same("the address of a part", part.addr, whole.addr + 1_000)?;
            // A change through one region is visible in the others.
            write_to(a, b, whole, 6_000)?;
            let bytes = pattern(200, 1);
            same_bytes("the part", &b.get_in(part, 5_000, 200)?, &bytes)?;
            same_bytes("the other part", &b.get_in(other, 1_000, 200)?, &bytes)?;
            a.put(0, &[0; 200])?;
            let sges = vec![a.sge(0, 200)];
            a.complete(a.request_from(WrOpcode::READ, 2, sges, b, part.addr + 5_000, part.rkey))?;
            same_bytes("what was read through the part", &a.get(0, 200)?, &bytes)?;
            // The end of one region leaves the others.
            b.dereg(whole)?;
            write_to(a, b, other, 100)?;
            // A permission of one region is not one of another region of the same memory.
            b.put_in(part, 0, &[0x5A; 200])?;
            a.complete_as(
                a.request_from(WrOpcode::WRITE, 3, vec![a.sge(0, 200)], b, part.addr, part.rkey),
                WcStatus::REM_ACCESS_ERR,
            )?;
            same_bytes("memory for READs only", &b.get_in(part, 0, 200)?, &[0x5A; 200])
        })
        .optional(Feature::RegisterMemory);
}

type Body = fn(&mut End, &mut End, Memory, WrOpcode) -> Verdict;

fn register(table: &mut Table, name: &str, memory: Memory, op: WrOpcode, body: Body) {
    let case = table.rc(name, op.needed_caps(), SOURCE, move |a, b| body(a, b, memory, op));
    case.optional(Feature::RegisterMemory);
    if memory == Memory::HugePages {
        case.optional(Feature::HugePages);
    }
}

/// Returns an aligned offset near the end of a region.
fn near_end(mr: Mr) -> u64 {
    (mr.addr + mr.len - 512).next_multiple_of(8) - mr.addr
}

fn write_to(a: &mut End, b: &mut End, mr: Mr, offset: u64) -> Verdict {
    let bytes = pattern(200, 1);
    a.put(0, &bytes)?;
    a.complete(a.request_from(WrOpcode::WRITE, 1, vec![a.sge(0, 200)], b, mr.addr + offset, mr.rkey))?;
    same_bytes("the region", &b.get_in(mr, offset, 200)?, &bytes)
}

fn target(a: &mut End, b: &mut End, memory: Memory, op: WrOpcode) -> Verdict {
    let mr = b.register(memory, LEN, ALL_ACCESS)?;
    let at = near_end(mr);
    let len = if op.is_atomic() { 8 } else { 200 };
    b.put_in(mr, at, &vec![0; 256])?;
    let bytes = pattern(len, 1);
    if op == WrOpcode::READ {
        b.put_in(mr, at, &bytes)?;
    } else {
        a.put(0, &bytes)?;
    }
    b.recv_for(op, 1, 0, 0)?;
    a.complete(a.request_from(op, 1, vec![a.sge(0, len)], b, mr.addr + at, mr.rkey))?;
    if op.is_atomic() {
        same("the original value", a.word(0)?, 0)?;
        return same_bytes("the word", &b.get_in(mr, at, 16)?, &1_u128.to_le_bytes());
    }
    let seen = if op == WrOpcode::READ { a.get(0, len)? } else { b.get_in(mr, at, len)? };
    same_bytes("the destination", &seen, &bytes)
}

fn initiator(a: &mut End, b: &mut End, memory: Memory, op: WrOpcode) -> Verdict {
    let mr = a.register(memory, LEN, ALL_ACCESS)?;
    let at = near_end(mr);
    let bytes = pattern(200, 2);
    if op == WrOpcode::READ {
        b.put(0, &bytes)?;
    } else {
        a.put_in(mr, at, &bytes)?;
    }
    b.recv_for(op, 1, 0, 200)?;
    a.complete(a.request_from(op, 1, vec![mr.sge(at, 200)], b, b.mr.addr, b.mr.rkey))?;
    b.expect_received(op, 1)?;
    let seen = if op == WrOpcode::READ { a.get_in(mr, at, 200)? } else { b.get(0, 200)? };
    same_bytes("the destination", &seen, &bytes)
}

fn receives(a: &mut End, b: &mut End, memory: Memory, _: WrOpcode) -> Verdict {
    let mr = b.register(memory, LEN, Access::LOCAL_WRITE)?;
    let at = near_end(mr) - 10_000;
    // A small message, and one that takes the path of large ones.
    for (id, len) in [(1, 8), (2, 10_000)] {
        let bytes = pattern(len, id);
        a.put(0, &bytes)?;
        b.recv_into(id, vec![mr.sge(at, 10_000)])?;
        a.complete(a.request(WrOpcode::SEND, id, b, len, 0))?;
        b.expect_ok(id)?;
        same_bytes("the message", &b.get_in(mr, at, len)?, &bytes)?;
    }
    Ok(())
}

fn after_dereg(a: &mut End, b: &mut End, memory: Memory, op: WrOpcode) -> Verdict {
    let mr = b.register(memory, LEN, ALL_ACCESS)?;
    write_to(a, b, mr, 8)?;
    b.dereg(mr)?;
    b.put_in(mr, 8, &[0x5A; 200])?;
    a.complete_as(
        a.request_from(op, 2, vec![a.sge(0, 200)], b, mr.addr + 8, mr.rkey),
        WcStatus::REM_ACCESS_ERR,
    )?;
    a.expect_state(a.qp, QpState::Err)?;
    same_bytes("the memory, which is the program's again", &b.get_in(mr, 8, 200)?, &[0x5A; 200])
}
