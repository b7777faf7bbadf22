//! Processes of a user that share the RoCEv2 port of a network namespace, come, go and are killed. Each test runs in a
//! namespace of its own.

mod support;

use farcall_verbs::{QpCap, QpType, RecvWr, SendWr, UdTarget, WcOpcode, WcStatus};
use support::apart::is_apart;
use support::datagrams::{GRH, Ud, slot};
use support::process::*;
use support::*;

/// An end with a connected pair and one of datagrams, which return what comes.
struct Both {
    connected: End,
    datagrams: Ud,
}

impl Both {
    fn new() -> Self {
        Self { connected: End::of(QpType::Rc, QpCap::default()), datagrams: Ud::new() }
    }

    fn numbers(&self) -> [u64; 4] {
        [self.connected.qp.qp_num().into(), self.datagrams.qpn().into(), 0, 0]
    }
}

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let mut both = Both::new();
    line.say(both.numbers());
    let [peer, ..] = line.hear().unwrap();
    both.connected.connect(peer as u32);
    both.connected.recv(0, &[both.connected.sge(0, 64)]);
    both.datagrams.recv(0, 64);
    line.say([1, 0, 0, 0]);
    loop {
        if let Some(wc) = both.connected.poll()
            && wc.opcode == WcOpcode::RECV
        {
            assert_eq!(wc.status, WcStatus::SUCCESS);
            let back = [both.connected.sge(64, 64)];
            both.connected.put(64, &both.connected.get(0, 64));
            both.connected.recv(0, &[both.connected.sge(0, 64)]);
            both.connected.send(&[SendWr::send(1, &back)]);
        }
        if let Some(wc) = both.datagrams.end.poll()
            && wc.opcode == WcOpcode::RECV
        {
            let got = both.datagrams.payload(&wc);
            both.datagrams.recv(0, 64);
            both.datagrams.end.put(slot(9), &got);
            let to = both.datagrams.to(wc.src_qp, QKEY);
            let sges = [both.datagrams.end.sge(slot(9), got.len())];
            both.datagrams.end.send(&[SendWr::send_to(1, &sges, to)]);
        }
    }
}

/// A process that returns what comes, and our ends towards it.
struct Echo {
    other: Other,
    ends: Both,
    their_datagrams: u32,
    rounds: u64,
}

impl Echo {
    fn start() -> Self {
        let mut other = start("echo", &[]);
        let ends = Both::new();
        let [connected, datagrams, ..] = other.line.hear().unwrap();
        let mut echo = Self { other, ends, their_datagrams: datagrams as u32, rounds: 0 };
        echo.other.line.say(echo.ends.numbers());
        echo.ends.connected.connect(connected as u32);
        assert_eq!(echo.other.line.hear(), Some([1, 0, 0, 0]));
        echo
    }

    /// Sends over both pairs, and waits for what comes back.
    fn round(&mut self) {
        self.rounds += 1;
        let data = bytes(64, self.rounds);
        let end = &mut self.ends.connected;
        end.put(0, &data);
        end.recv(2, &[end.sge(64, 64)]);
        end.send(&[SendWr::send(1, &[end.sge(0, 64)]).with_flags(SIGNALED)]);
        let mut ended = [end.wait(), end.wait()];
        ended.sort_by_key(|wc| wc.wr_id);
        assert_eq!(ended.map(|wc| (wc.wr_id, wc.status)), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
        assert!(end.get(64, 64) == data, "what came back differs");

        let Ud { end, ah } = &mut self.ends.datagrams;
        end.put(0, &data);
        let into = [end.sge(slot(3), GRH + 64)];
        // SAFETY: the region lives as long as the queue pair.
        unsafe { end.qp.post_recv(&[RecvWr::new(3, &into)]) }.unwrap();
        let to = UdTarget { ah: ah.as_raw(), remote_qpn: self.their_datagrams, remote_qkey: QKEY };
        end.send(&[SendWr::send_to(4, &[end.sge(0, 64)], to)]);
        let wc = end.wait();
        assert_eq!((wc.wr_id, wc.status, wc.src_qp), (3, WcStatus::SUCCESS, self.their_datagrams));
        assert!(end.get(slot(3) + GRH, 64) == data, "the datagram that came back differs");
    }
}

#[test]
fn processes_of_a_user_share_the_port_while_others_come_and_are_killed() {
    if !is_apart("processes_of_a_user_share_the_port_while_others_come_and_are_killed", "net") {
        return;
    }
    let own = || u64::from(std::process::id());
    let seed = std::env::var("FARCALL_TEST_SEED").map_or_else(|_| own(), |seed| seed.parse().unwrap());
    println!("FARCALL_TEST_SEED={seed}");
    let mut random: u64 = seed;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    // Whoever opened the port dies first.
    let mut founder = start("echo", &[]);
    let [theirs, ..] = founder.line.hear().unwrap();
    founder.line.say([1, 0, 0, 0]);
    assert!(theirs != 0 && founder.line.hear().is_some());
    let mut steady = Echo::start();
    steady.round();
    founder.end();
    let mut others: Vec<Echo> = Vec::new();
    for _ in 0..24 {
        steady.round();
        if others.len() < 3 {
            others.push(Echo::start());
        }
        others.iter_mut().for_each(Echo::round);
        if next(3) > 0 {
            let mut victim = others.swap_remove(next(others.len() as u64) as usize);
            if next(2) == 0 {
                // With something under way.
                let end = &mut victim.ends.connected;
                end.send(&[SendWr::send(1, &[end.sge(0, 64)])]);
            }
            victim.other.end();
        }
        steady.round();
    }
    others.iter_mut().for_each(Echo::round);
}

#[test]
fn a_stopped_process_does_not_keep_others_from_the_port() {
    if !is_apart("a_stopped_process_does_not_keep_others_from_the_port", "net") {
        return;
    }
    let mut first = Echo::start();
    first.round();
    first.other.stop();
    let mut second = Echo::start();
    (0..20).for_each(|_| second.round());
    first.other.signal(libc::SIGCONT);
    first.round();
}
