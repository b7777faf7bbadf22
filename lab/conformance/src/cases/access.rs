//! Remote access: exact checks of permissions, bounds and keys.

use farcall_verbs::{Access, AsyncEventKind, QpState, QpType, WcStatus, WrOpcode};

use crate::case::Table;
use crate::end::End;
use crate::finding::{Verdict, same, same_bytes};
use crate::op::{ALL_OPS, Operation};
use crate::setup::{ALL_ACCESS, Setup};

const SOURCE: &str = "IBA 9.7.4.1, 10.6.3, 11.6.2";
const LEN: u64 = 64 << 10;

/// A wrong key: its name, and a function that returns an address and the key.
type WrongKey = (&'static str, fn(&mut End) -> Verdict<(u64, u32)>);

pub(super) fn add(table: &mut Table) {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for op in ALL_OPS.into_iter().filter(|op| op.belongs_to(qp_type) && op.is_one_sided()) {
            permissions(table, qp_type, op);
            bounds(table, qp_type, op);
            keys(table, qp_type, op);
        }
    }
}

/// Returns the permission that an operation needs at the target.
fn needed(op: WrOpcode) -> Access {
    match op {
        WrOpcode::READ => Access::REMOTE_READ,
        WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => Access::REMOTE_ATOMIC,
        _ => Access::REMOTE_WRITE,
    }
}

/// Executes the operation on `len` bytes at an address that it may not access; the memory of neither end may change.
/// Over RC both ends enter the error state, and the initiator gets a completion with `status`. Over UC the target
/// drops the request silently (IBA 9.8.2).
fn refused_at(
    a: &mut End,
    b: &mut End,
    op: WrOpcode,
    status: WcStatus,
    (addr, len, rkey): (u64, u32, u32),
) -> Verdict {
    b.put(0, &vec![0x5A; LEN as usize])?;
    a.put(0, &[0x33; 64])?;
    b.recv_for(op, 70, 0, 0)?;
    a.post(a.request_from(op, 7, vec![a.sge(0, len)], b, addr, rkey))?;
    if a.setup.qp_type == QpType::Uc {
        a.expect_ok(7)?;
        b.expect_quiet()?;
        same("state of the target", b.state(b.qp)?, QpState::Rts)?;
    } else {
        a.expect(7, status)?;
        a.expect_state(a.qp, QpState::Err)?;
        b.expect_state(b.qp, QpState::Err)?;
        if op.consumes_receive() {
            // The request has consumed a receive if only its access was refused.
            let is_consumed = status == WcStatus::REM_ACCESS_ERR;
            b.expect(70, if is_consumed { WcStatus::LOC_ACCESS_ERR } else { WcStatus::WR_FLUSH_ERR })?;
        }
    }
    same_bytes("the target's region", &b.get(0, LEN as u32)?, &vec![0x5A; LEN as usize])?;
    same_bytes("the initiator's buffer", &a.get(0, 64)?, &[0x33; 64])
}

fn permissions(table: &mut Table, qp_type: QpType, op: WrOpcode) {
    let (setup, less) = (Setup::new(qp_type), ALL_ACCESS - needed(op));
    let (of_region, of_pair) = (Setup { mr_access: less, ..setup }, Setup { qp_access: less, ..setup });
    table.op_case(of_region, op, "remote-access/no-permission-of-region", SOURCE, |a, b, op| {
        refused_at(a, b, op, WcStatus::REM_ACCESS_ERR, (b.mr.addr, 8, b.mr.rkey))
    });
    let source =
        "IBA 11.6.2: Remote Invalid Request Error, the operation is not supported by this receive queue";
    table.op_case(of_pair, op, "remote-access/no-permission-of-queue-pair", source, |a, b, op| {
        refused_at(a, b, op, WcStatus::REM_INV_REQ_ERR, (b.mr.addr, 8, b.mr.rkey))
    });
    if qp_type == QpType::Rc {
        told(table, "region", of_region, op, AsyncEventKind::QpAccessErr);
        told(table, "queue-pair", of_pair, op, AsyncEventKind::QpReqErr);
    }
    let least = Setup { mr_access: needed(op) | Access::LOCAL_WRITE, qp_access: needed(op), ..setup };
    table.op_case(least, op, "remote-access/no-other-permission-is-needed", SOURCE, |a, b, op| {
        succeeds(a, b, op, 0, 8)
    });
}

/// Adds a case in which an asynchronous event must report to the target's process why its queue pair failed.
fn told(table: &mut Table, what: &str, setup: Setup, op: WrOpcode, event: AsyncEventKind) {
    let what = format!("remote-access/no-permission-of-{what}-is-told");
    table.op_case(setup, op, &what, "IBA 11.6.3.1; ibv_get_async_event(3)", move |a, b, op| {
        b.recv_for(op, 70, 0, 0)?;
        a.post(a.request(op, 7, b, 8, 0))?;
        same("success", a.wait()?.status.is_success(), false)?;
        b.expect_async(event, b.qp.qpn)
    });
}

fn succeeds(a: &mut End, b: &mut End, op: WrOpcode, offset: u64, len: u32) -> Verdict {
    b.recv_for(op, 1, 0, 0)?;
    a.complete(a.request(op, 1, b, len, offset))?;
    b.expect_received(op, 1)
}

fn bounds(table: &mut Table, qp_type: QpType, op: WrOpcode) {
    table.op_case(
        Setup::new(qp_type),
        op,
        "bounds/first-and-last-byte-are-inside",
        SOURCE,
        move |a, b, op| {
            let len = if op.is_atomic() { 8 } else { 16 };
            succeeds(a, b, op, 0, len)?;
            succeeds(a, b, op, b.mr.len - u64::from(len), len)?;
            if !op.is_atomic() {
                succeeds(a, b, op, b.mr.len - 1, 1)?;
            }
            Ok(())
        },
    );
    // Offsets relative to the region's start and end; atomics remain aligned.
    type Where = (&'static str, fn(&End) -> u64, u32);
    let outside: [Where; 7] = [
        ("before", |b| b.mr.addr - 8, 8),
        ("over-the-start", |b| b.mr.addr - 1, 9),
        ("after", |b| b.mr.addr + b.mr.len, 8),
        ("over-the-end", |b| b.mr.addr + b.mr.len - 8, 9),
        ("address-zero", |_| 0, 8),
        ("highest-address", |_| u64::MAX - 7, 8),
        ("wraps-around", |_| u64::MAX - 7, 64),
    ];
    for (what, addr, len) in outside {
        if op.is_atomic() && len != 8 {
            continue;
        }
        table.op_case(Setup::new(qp_type), op, &format!("bounds/{what}"), SOURCE, move |a, b, op| {
            refused_at(a, b, op, WcStatus::REM_ACCESS_ERR, (addr(b), len, b.mr.rkey))
        });
    }
}

fn keys(table: &mut Table, qp_type: QpType, op: WrOpcode) {
    let wrong: [WrongKey; 6] = [
        ("next", |b| Ok((b.mr.addr, b.mr.rkey.wrapping_add(1)))),
        ("other-index", |b| Ok((b.mr.addr, b.mr.rkey ^ 0x100))),
        ("highest", |b| Ok((b.mr.addr, u32::MAX))),
        ("other-region", |b| {
            let other = b.new_mr(b.pd, 4096, ALL_ACCESS)?;
            Ok((b.mr.addr, other.rkey))
        }),
        ("other-domain", |b| {
            let pd = b.new_pd()?;
            let other = b.new_mr(pd, 4096, ALL_ACCESS)?;
            Ok((other.addr, other.rkey))
        }),
        ("deregistered", |b| {
            let old = b.new_mr(b.pd, 4096, ALL_ACCESS)?;
            same("revoked", b.dereg(old)?, true)?;
            Ok((old.addr, old.rkey))
        }),
    ];
    for (what, key) in wrong {
        table.op_case(Setup::new(qp_type), op, &format!("keys/{what}"), SOURCE, move |a, b, op| {
            let (addr, rkey) = key(b)?;
            refused_at(a, b, op, WcStatus::REM_ACCESS_ERR, (addr, 8, rkey))
        });
    }
    table.op_case(Setup::new(qp_type), op, "keys/deregistered-after-use", SOURCE, stale);
    if !op.is_atomic() {
        table.op_case(
            Setup::new(qp_type),
            op,
            "keys/not-looked-at-for-zero-length",
            "IBA 9.7.4.1.5",
            move |a, b, op| {
                b.recv_for(op, 1, 0, 0)?;
                let mut request = a.request_from(op, 1, Vec::new(), b, 0, u32::MAX);
                request.sges = vec![a.sge(0, 0)];
                a.post(request)?;
                a.expect_ok(1)?;
                b.expect_received(op, 1)?;
                same("state of the target", b.state(b.qp)?, QpState::Rts)
            },
        );
    }
}

/// The initiator may have cached the grant of the region. It must not use the grant after deregistration, nor access
/// memory that reuses the address.
fn stale(a: &mut End, b: &mut End, op: WrOpcode) -> Verdict {
    let mut old = b.new_mr(b.pd, 4096, ALL_ACCESS)?;
    for round in 0..20 {
        // Twice, so that the grant is cached if the provider caches it for repeated requests.
        for id in 0..2 {
            b.recv_for(op, id, 0, 0)?;
            a.complete(a.request_from(op, id, vec![a.sge(0, 8)], b, old.addr, old.rkey))?;
            b.expect_received(op, id)?;
        }
        if round == 19 {
            break;
        }
        let (addr, rkey) = (old.addr, old.rkey);
        same("revoked", b.dereg(old)?, true)?;
        old = b.new_mr(b.pd, 4096, ALL_ACCESS)?;
        same("the same key for the same address at once", (old.addr, old.rkey) == (addr, rkey), false)?;
    }
    let (addr, rkey) = (old.addr, old.rkey);
    same("revoked", b.dereg(old)?, true)?;
    let next = b.new_mr(b.pd, 4096, ALL_ACCESS)?;
    refused_at(a, b, op, WcStatus::REM_ACCESS_ERR, (addr, 8, rkey))?;
    same_bytes("the region that came after", &b.get_in(next, 0, 4096)?, &[0; 4096])
}
