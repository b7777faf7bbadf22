//! Registering memory of every origin.

use farcall_verbs::{Access, OpCaps, QpState, QpType};

use crate::case::{Feature, Table};
use crate::finding::{Verdict, refused, same, same_bytes};
use crate::op::Op;
use crate::peer::{Peer, join, pattern};
use crate::setup::{ALL_ACCESS, Setup};
use crate::side::{Memory, Mr, Piece};

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
        for op in [Op::Write, Op::WriteImm, Op::Read, Op::FetchAdd, Op::CmpSwap] {
            register(table, &format!("mr/{what}/target-of-{}", op.name()), memory, op, target);
        }
        for op in [Op::Send, Op::Write, Op::Read] {
            register(table, &format!("mr/{what}/initiator-of-{}", op.name()), memory, op, initiator);
        }
        register(table, &format!("mr/{what}/receives"), memory, Op::Send, receives);
        register(table, &format!("mr/{what}/no-more-after-dereg"), memory, Op::Write, after_dereg);
    }
    for (what, access) in [("local-write", Access::LOCAL_WRITE), ("remote-write", ALL_ACCESS)] {
        table
            .add(format!("mr/read-only-pages/{what}-refused"), SOURCE, move |a, b| {
                b.equip(&Setup::rc())?;
                a.equip(&Setup::rc())?;
                let refusal =
                    refused("pages without write permission", a.register(Memory::ReadOnly, LEN, access))?;
                if refusal.reason == crate::Reason::Unsupported { Err(refusal.into()) } else { Ok(()) }
            })
            .optional(Feature::RegisterMemory);
    }
    table
        .add("mr/read-only-pages/remote-read", SOURCE, |a, b| {
            join(a, b, &Setup::rc())?;
            let mr = b.register(Memory::ReadOnly, LEN, Access::REMOTE_READ)?;
            a.put(0, &[0xEE; 64])?;
            a.post(Op::Read.request_from(1, vec![a.piece(0, 64)], a, b, mr.addr, mr.rkey))?;
            a.expect_ok(1)?;
            same_bytes("what was read", &a.get(0, 64)?, &[0; 64])
        })
        .needs(QpType::Rc, OpCaps::READ)
        .optional(Feature::RegisterMemory);
    table
        .add("mr/overlapping-regions", SOURCE, |a, b| {
            join(a, b, &Setup::rc())?;
            // The same provider memory under a narrower key is not ours to make; two regions of one kind are.
            let (one, two) =
                (b.register(Memory::Heap, LEN, ALL_ACCESS)?, b.register(Memory::Heap, LEN, ALL_ACCESS)?);
            same("one key for two regions", one.rkey == two.rkey, false)?;
            b.dereg(one)?;
            write_to(a, b, two, 100)
        })
        .needs(QpType::Rc, OpCaps::WRITE)
        .optional(Feature::RegisterMemory);
}

type Body = fn(&mut Peer, &mut Peer, Memory, Op) -> Verdict;

fn register(table: &mut Table, name: &str, memory: Memory, op: Op, body: Body) {
    let case = table.add(name, SOURCE, move |a, b| {
        join(a, b, &Setup::rc())?;
        body(a, b, memory, op)
    });
    case.needs(QpType::Rc, op.caps()).optional(Feature::RegisterMemory);
    if memory == Memory::HugePages {
        case.optional(Feature::HugePages);
    }
}

/// An aligned place near the end of a region.
fn near_end(mr: Mr) -> u64 {
    (mr.addr + mr.len - 512).next_multiple_of(8) - mr.addr
}

fn write_to(a: &mut Peer, b: &mut Peer, mr: Mr, offset: u64) -> Verdict {
    let bytes = pattern(200, 1);
    a.put(0, &bytes)?;
    a.post(Op::Write.request_from(1, vec![a.piece(0, 200)], a, b, mr.addr + offset, mr.rkey))?;
    a.expect_ok(1)?;
    same_bytes("the region", &b.get_in(mr, offset, 200)?, &bytes)
}

fn target(a: &mut Peer, b: &mut Peer, memory: Memory, op: Op) -> Verdict {
    let mr = b.register(memory, LEN, ALL_ACCESS)?;
    let at = near_end(mr);
    let len = if op.is_atomic() { 8 } else { 200 };
    b.put_in(mr, at, &vec![0; 256])?;
    let bytes = pattern(len, 1);
    if op == Op::Read {
        b.put_in(mr, at, &bytes)?;
    } else {
        a.put(0, &bytes)?;
    }
    if op.consumes_receive() {
        b.recv(1, 0, 0)?;
    }
    a.post(op.request_from(1, vec![a.piece(0, len)], a, b, mr.addr + at, mr.rkey))?;
    a.expect_ok(1)?;
    if op.is_atomic() {
        same("the original value", a.word(0)?, 0)?;
        return same_bytes(
            "the word",
            &b.get_in(mr, at, 16)?,
            &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        );
    }
    let seen = if op == Op::Read { a.get(0, len)? } else { b.get_in(mr, at, len)? };
    same_bytes("the destination", &seen, &bytes)
}

fn initiator(a: &mut Peer, b: &mut Peer, memory: Memory, op: Op) -> Verdict {
    let mr = a.register(memory, LEN, ALL_ACCESS)?;
    let at = near_end(mr);
    let bytes = pattern(200, 2);
    if op == Op::Read {
        b.put(0, &bytes)?;
    } else {
        a.put_in(mr, at, &bytes)?;
    }
    if op.consumes_receive() {
        b.recv(1, 0, 200)?;
    }
    let piece = Piece { addr: mr.addr + at, len: 200, lkey: mr.lkey };
    a.post(op.request_from(1, vec![piece], a, b, b.mr.addr, b.mr.rkey))?;
    a.expect_ok(1)?;
    if op.consumes_receive() {
        b.expect_ok(1)?;
    }
    let seen = if op == Op::Read { a.get_in(mr, at, 200)? } else { b.get(0, 200)? };
    same_bytes("the destination", &seen, &bytes)
}

fn receives(a: &mut Peer, b: &mut Peer, memory: Memory, _: Op) -> Verdict {
    let mr = b.register(memory, LEN, Access::LOCAL_WRITE)?;
    let at = near_end(mr) - 10_000;
    // A small message and one that large ones' way takes.
    for (id, len) in [(1, 8), (2, 10_000)] {
        let bytes = pattern(len, id);
        a.put(0, &bytes)?;
        b.recv_into(id, vec![Piece { addr: mr.addr + at, len: 10_000, lkey: mr.lkey }])?;
        a.post(Op::Send.request(id, a, b, len, 0))?;
        a.expect_ok(id)?;
        b.expect_ok(id)?;
        same_bytes("the message", &b.get_in(mr, at, len)?, &bytes)?;
    }
    Ok(())
}

fn after_dereg(a: &mut Peer, b: &mut Peer, memory: Memory, op: Op) -> Verdict {
    let mr = b.register(memory, LEN, ALL_ACCESS)?;
    write_to(a, b, mr, 8)?;
    b.dereg(mr)?;
    b.put_in(mr, 8, &[0x5A; 200])?;
    a.post(op.request_from(2, vec![a.piece(0, 200)], a, b, mr.addr + 8, mr.rkey))?;
    a.expect(2, farcall_verbs::WcStatus::REM_ACCESS_ERR)?;
    a.expect_state(a.qp, QpState::Err)?;
    same_bytes("the memory, which is the program's again", &b.get_in(mr, 8, 200)?, &[0x5A; 200])
}
