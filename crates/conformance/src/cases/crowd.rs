//! Many queue pairs at one completion queue, and one that stalls.

use std::collections::BTreeSet;

use farcall_verbs::{OpCaps, QpCap, QpType, WcStatus};
use rustix::process::{Resource, getrlimit};

use crate::case::Table;
use crate::finding::{Finding, Verdict, same};
use crate::op::Op;
use crate::peer::{Peer, connect};
use crate::setup::Setup;
use crate::side::{Qp, RecvRequest};

const SOURCE: &str = "IBA 10.2.8; ibv_create_qp(3)";
/// Queue pairs in a crowd, where the device has as many.
const CROWD: u32 = 1000;
/// More of them, where a process may have as many descriptors.
const MULTITUDE: u32 = 2000;
const QUIETEST: u64 = 3;

pub(super) fn add(table: &mut Table) {
    table
        .add("rc/crowd/thousands-of-pairs-on-one-queue", SOURCE, thousands)
        .needs(QpType::Rc, OpCaps::SEND | OpCaps::WRITE);
    table.add("rc/crowd/a-stalled-pair-stalls-nobody-else", SOURCE, stalled).needs(QpType::Rc, OpCaps::SEND);
    table
        .add("rc/crowd/a-failed-pair-fails-nobody-else", SOURCE, failed)
        .needs(QpType::Rc, OpCaps::SEND | OpCaps::WRITE);
    table.add("rc/crowd/sleeping-on-one-queue-for-all", SOURCE, sleeping).needs(QpType::Rc, OpCaps::SEND);
}

fn setup() -> Setup {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    Setup { cap, cqe: 4096, mr_len: 1 << 20, ..Setup::rc() }
}

/// Pairs, the initiators' on one completion queue and the targets' on one.
fn gather(a: &mut Peer, b: &mut Peer, count: u32) -> Verdict<Vec<(Qp, Qp)>> {
    let setup = Setup { cqe: 4096.min(a.about().max_cqe), ..setup() };
    a.equip(&setup)?;
    b.equip(&setup)?;
    let count = count.min(a.about().max_qp / 4).max(8);
    let mut pairs = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (qa, qb) = (a.new_qp(&a.qp_make(&setup))?, b.new_qp(&b.qp_make(&setup))?);
        connect(a, qa, b, qb, &setup)?;
        pairs.push((qa, qb));
    }
    Ok(pairs)
}

fn receive(b: &mut Peer, qp: Qp, wr_id: u64) -> Verdict {
    Ok(b.recv_on(qp.handle, vec![RecvRequest { wr_id, pieces: vec![b.piece(wr_id * 64, 64)] }])?)
}

/// Sends on all pairs but some and expects each message once at the right pair.
fn all_send(a: &mut Peer, b: &mut Peer, pairs: &[(Qp, Qp)], but: &BTreeSet<u64>) -> Verdict {
    let mut waiting = BTreeSet::new();
    for (id, (qa, qb)) in (0_u64..).zip(pairs) {
        if !but.contains(&id) {
            receive(b, *qb, id)?;
            a.post_on(*qa, vec![Op::Send.request(id, a, b, 8, 0)])?;
            waiting.insert(id);
        }
    }
    let mut sent = waiting.clone();
    while !sent.is_empty() {
        let wc = a.wait()?;
        let (qa, _) = pairs[wc.wr_id as usize];
        same("qp_num, status of a send", (wc.qp_num, wc.status), (qa.qpn, WcStatus::SUCCESS))?;
        if !sent.remove(&wc.wr_id) {
            return Err(Finding::new(format!("send {} completed twice", wc.wr_id)));
        }
    }
    while !waiting.is_empty() {
        let wc = b.wait()?;
        let (_, qb) = pairs[wc.wr_id as usize];
        same("qp_num, status of a receive", (wc.qp_num, wc.status), (qb.qpn, WcStatus::SUCCESS))?;
        if !waiting.remove(&wc.wr_id) {
            return Err(Finding::new(format!("receive {} completed twice", wc.wr_id)));
        }
    }
    Ok(())
}

fn thousands(a: &mut Peer, b: &mut Peer) -> Verdict {
    // Some eight for a pair, with both ends in one process.
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let pairs = gather(a, b, MULTITUDE.min(u32::try_from(descriptors / 10).unwrap_or(MULTITUDE)))?;
    for _ in 0..2 {
        all_send(a, b, &pairs, &BTreeSet::new())?;
    }
    a.expect_quiet()?;
    b.expect_quiet()
}

/// One target posts no receive; its sender waits, the others do not notice.
fn stalled(a: &mut Peer, b: &mut Peer) -> Verdict {
    let pairs = gather(a, b, CROWD)?;
    let (qa, qb) = pairs[QUIETEST as usize];
    a.post_on(qa, vec![Op::Send.request(QUIETEST, a, b, 8, 0)])?;
    let but = BTreeSet::from([QUIETEST]);
    for _ in 0..2 {
        all_send(a, b, &pairs, &but)?;
    }
    a.expect_quiet()?;
    receive(b, qb, QUIETEST)?;
    same("the stalled send", a.wait()?.status, WcStatus::SUCCESS)?;
    same("its receive", b.wait()?.wr_id, QUIETEST)
}

fn failed(a: &mut Peer, b: &mut Peer) -> Verdict {
    let pairs = gather(a, b, 64)?;
    let (qa, _) = pairs[QUIETEST as usize];
    let wrong = b.mr.rkey ^ 0x5A5A;
    a.post_on(qa, vec![Op::Write.request_from(QUIETEST, vec![a.piece(0, 8)], a, b, b.mr.addr, wrong)])?;
    same("the violation", a.wait()?.status, WcStatus::REM_ACCESS_ERR)?;
    all_send(a, b, &pairs, &BTreeSet::from([QUIETEST]))
}

/// Messages come one at a time over different pairs; the target sleeps each time.
fn sleeping(a: &mut Peer, b: &mut Peer) -> Verdict {
    let pairs = gather(a, b, 200)?;
    for (id, (qa, qb)) in (0_u64..).zip(&pairs) {
        receive(b, *qb, id)?;
        b.arm(false)?;
        if let Some(wc) = b.poll()? {
            return Err(Finding::new(format!("a completion before its message: {wc:?}")));
        }
        a.post_on(*qa, vec![Op::Send.request(id, a, b, 8, 0)])?;
        b.expect_cq_event(b.cq)?;
        same("the receive", b.wait()?.wr_id, id)?;
        same("the send", a.wait()?.status, WcStatus::SUCCESS)?;
    }
    Ok(())
}
