//! A process is killed, or stopped, before its n-th store to shared memory, for every n of a prescribed run.

use std::time::{Duration, Instant};

use crate::store_step::store_step;
use crate::support::apart::is_alone;
use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::*;
use farcall_softnic::arm_store_hook;
use farcall_verbs::{
    AtomicTarget, Notify, QpAttr, QpCap, QpState, Revoked, SendWr, Wc, WcOpcode, WcStatus, WrOpcode,
};

const SLOT: usize = 16 << 10;
/// Number of messages in each direction. The victim has fewer receives, so that the survivor always has sends that
/// wait.
const TO_VICTIM: u64 = 12;
const TAKEN_BY_VICTIM: u64 = 6;
const FROM_VICTIM: u64 = 10;

fn len_of(seq: u64) -> usize {
    [16, 900, 9000][seq as usize % 3]
}

fn cap() -> QpCap {
    QpCap { max_send_wr: 32, max_recv_wr: 8, ..QpCap::default() }
}

/// The process that exits: all operations, in both roles.
fn victim(line: &mut Line, nth: u64, signal: i32) {
    let mut end = End::new(1 << 20, ALL, cap());
    end.init();
    tell(line, &end);
    let Some(to) = learn(line) else { return };
    assert!(arm_store_hook(nth, signal));
    end.rtr(to.qpn);
    end.rts();
    for i in 0..3 {
        end.recv(i, &[end.sge((20 + i as usize) * SLOT, SLOT)]);
    }
    end.put(0, &bytes(1 << 16, 7));
    let (small, large, back) = ([end.sge(0, 8)], [end.sge(0, 1 << 16)], [end.sge(1 << 19, 64)]);
    let (old, word) = ([end.sge((1 << 19) + 64, 8)], to.addr + (1 << 19) + 128);
    let atomic = |opcode| {
        let operands = AtomicTarget { remote_addr: word, compare_add: 0, swap: 1, rkey: to.rkey };
        SendWr::atomic(opcode, 4, &old, operands)
    };
    end.send(&[
        SendWr::write(1, &small, to.addr + (1 << 19), to.rkey),
        SendWr::write(2, &large, to.addr + (1 << 19) + 64, to.rkey),
        atomic(WrOpcode::ATOMIC_FETCH_AND_ADD),
        atomic(WrOpcode::ATOMIC_CMP_AND_SWP),
        SendWr::read(3, &back, to.addr + (1 << 19), to.rkey).with_flags(SIGNALED),
    ]);
    let mut sent = 0;
    let mut taken = 0;
    let mut done = 0;
    while sent < FROM_VICTIM || taken < TAKEN_BY_VICTIM || done < FROM_VICTIM + 1 {
        if sent < FROM_VICTIM {
            let at = sent as usize * SLOT;
            end.put(at, &bytes(len_of(sent), sent));
            let sges = [end.sge(at, len_of(sent))];
            // The survivor posts four receives, and then one for each that it consumes, so some of these sends wait.
            end.send(&[SendWr::send(100 + sent, &sges).with_flags(SIGNALED)]);
            sent += 1;
            continue;
        }
        let wc = end.sleep(Notify::Any);
        assert_eq!(wc.status, WcStatus::SUCCESS);
        if wc.opcode == WcOpcode::RECV {
            if taken < 3 {
                end.recv(taken, &[end.sge((20 + taken as usize) * SLOT, SLOT)]);
            }
            taken += 1;
        } else {
            done += 1;
        }
    }
    let sges = [end.sge(0, 32)];
    end.send(&[SendWr::write(5, &sges, to.addr + (1 << 19), to.rkey).with_imm(9).with_flags(SIGNALED)]);
    while end.wait().wr_id != 5 {}
    assert_eq!(end.pd.alloc_mr(4096, ALL).unwrap().dereg(), Revoked::Now);
    end.recv(50, &[end.sge(0, 64)]);
    end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    while end.wait().wr_id != 50 {}
    drop(end);
}

#[test]
fn child_entry() {
    if let Some((_, args, mut line)) = role() {
        victim(&mut line, args[0], args[1] as i32);
        line.say([0xD0_0E, 0, 0, 0]);
        // Exists until told to exit: the survivor distinguishes a normal end of the victim from a crash.
        line.hear();
        std::process::exit(0);
    }
}

/// The surviving end.
struct Survivor {
    end: End,
    /// Number of send completions, of receives still posted, and of messages received.
    sends_ended: u64,
    posted: u64,
    received: u64,
    failed: bool,
    sleeps: bool,
}

impl Survivor {
    fn begin(line: &mut Line, sleeps: bool) -> Option<Self> {
        let (end, _) = connect_by(line, cap(), End::rts_hasty)?;
        let mut this = Self { end, sends_ended: 0, posted: 0, received: 0, failed: false, sleeps };
        for _ in 0..4 {
            this.post_receive();
        }
        for seq in 0..TO_VICTIM {
            let at = (16 + seq as usize) * SLOT;
            this.end.put(at, &bytes(len_of(seq), seq));
            let sges = [this.end.sge(at, len_of(seq))];
            this.end.send(&[SendWr::send(1000 + seq, &sges).with_flags(SIGNALED)]);
        }
        Some(this)
    }

    fn post_receive(&mut self) {
        let at = (self.posted % 8) as usize * SLOT;
        let sge = [self.end.sge(at, SLOT)];
        self.end.recv(self.posted, &sge);
        self.posted += 1;
    }

    /// Checks one completion.
    fn take(&mut self, wc: Wc) {
        if wc.wr_id >= 1000 {
            assert_eq!(wc.wr_id, 1000 + self.sends_ended, "sends end in order");
            self.sends_ended += 1;
            let expected = if self.failed {
                wc.status == WcStatus::WR_FLUSH_ERR
            } else {
                matches!(wc.status, WcStatus::SUCCESS | WcStatus::RETRY_EXC_ERR | WcStatus::WR_FLUSH_ERR)
            };
            assert!(expected, "{wc:?}");
            self.failed |= !wc.status.is_success();
            return;
        }
        assert_eq!(wc.wr_id, self.received, "receives end in order");
        self.received += 1;
        if !wc.status.is_success() {
            assert_eq!(wc.status, WcStatus::WR_FLUSH_ERR);
            return;
        }
        let seq = wc.wr_id;
        if wc.opcode == WcOpcode::RECV {
            assert_eq!(wc.byte_len as usize, len_of(seq), "message {seq}");
            let got = self.end.get((seq % 8) as usize * SLOT, len_of(seq));
            assert!(got == bytes(len_of(seq), seq), "message {seq} is corrupt");
        } else {
            assert_eq!((seq, wc.imm()), (FROM_VICTIM, Some(9)));
        }
        if self.end.qp.state() == QpState::Rts {
            self.post_receive();
        }
    }

    /// Handles one completion if there is one; while it sleeps, only the channel wakes it.
    fn turn(&mut self) {
        if self.sleeps {
            self.end.cq.req_notify(Notify::Any).unwrap();
        }
        if let Some(wc) = self.end.poll() {
            return self.take(wc);
        }
        if !self.sleeps {
            return std::thread::yield_now();
        }
        readable(self.end.channel.fd(), 20);
        self.end.event();
    }

    /// Runs until all sends have completed, then drains. Returns the time since `death`.
    fn finish(mut self, death: impl Fn() -> Option<Instant>) -> Duration {
        let start = Instant::now();
        while self.sends_ended < TO_VICTIM {
            assert!(start.elapsed() < LOST, "sends never end: {} of {TO_VICTIM}", self.sends_ended);
            self.turn();
            let _ = death();
        }
        let after = death().map_or(Duration::ZERO, |at| at.elapsed());
        self.end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        while self.received < self.posted {
            assert!(start.elapsed() < LOST, "receives are not flushed: {} of {}", self.received, self.posted);
            self.turn();
        }
        assert!(self.end.qp.is_quiesced(), "a dead peer is not inside anything");
        let End { mr, qp, .. } = self.end;
        drop(qp);
        assert_eq!(mr.dereg(), Revoked::Now);
        after
    }
}

/// Verifies that the survivor is not blocked while the other process is stopped: other queue pairs work, and calls
/// return.
fn others_work(survivor: &mut Survivor) {
    let (mut a, mut b) = pair();
    for i in 0..5_u64 {
        b.recv(i, &[b.sge(0, 64)]);
        b.cq.req_notify(Notify::Any).unwrap();
        assert_eq!(b.poll(), None);
        let sges = [a.sge(0, 8)];
        a.send(&[SendWr::send(i, &sges).with_flags(SIGNALED)]);
        // The sender's thread polls, because its first request may have to wait for the connection.
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        assert_eq!((b.event(), b.wait().wr_id), (Some(b.cq.id()), i));
    }
    let start = Instant::now();
    for _ in 0..20 {
        if let Some(wc) = survivor.end.poll() {
            survivor.take(wc);
        }
    }
    let _ = survivor.end.pd.alloc_mr(4096, ALL).unwrap().dereg();
    assert!(start.elapsed() < LOST, "a stopped peer holds us up: {:?}", start.elapsed());
}

/// Runs one case. Returns whether the victim ended normally, and the time from the crash until the survivor was done.
fn run(nth: u64, signal: i32) -> (bool, Duration) {
    let mut other = start("victim", &[nth, signal as u64]);
    let Some(mut survivor) = Survivor::begin(&mut other.line, nth % 2 == 1) else {
        // It was killed or stopped before the connection was established: a clear error, and nothing to clean up.
        assert_ne!(other.wait(), ProcessState::Exited(0));
        return (false, Duration::ZERO);
    };
    let died: std::cell::Cell<Option<Instant>> = std::cell::Cell::new(None);
    let start = Instant::now();
    let mut finished = false;
    let mut stopped = false;
    // Until it has exited, is stopped or is done.
    loop {
        survivor.turn();
        match other.state() {
            ProcessState::Runs => {}
            ProcessState::Stopped => stopped = true,
            _ => break,
        }
        if stopped {
            others_work(&mut survivor);
            other.kill();
            while !matches!(other.state(), ProcessState::Killed(_)) {}
            break;
        }
        if readable(std::os::fd::AsRawFd::as_raw_fd(other.line.raw()), 0)
            && other.state() == ProcessState::Runs
        {
            finished = other.line.hear() == Some([0xD0_0E, 0, 0, 0]);
            if finished {
                while survivor.received < FROM_VICTIM + 1 {
                    assert!(start.elapsed() < LOST, "a finished victim has sent everything");
                    survivor.turn();
                }
                other.kill();
                break;
            }
        }
        assert!(start.elapsed() < LOST, "store {nth}: neither dead nor done");
    }
    died.set(Some(Instant::now()));
    let after = survivor.finish(|| died.get());
    (finished, after)
}

fn sweep(signal: i32, name: &str) {
    for nth in 1..4 {
        run(nth, signal);
    }
    let before = Holdings::at_rest();
    // The number of stores of the victim depends slightly on how often it sleeps, so the sweep is complete when it ends
    // normally every time.
    let (mut nth, mut worst, mut ends) = (0, Duration::ZERO, 0);
    while ends < 10 {
        nth += store_step();
        let (finished, after) = run(nth, signal);
        worst = worst.max(after);
        ends = if finished { ends + 1 } else { 0 };
    }
    println!("{name}: {nth} stores; the survivor was done at most {worst:?} after a death");
    assert!(nth > 50, "the victim stores more often than that");
    // The service thread closes what the exited process left a moment later.
    before.wait_for(|| ());
}

/// The test runs in a process of its own, because it counts resources of the entire process.
#[test]
#[ignore = "takes half a minute: cargo test -- --ignored"]
fn a_process_may_be_killed_or_stopped_before_any_store() {
    if !is_alone("a_process_may_be_killed_or_stopped_before_any_store") {
        return;
    }
    sweep(libc::SIGKILL, "killed");
    sweep(libc::SIGSTOP, "stopped");
}
