//! Acknowledgements that are held back for the packets that an application thread posts next, between two processes
//! over RoCEv2. They are sent even if it posts none. The test runs in a network namespace of its own, where the port is
//! free.

use crate::support::apart::{counted_at_port, is_apart};
use crate::support::process::{role, start};
use crate::support::*;
use farcall_verbs::{Mtu, QpAttr, QpCap, SendFlags, SendWr, Wc, WcOpcode, WcStatus};

const LEN_BYTES: usize = 64;
/// Number of round trips after which the application thread is known to poll, if the machine permits it.
const TRIPS: usize = 200;
/// Maximum number of sets of round trips, to obtain one that ends with an acknowledgement held back. A program that is
/// not optimized polls too rarely for that.
const SETS_MAX: usize = if cfg!(debug_assertions) { 20 } else { 200 };
const SETS_KEPT: u64 = 4;
/// Number of processes that end in each way. In an optimized program about a third end with an acknowledgement held
/// back.
const ENDS: usize = if cfg!(debug_assertions) { 4 } else { 12 };

/// A queue pair of this process, and the numbers of messages received and acknowledged.
struct Talker {
    end: End,
    received: usize,
    acknowledged: usize,
}

impl Talker {
    fn connect(dest: impl FnOnce(u32) -> u32) -> Self {
        let mut end = End::new(2 * LEN_BYTES, ALL, QpCap::default());
        let (dest, path) = (dest(end.qp.qp_num()), end.path());
        for attr in [QpAttr::init(ALL), QpAttr::rtr(dest, 0, path, Mtu::Mtu1024), patient()] {
            end.qp.modify(&attr).unwrap();
        }
        let mut talker = Self { end, received: 0, acknowledged: 0 };
        (0..4).for_each(|_| talker.receive());
        talker
    }

    fn receive(&mut self) {
        let into = [self.end.sge(LEN_BYTES, LEN_BYTES)];
        self.end.recv(0, &into);
    }

    fn send(&mut self) {
        let from = [self.end.sge(0, LEN_BYTES)];
        self.end.send(&[SendWr::send(0, &from).with_flags(SendFlags::SIGNALED)]);
    }

    fn poll_until(&mut self, received: usize, acknowledged: usize) {
        while self.received < received || self.acknowledged < acknowledged {
            // Without a pause, because a thread that yields its core does not poll continuously.
            let Some(Wc { status, opcode, .. }) = self.end.poll() else { continue };
            assert_eq!(status, WcStatus::SUCCESS);
            if opcode == WcOpcode::RECV {
                self.received += 1;
                self.receive();
            } else {
                self.acknowledged += 1;
            }
        }
    }
}

/// How a process ends that has just received its last message.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    /// It destroys its queue pair, and is then killed.
    Destroys,
    /// It destroys nothing and exits.
    Exits,
}

/// Responds to all messages except the last one and ends immediately. Its acknowledgement may be held back; the test
/// does not check that before, because the service thread would send it in the meantime.
fn end_after_the_last_message(mut talker: Talker, ending: Ending) {
    for trip in 1..=TRIPS {
        talker.poll_until(trip, 0);
        talker.send();
    }
    talker.poll_until(TRIPS + 1, TRIPS);
    if ending == Ending::Exits {
        std::process::exit(0);
    }
    drop(talker);
    // SAFETY: the signal ends the process without running any handler.
    unsafe { libc::raise(libc::SIGKILL) };
}

#[test]
fn child_entry() {
    let Some((role, args, mut line)) = role() else { return };
    if role == "ends" {
        let talker = Talker::connect(|own| {
            line.say([own.into(), 0, 0, 0]);
            line.hear().unwrap()[0] as u32
        });
        let ending = if args == [0] { Ending::Destroys } else { Ending::Exits };
        return end_after_the_last_message(talker, ending);
    }
    let mut talker = Talker::connect(|own| {
        line.say([own.into(), 0, 0, 0]);
        line.hear().unwrap()[0] as u32
    });
    let kept = || counted_at_port("acknowledgements_kept");
    for set in 0.. {
        for trip in 1..=TRIPS {
            talker.poll_until(set * (TRIPS + 1) + trip, 0);
            talker.send();
        }
        // The acknowledgements held back were sent after the last response.
        let before = kept();
        talker.poll_until((set + 1) * (TRIPS + 1), (set + 1) * TRIPS);
        // From here on neither side polls before the other end has its completion.
        line.say([u64::from(kept() > before), kept(), counted_at_port("sent_in_trains"), 0]);
        if line.hear().unwrap() != [0; 4] {
            return;
        }
    }
}

#[test]
fn acknowledges_messages_after_the_receiver_stops_polling() {
    if !is_apart("acknowledges_messages_after_the_receiver_stops_polling", "roce") {
        return;
    }
    let mut other = start("falls silent", &[]);
    let [dest, ..] = other.line.hear().unwrap();
    let mut talker = Talker::connect(|own| {
        other.line.say([own.into(), 0, 0, 0]);
        dest as u32
    });
    let mut sets_kept = 0;
    for set in 0..SETS_MAX {
        for trip in 1..=TRIPS {
            talker.send();
            talker.poll_until(set * TRIPS + trip, set * (TRIPS + 1) + trip);
        }
        talker.send();
        talker.poll_until(0, (set + 1) * (TRIPS + 1));
        let [was_kept, kept, behind, _] = other.line.hear().unwrap();
        sets_kept += was_kept;
        let is_last = sets_kept == SETS_KEPT || set + 1 == SETS_MAX;
        other.line.say([is_last.into(); 4]);
        if is_last {
            assert!(behind >= kept / 2, "of {kept} acknowledgements only {behind} went behind an answer");
            break;
        }
    }
    assert!(sets_kept == SETS_KEPT || cfg!(debug_assertions), "{sets_kept} of {SETS_MAX} sets");
    let timeouts = counted_at_port("ack_timeouts");
    // A machine that stops for a second causes one, too.
    assert!(timeouts < 2, "{timeouts} messages were only acknowledged when they came again");
}

#[test]
fn acknowledges_the_last_message_before_the_receiver_ends() {
    if !is_apart("acknowledges_the_last_message_before_the_receiver_ends", "roce") {
        return;
    }
    for ending in [Ending::Destroys, Ending::Exits] {
        for _ in 0..ENDS {
            let mut other = start("ends", &[ending as u64]);
            let [dest, ..] = other.line.hear().unwrap();
            let mut talker = Talker::connect(|own| {
                other.line.say([own.into(), 0, 0, 0]);
                dest as u32
            });
            for trip in 1..=TRIPS {
                talker.send();
                talker.poll_until(trip, trip);
            }
            talker.send();
            // A failure of the send ends the test there.
            talker.poll_until(0, TRIPS + 1);
            other.wait_for_end();
        }
    }
}
