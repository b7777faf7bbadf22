//! Many queue pairs at one completion queue, including one that stalls.

use std::collections::BTreeSet;

use farcall_verbs::{QpCap, QpType, WcStatus};
use rustix::process::{Resource, getrlimit};

use crate::case::{Body, Table};
use crate::end::{End, another_pair, equip};
use crate::executor::Qp;
use crate::finding::{Finding, Verdict, ensure, same};
use crate::op::{SEND, WRITE};
use crate::setup::Setup;

const SOURCE: &str = "IBA 10.2.8; ibv_create_qp(3)";
/// Number of queue pairs, if the device supports that many.
const CROWD: u32 = 1000;
/// Larger number of queue pairs, if a process may have enough descriptors.
const MULTITUDE: u32 = 2000;
const QUIETEST: u64 = 3;

pub(super) fn add(table: &mut Table) {
    let mut case = |what, needs, body: Body| {
        table.add(format!("rc/crowd/{what}"), SOURCE, body).needs(QpType::Rc, needs);
    };
    case("thousands-of-pairs-on-one-queue", SEND | WRITE, thousands);
    case("a-stalled-pair-stalls-nobody-else", SEND, stalled);
    case("a-failed-pair-fails-nobody-else", SEND | WRITE, failed);
    case("sleeping-on-one-queue-for-all", SEND, sleeping);
}

/// Connects pairs, with all initiators on one completion queue and all targets on another.
fn gather(a: &mut End, b: &mut End, count: u32) -> Verdict<Vec<(Qp, Qp)>> {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let cqe = 4096.min(a.about().device.max_cqe);
    equip(a, b, &Setup { cap, cqe, mr_len: 1 << 20, ..Setup::rc() })?;
    let count = count.min(a.about().device.max_qp / 4).max(8);
    (0..count).map(|_| another_pair(a, b)).collect()
}

fn receive(b: &mut End, qp: Qp, wr_id: u64) -> Verdict {
    Ok(b.recv_on(qp.handle, wr_id, vec![b.sge(wr_id * 64, 64)])?)
}

/// Sends on all pairs except those in `but`, and expects each message once at the right pair.
fn all_send(a: &mut End, b: &mut End, pairs: &[(Qp, Qp)], but: &BTreeSet<u64>) -> Verdict {
    let mut waiting = BTreeSet::new();
    for (id, (qa, qb)) in (0_u64..).zip(pairs) {
        if !but.contains(&id) {
            receive(b, *qb, id)?;
            a.send_on(*qa, id, b)?;
            waiting.insert(id);
        }
    }
    all_complete(a, waiting.clone(), |id| pairs[id].0)?;
    all_complete(b, waiting, |id| pairs[id].1)
}

/// Expects the success of these requests, in any order, each once at its queue pair.
fn all_complete(end: &mut End, mut waiting: BTreeSet<u64>, qp: impl Fn(usize) -> Qp) -> Verdict {
    while !waiting.is_empty() {
        let wc = end.wait()?;
        let expected = (qp(wc.wr_id as usize).qpn, WcStatus::SUCCESS);
        same("qp_num, status of a request", (wc.qp_num, wc.status), expected)?;
        ensure(waiting.remove(&wc.wr_id), || format!("request {} completed twice", wc.wr_id))?;
    }
    Ok(())
}

fn thousands(a: &mut End, b: &mut End) -> Verdict {
    // A pair needs about eight descriptors, with both ends in one process.
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let pairs = gather(a, b, MULTITUDE.min(u32::try_from(descriptors / 10).unwrap_or(MULTITUDE)))?;
    for _ in 0..2 {
        all_send(a, b, &pairs, &BTreeSet::new())?;
    }
    a.expect_quiet()?;
    b.expect_quiet()
}

/// One target posts no receive. Its sender waits, and the other pairs are not affected.
fn stalled(a: &mut End, b: &mut End) -> Verdict {
    let pairs = gather(a, b, CROWD)?;
    let (qa, qb) = pairs[QUIETEST as usize];
    a.send_on(qa, QUIETEST, b)?;
    let but = BTreeSet::from([QUIETEST]);
    for _ in 0..2 {
        all_send(a, b, &pairs, &but)?;
    }
    a.expect_quiet()?;
    receive(b, qb, QUIETEST)?;
    a.expect_at(qa, QUIETEST, WcStatus::SUCCESS)?;
    b.expect_at(qb, QUIETEST, WcStatus::SUCCESS).map(drop)
}

fn failed(a: &mut End, b: &mut End) -> Verdict {
    let pairs = gather(a, b, 64)?;
    let (qa, _) = pairs[QUIETEST as usize];
    a.post_on(qa, vec![a.write_with_wrong_key(QUIETEST, b)])?;
    a.expect_at(qa, QUIETEST, WcStatus::REM_ACCESS_ERR)?;
    all_send(a, b, &pairs, &BTreeSet::from([QUIETEST]))
}

/// Messages are sent one at a time over different pairs; the target sleeps before each.
fn sleeping(a: &mut End, b: &mut End) -> Verdict {
    let pairs = gather(a, b, 200)?;
    for (id, (qa, qb)) in (0_u64..).zip(&pairs) {
        receive(b, *qb, id)?;
        b.arm(false)?;
        if let Some(wc) = b.poll()? {
            return Err(Finding::new(format!("a completion before its message: {wc:?}")));
        }
        a.send_on(*qa, id, b)?;
        b.expect_cq_event(b.cq)?;
        b.expect_at(*qb, id, WcStatus::SUCCESS)?;
        a.expect_at(*qa, id, WcStatus::SUCCESS)?;
    }
    Ok(())
}
