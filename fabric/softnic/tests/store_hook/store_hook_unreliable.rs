//! Like `store_hook`, over UC and UD: a process is killed, or stopped, before its n-th store to shared memory, for
//! every n. The only effect on others is that its messages stop.

use std::time::Instant;

use crate::store_step::store_step;
use crate::support::apart::is_alone;
use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::unreliable::Side;
use crate::support::*;
use farcall_softnic::arm_store_hook;
use farcall_verbs::{QpAttr, QpState, QpType, Revoked};

/// The process that exits: all operations, in both roles.
fn victim(line: &mut Line, qp_type: QpType, nth: u64, signal: i32) {
    let mut side = Side::new(qp_type);
    tell(line, &side.end);
    let Some(to) = learn(line) else { return };
    assert!(arm_store_hook(nth, signal));
    assert!(side.connect(to));
    for _ in 0..6 {
        side.send_to(to.qpn);
    }
    side.sleep_for(3);
    if qp_type == QpType::Ud {
        // To itself, and to no queue pair.
        side.send_to(side.end.qp.qp_num());
        side.send_to(1);
        side.sleep_for(1);
    }
    side.fail();
    side.end.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    side.end.init();
    drop(side);
}

#[test]
fn child_entry() {
    if let Some((role, args, mut line)) = role() {
        let qp_type = if role == "uc" { QpType::Uc } else { QpType::Ud };
        victim(&mut line, qp_type, args[0], args[1] as i32);
        line.say([0xD_0E, 0, 0, 0]);
        line.hear();
        std::process::exit(0);
    }
}

/// The survivor sends and receives until the other process has exited, is stopped or is done. Other processes are
/// unaffected during and after that. Returns whether the victim ended normally.
fn run(qp_type: QpType, nth: u64, signal: i32) -> bool {
    let name = if qp_type == QpType::Uc { "uc" } else { "ud" };
    let mut other = start(name, &[nth, signal as u64]);
    let mut survivor = Side::new(qp_type);
    tell(&mut other.line, &survivor.end);
    let connected = learn(&mut other.line).is_some_and(|to| survivor.connect(to));
    if !connected {
        assert_ne!(other.wait(), ProcessState::Exited(0));
        return false;
    }
    let (start, mut finished) = (Instant::now(), false);
    loop {
        if survivor.sent < survivor.ended + 8 {
            survivor.send_to(survivor.dest.qpn);
        }
        survivor.drain();
        match other.state() {
            ProcessState::Runs => {}
            ProcessState::Stopped => break,
            _ => break,
        }
        if readable(std::os::fd::AsRawFd::as_raw_fd(other.line.raw()), 0)
            && other.state() == ProcessState::Runs
        {
            finished = other.line.hear() == Some([0xD_0E, 0, 0, 0]);
            break;
        }
        assert!(start.elapsed() < LOST, "store {nth}: neither dead nor done");
        std::thread::yield_now();
    }
    others_work(&mut survivor);
    other.kill();
    while !matches!(other.state(), ProcessState::Killed(_)) {
        std::thread::yield_now();
    }
    sends_end(&mut survivor);
    others_work(&mut survivor);
    finish(survivor);
    finished
}

/// The survivor's sends complete, although they are not received.
fn sends_end(survivor: &mut Side) {
    let start = Instant::now();
    for _ in 0..20 {
        survivor.send_to(survivor.dest.qpn);
        while survivor.ended < survivor.sent {
            assert!(start.elapsed() < LOST, "{} of {} sends ended", survivor.ended, survivor.sent);
            survivor.drain();
        }
    }
}

/// The survivor continues to send to the other process, where it may have to wait for a reply, and to and from others.
fn others_work(survivor: &mut Side) {
    let start = Instant::now();
    for _ in 0..20 {
        if survivor.sent < survivor.ended + 8 {
            survivor.send_to(survivor.dest.qpn);
        }
        survivor.drain();
    }
    let (mut a, mut b) = (Side::new(survivor.end.qp.qp_type()), Side::new(survivor.end.qp.qp_type()));
    let address = |side: &Side| Address {
        qpn: side.end.qp.qp_num(),
        addr: side.end.mr.addr() as u64,
        rkey: side.end.mr.rkey(),
    };
    let (of_a, of_b) = (address(&a), address(&b));
    assert!(a.connect(of_b) && b.connect(of_a));
    // Over UC the first may arrive before `b` is ready.
    while b.last_seen.is_none_or(|seq| seq < 5) {
        if a.sent < a.ended + 8 {
            a.send_to(of_b.qpn);
        }
        a.drain();
        b.drain();
        assert!(start.elapsed() < LOST, "others are not served");
    }
    if survivor.ah.is_some() {
        // A new sender reaches the survivor, too.
        let seen = survivor.posted;
        while survivor.posted == seen {
            if a.sent < a.ended + 8 {
                a.send_to(survivor.end.qp.qp_num());
            }
            a.drain();
            survivor.drain();
            assert!(start.elapsed() < LOST, "the survivor is not reached");
        }
    }
}

/// Ends the survivor: everything is flushed, and no peer accesses its memory.
fn finish(mut survivor: Side) {
    survivor.fail();
    assert!(survivor.end.qp.is_quiesced(), "a dead peer is not inside anything");
    let End { mr, qp, .. } = survivor.end;
    drop(qp);
    assert_eq!(mr.dereg(), Revoked::Now);
}

fn sweep(qp_type: QpType, signal: i32) {
    for nth in 1..4 {
        run(qp_type, nth, signal);
    }
    let before = Holdings::at_rest();
    // The number of stores of the victim depends slightly on how often it sleeps, so the sweep is complete when it ends
    // normally every time.
    let (mut nth, mut ends) = (0, 0);
    while ends < 5 {
        nth += store_step();
        ends = if run(qp_type, nth, signal) { ends + 1 } else { 0 };
    }
    println!("{qp_type:?}, signal {signal}: {nth} stores");
    assert!(nth > 50, "the victim stores more often than that");
    // The service thread closes what the exited process left a moment later.
    before.wait_for(|| ());
}

/// The test runs in a process of its own, because it counts resources of the entire process.
#[test]
#[ignore = "takes half a minute: cargo test -- --ignored"]
fn survives_a_kill_or_stop_at_any_store_over_uc_and_ud() {
    if !is_alone("survives_a_kill_or_stop_at_any_store_over_uc_and_ud") {
        return;
    }
    for qp_type in [QpType::Uc, QpType::Ud] {
        for signal in [libc::SIGKILL, libc::SIGSTOP] {
            sweep(qp_type, signal);
        }
    }
}
