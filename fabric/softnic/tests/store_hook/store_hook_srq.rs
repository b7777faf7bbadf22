//! A process that sends to shared receives is killed, or stopped, before its n-th store to shared memory, for every n.
//! No receive is lost to the other queue pairs that share them.

use std::time::Instant;

use crate::store_step::store_step;
use crate::support::apart::is_alone;
use crate::support::process::*;
use crate::support::*;
use farcall_softnic::arm_store_hook;
use farcall_verbs::{
    Notify, QpAttr, QpCap, QpState, QpType, RawQp, RawSrq, RecvWr, Revoked, SendWr, SrqInitAttr, Wc,
    WcOpcode, WcStatus,
};

const SLOT: usize = 16 << 10;
const RECEIVES: u64 = 6;
const FROM_VICTIM: u64 = 12;

fn len_of(seq: u64) -> usize {
    [16, 9000, 900][seq as usize % 3]
}

/// The process that exits: small and large messages, a WRITE with immediate, with polling and with sleeping.
fn victim(line: &mut Line, nth: u64, signal: i32) {
    let mut end = End::new(1 << 20, ALL, QpCap::default());
    end.init();
    tell(line, &end);
    let Some(to) = learn(line) else { return };
    end.put(0, &bytes(1 << 19, 7));
    assert!(arm_store_hook(nth, signal));
    end.rtr(to.qpn);
    end.rts();
    for seq in 0..FROM_VICTIM {
        let at = seq as usize * SLOT;
        end.put(at, &bytes(len_of(seq), seq));
        let sges = [end.sge(at, len_of(seq))];
        end.send(&[SendWr::send(seq, &sges).with_imm(seq as u32).with_flags(SIGNALED)]);
    }
    for seq in 0..FROM_VICTIM {
        let wc = if seq < 4 { end.wait() } else { end.sleep(Notify::Any) };
        assert_eq!((wc.wr_id, wc.status), (seq, WcStatus::SUCCESS));
    }
    let sges = [end.sge(0, 32)];
    let wr = SendWr::write(50, &sges, to.addr + (1 << 19), to.rkey).with_imm(FROM_VICTIM as u32);
    end.send(&[wr.with_flags(SIGNALED)]);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
}

#[test]
fn child_entry() {
    if let Some((_, args, mut line)) = role() {
        victim(&mut line, args[0], args[1] as i32);
        line.say([0xD0_0E, 0, 0, 0]);
        line.hear();
        std::process::exit(0);
    }
}

/// The process with the shared receives: one queue pair for the victim, and one for a sender in this process.
struct Survivor {
    end: End,
    srq: Box<dyn RawSrq>,
    neighbour: (End, Box<dyn RawQp>),
    received: u64,
    /// Number of receives that are in the shared queue or offered.
    posted: u64,
}

fn new_qp(end: &End, srq: &dyn RawSrq) -> Box<dyn RawQp> {
    create_qp(&*end.pd, (&*end.cq, &*end.cq), Some(srq), QpCap::default(), QpType::Rc)
}

impl Survivor {
    fn new() -> Self {
        let mut end = End::new(1 << 20, ALL, QpCap::default());
        let srq = end.pd.create_srq(&SrqInitAttr { max_wr: RECEIVES as u32, max_sge: 1 }).unwrap();
        end.qp = new_qp(&end, &*srq);
        let mut sender = End::default();
        join(&mut sender, &mut end, End::rts);
        let fresh = new_qp(&end, &*srq);
        let neighbour = (sender, std::mem::replace(&mut end.qp, fresh));
        let mut this = Self { end, srq, neighbour, received: 0, posted: 0 };
        (0..RECEIVES).for_each(|slot| this.post(slot));
        this
    }

    /// Connects the other queue pair; `false` if the victim exited before.
    fn connect(&mut self, line: &mut Line) -> bool {
        self.end.init();
        tell(line, &self.end);
        let Some(to) = learn(line) else { return false };
        let rtr = QpAttr::rtr(to.qpn, 0, self.end.path(), farcall_verbs::Mtu::Mtu4096);
        if self.end.qp.modify(&rtr).is_err() {
            return false;
        }
        self.end.rts_hasty();
        true
    }

    fn post(&mut self, slot: u64) {
        let sges = [self.end.sge(slot as usize * SLOT, SLOT)];
        // SAFETY: the region outlives the receive.
        unsafe { self.srq.post_recv(&[RecvWr::new(slot, &sges)]) }.unwrap();
        self.posted += 1;
    }

    /// Handles a message of the victim; returns the number of a message of the neighbour.
    fn take(&mut self, wc: Wc) -> Option<u32> {
        assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
        self.posted -= 1;
        let from_neighbour = (wc.qp_num != self.end.qp.qp_num()).then(|| wc.imm());
        if from_neighbour.is_none() {
            self.judge(&wc);
        }
        // Posted only now, because a posted receive may be written to immediately.
        self.post(wc.wr_id);
        from_neighbour.flatten()
    }

    /// Compares a message of the victim with its expected contents.
    fn judge(&mut self, wc: &Wc) {
        let seq = self.received;
        assert_eq!(wc.imm(), Some(seq as u32), "messages come in order and once");
        if wc.opcode == WcOpcode::RECV {
            let got = self.end.get(wc.wr_id as usize * SLOT, len_of(seq));
            assert!(wc.byte_len as usize == len_of(seq) && got == bytes(len_of(seq), seq), "message {seq}");
        }
        self.received += 1;
    }

    fn turn(&mut self) -> Option<u32> {
        match self.end.poll() {
            Some(wc) => self.take(wc),
            None => {
                std::thread::yield_now();
                None
            }
        }
    }

    /// Receives as many messages of the neighbour as there are receives, small and large.
    fn others_work(&mut self) {
        for n in 0..2 * RECEIVES as u32 {
            let sender = &mut self.neighbour.0;
            let sges = [sender.sge(0, if n % 2 == 0 { 8 } else { 9000 })];
            sender.send(&[SendWr::send(n.into(), &sges).with_imm(n).with_flags(SIGNALED)]);
            let start = Instant::now();
            let (mut sent, mut got) = (None, false);
            while sent.is_none() || !got {
                got |= self.turn() == Some(n);
                sent = sent.or(self.neighbour.0.poll());
                assert!(
                    start.elapsed() < LOST,
                    "message {n} of the neighbour was lost: sent {sent:?}, got {got}"
                );
            }
            assert_eq!(sent.map(|wc| (wc.wr_id, wc.status)), Some((n.into(), WcStatus::SUCCESS)));
        }
    }

    /// After the victim's exit: all receives are still available to the others.
    fn finish(mut self) {
        self.others_work();
        self.end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        let End { mr, qp, mut cq, .. } = self.end;
        // The queue pair held no receive when its peer had exited: nothing is flushed, and the neighbour can use all
        // receives.
        let (mut sender, receiver) = self.neighbour;
        let start = Instant::now();
        for n in 0..RECEIVES as u32 {
            sender.send(&[SendWr::send(n.into(), &[]).with_imm(n)]);
        }
        let (mut got, mut wc) = (0, [Wc::default(); 4]);
        while got < RECEIVES {
            assert!(start.elapsed() < LOST, "{got} of {RECEIVES} receives are left");
            assert_eq!(sender.poll(), None);
            let n = cq.poll(&mut wc).unwrap();
            for wc in &wc[..n] {
                let flushed = wc.qp_num == qp.qp_num() && wc.status == WcStatus::WR_FLUSH_ERR;
                assert!(wc.status.is_success() || flushed, "{wc:?}");
                got += 1;
            }
        }
        drop((qp, receiver));
        assert_eq!(mr.dereg(), Revoked::Now);
    }
}

/// Runs one case. Returns whether the victim ended normally.
fn run(nth: u64, signal: i32) -> bool {
    let mut other = start("victim", &[nth, signal as u64]);
    let mut survivor = Survivor::new();
    if !survivor.connect(&mut other.line) {
        assert_ne!(other.wait(), ProcessState::Exited(0));
        return false;
    }
    let start = Instant::now();
    let mut finished = false;
    loop {
        assert_eq!(survivor.turn(), None);
        match other.state() {
            ProcessState::Runs => {}
            ProcessState::Stopped => {
                survivor.others_work();
                break;
            }
            _ => break,
        }
        if readable(std::os::fd::AsRawFd::as_raw_fd(other.line.raw()), 0)
            && other.state() == ProcessState::Runs
        {
            finished = other.line.hear() == Some([0xD0_0E, 0, 0, 0]);
            if finished {
                while survivor.received < FROM_VICTIM + 1 {
                    assert!(start.elapsed() < LOST, "what succeeded was not received");
                    assert_eq!(survivor.turn(), None);
                }
                break;
            }
        }
        assert!(start.elapsed() < LOST, "store {nth}: neither dead nor done");
    }
    other.kill();
    while !matches!(other.wait(), ProcessState::Killed(_)) {}
    survivor.finish();
    finished
}

fn sweep(signal: i32) {
    let (mut nth, mut ends) = (0, 0);
    while ends < 10 {
        nth += store_step();
        ends = if run(nth, signal) { ends + 1 } else { 0 };
    }
    println!("{nth} stores");
    assert!(nth > 50, "the victim stores more often than that");
}

#[test]
#[ignore = "takes half a minute: cargo test -- --ignored"]
fn a_sender_into_shared_receives_may_be_killed_before_any_store() {
    if !is_alone("a_sender_into_shared_receives_may_be_killed_before_any_store") {
        return;
    }
    sweep(libc::SIGKILL);
}

#[test]
#[ignore = "takes half a minute: cargo test -- --ignored"]
fn survives_a_stopped_sender_at_any_store_into_shared_receives() {
    if !is_alone("survives_a_stopped_sender_at_any_store_into_shared_receives") {
        return;
    }
    sweep(libc::SIGSTOP);
}
