//! Remote access: permissions, bounds and keys, exactly.

use farcall_verbs::{Access, AsyncEventKind, QpState, QpType, WcStatus};

use crate::case::Table;
use crate::finding::{Verdict, same, same_bytes};
use crate::op::{ALL_OPS, Op, transport_name};
use crate::peer::{Peer, join};
use crate::setup::{ALL_ACCESS, Setup};

const SOURCE: &str = "IBA 9.7.4.1, 10.6.3, 11.6.2";
const LEN: u64 = 64 << 10;

/// A wrong key: what it is, and the key of it.
type WrongKey = (&'static str, fn(&mut Peer) -> Verdict<(u64, u32)>);

pub(super) fn add(table: &mut Table) {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for op in ALL_OPS.into_iter().filter(|op| op.is_of(qp_type) && op.is_one_sided()) {
            permissions(table, qp_type, op);
            bounds(table, qp_type, op);
            keys(table, qp_type, op);
        }
    }
}

/// The permission an operation needs at the target.
fn needed(op: Op) -> Access {
    match op {
        Op::Read => Access::REMOTE_READ,
        Op::CmpSwap | Op::FetchAdd => Access::REMOTE_ATOMIC,
        _ => Access::REMOTE_WRITE,
    }
}

/// How a request that is not allowed must end.
#[derive(Clone, Copy)]
struct Wrong {
    qp_type: QpType,
    op: Op,
    /// Over RC, what the initiator is told.
    status: WcStatus,
}

impl Wrong {
    fn key(qp_type: QpType, op: Op) -> Self {
        Self { qp_type, op, status: WcStatus::REM_ACCESS_ERR }
    }

    /// Tries `len` bytes at an address; nobody's memory may change. Over RC both ends fail; over UC the request
    /// vanishes (IBA 9.8.2).
    fn refused_at(self, a: &mut Peer, b: &mut Peer, addr: u64, len: u32, rkey: u32) -> Verdict {
        let Self { qp_type, op, .. } = self;
        b.put(0, &vec![0x5A; LEN as usize])?;
        a.put(0, &[0x33; 64])?;
        if op.consumes_receive() {
            b.recv(70, 0, 0)?;
        }
        let request = op.request_from(7, vec![a.piece(0, len)], a, b, addr, rkey);
        a.post(request)?;
        if qp_type == QpType::Uc {
            a.expect_ok(7)?;
            b.expect_quiet()?;
            same("state of the target", b.state(b.qp)?, QpState::Rts)?;
        } else {
            a.expect(7, self.status)?;
            a.expect_state(a.qp, QpState::Err)?;
            b.expect_state(b.qp, QpState::Err)?;
            if op.consumes_receive() {
                b.expect(70, WcStatus::WR_FLUSH_ERR)?;
            }
        }
        same_bytes("the target's region", &b.get(0, LEN as u32)?, &vec![0x5A; LEN as usize])?;
        same_bytes("the initiator's buffer", &a.get(0, 64)?, &[0x33; 64])
    }
}

fn permissions(table: &mut Table, qp_type: QpType, op: Op) {
    let name = |what: &str| format!("{}/{}/remote-access/{what}", transport_name(qp_type), op.name());
    table
        .add(name("no-permission-of-region"), SOURCE, move |a, b| {
            join(a, b, &Setup { mr_access: ALL_ACCESS - needed(op), ..Setup::new(qp_type) })?;
            Wrong::key(qp_type, op).refused_at(a, b, b.mr.addr, 8, b.mr.rkey)
        })
        .needs(qp_type, op.caps());
    let of_qp =
        "IBA 11.6.2: Remote Invalid Request Error, the operation is not supported by this receive queue";
    table
        .add(name("no-permission-of-queue-pair"), of_qp, move |a, b| {
            join(a, b, &Setup { qp_access: ALL_ACCESS - needed(op), ..Setup::new(qp_type) })?;
            let wrong = Wrong { status: WcStatus::REM_INV_REQ_ERR, ..Wrong::key(qp_type, op) };
            wrong.refused_at(a, b, b.mr.addr, 8, b.mr.rkey)
        })
        .needs(qp_type, op.caps());
    if qp_type == QpType::Rc {
        told(table, op);
    }
    table
        .add(name("no-other-permission-is-needed"), SOURCE, move |a, b| {
            let access = needed(op) | Access::LOCAL_WRITE;
            join(a, b, &Setup { mr_access: access, qp_access: needed(op), ..Setup::new(qp_type) })?;
            succeeds(a, b, op, 0, 8)
        })
        .needs(qp_type, op.caps());
}

/// The target's owner is told by an asynchronous event why its queue pair failed.
fn told(table: &mut Table, op: Op) {
    let less = ALL_ACCESS - needed(op);
    let cases = [
        ("region", AsyncEventKind::QpAccessErr, Setup { mr_access: less, ..Setup::rc() }),
        ("queue-pair", AsyncEventKind::QpReqErr, Setup { qp_access: less, ..Setup::rc() }),
    ];
    for (what, event, setup) in cases {
        table
            .add(
                format!("rc/{}/remote-access/no-permission-of-{what}-is-told", op.name()),
                "IBA 11.6.3.1; ibv_get_async_event(3)",
                move |a, b| {
                    join(a, b, &setup)?;
                    if op.consumes_receive() {
                        b.recv(70, 0, 0)?;
                    }
                    a.post(op.request(7, a, b, 8, 0))?;
                    same("success", a.wait()?.status.is_success(), false)?;
                    b.expect_async(event, b.qp.qpn)
                },
            )
            .needs(QpType::Rc, op.caps());
    }
}

fn succeeds(a: &mut Peer, b: &mut Peer, op: Op, offset: u64, len: u32) -> Verdict {
    if op.consumes_receive() {
        b.recv(1, 0, 0)?;
    }
    a.post(op.request(1, a, b, len, offset))?;
    a.expect_ok(1)?;
    if op.consumes_receive() {
        b.expect_ok(1)?;
    }
    Ok(())
}

fn bounds(table: &mut Table, qp_type: QpType, op: Op) {
    let name = |what: &str| format!("{}/{}/bounds/{what}", transport_name(qp_type), op.name());
    table
        .add(name("first-and-last-byte-are-inside"), SOURCE, move |a, b| {
            join(a, b, &Setup::new(qp_type))?;
            let len = if op.is_atomic() { 8 } else { 16 };
            succeeds(a, b, op, 0, len)?;
            succeeds(a, b, op, b.mr.len - u64::from(len), len)?;
            if !op.is_atomic() {
                succeeds(a, b, op, b.mr.len - 1, 1)?;
            }
            Ok(())
        })
        .needs(qp_type, op.caps());
    // Relative to the region's start and end; atomics stay aligned.
    type Where = (&'static str, fn(&Peer) -> u64, u32);
    let outside: [Where; 7] = [
        ("before", |b| b.mr.addr - 8, 8),
        ("over-the-start", |b| b.mr.addr - 8, 16),
        ("after", |b| b.mr.addr + b.mr.len, 8),
        ("over-the-end", |b| b.mr.addr + b.mr.len - 8, 16),
        ("address-zero", |_| 0, 8),
        ("highest-address", |_| u64::MAX - 7, 8),
        ("wraps-around", |_| u64::MAX - 7, 64),
    ];
    for (what, addr, len) in outside {
        if op.is_atomic() && len != 8 {
            continue;
        }
        table
            .add(name(what), SOURCE, move |a, b| {
                join(a, b, &Setup::new(qp_type))?;
                Wrong::key(qp_type, op).refused_at(a, b, addr(b), len, b.mr.rkey)
            })
            .needs(qp_type, op.caps());
    }
}

fn keys(table: &mut Table, qp_type: QpType, op: Op) {
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
        let name = format!("{}/{}/keys/{what}", transport_name(qp_type), op.name());
        table
            .add(name, SOURCE, move |a, b| {
                join(a, b, &Setup::new(qp_type))?;
                let (addr, rkey) = key(b)?;
                Wrong::key(qp_type, op).refused_at(a, b, addr, 8, rkey)
            })
            .needs(qp_type, op.caps());
    }
    let name = |what: &str| format!("{}/{}/keys/{what}", transport_name(qp_type), op.name());
    table
        .add(name("deregistered-after-use"), SOURCE, move |a, b| stale(a, b, qp_type, op))
        .needs(qp_type, op.caps());
    if !op.is_atomic() {
        table
            .add(name("not-looked-at-for-zero-length"), "IBA 9.7.4.1.5", move |a, b| {
                join(a, b, &Setup::new(qp_type))?;
                if op.consumes_receive() {
                    b.recv(1, 0, 0)?;
                }
                let mut request = op.request_from(1, Vec::new(), a, b, 0, u32::MAX);
                request.pieces = vec![a.piece(0, 0)];
                a.post(request)?;
                a.expect_ok(1)?;
                if op.consumes_receive() {
                    b.expect_ok(1)?;
                }
                same("state of the target", b.state(b.qp)?, QpState::Rts)
            })
            .needs(qp_type, op.caps());
    }
}

/// The initiator may have kept what it was granted; it must not use it after deregistration, nor reach what takes
/// the place.
fn stale(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    join(a, b, &Setup::new(qp_type))?;
    let mut old = b.new_mr(b.pd, 4096, ALL_ACCESS)?;
    for round in 0..20 {
        // Twice, so that whatever is kept for repeated requests is kept.
        for id in 0..2 {
            if op.consumes_receive() {
                b.recv(id, 0, 0)?;
            }
            a.post(op.request_from(id, vec![a.piece(0, 8)], a, b, old.addr, old.rkey))?;
            a.expect_ok(id)?;
            if op.consumes_receive() {
                b.expect_ok(id)?;
            }
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
    Wrong::key(qp_type, op).refused_at(a, b, addr, 8, rkey)?;
    same_bytes("the region that came after", &b.get_in(next, 0, 4096)?, &[0; 4096])
}
