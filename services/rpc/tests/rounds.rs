//! A million rounds (two thousand in debug) of falling asleep and being woken, between two processes.
//!
//! No timer helps: a waiting client never wakes the server because a response is late, so a lost wake-up ends the
//! test. `FARCALL_TEST_ROUNDS` sets the number of rounds.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farcall_drive::Pollers;
use farcall_link::Nic;
use farcall_link::WaitStrategy;
use farcall_rpc::*;
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

const ROLE: &str = "FARCALL_TEST_ROLE";
const SERVER: &str = "server";
/// A server whose poller polls while it sleeps, and itself sleeps in between.
const COVERED: &str = "covered server";
/// Longer than any call takes, shorter than any wait.
const LOST: Duration = Duration::from_secs(120);
const NEVER: Duration = Duration::from_secs(1 << 20);

fn rounds() -> u32 {
    let asked = std::env::var("FARCALL_TEST_ROUNDS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if cfg!(debug_assertions) { 2_000 } else { 1_000_000 })
}

/// In the other process: an echo server that sleeps whenever it is idle.
#[test]
fn child_entry() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let echo = |_| {
        |call: &Call<'_>, reply: &mut Reply<'_>| {
            reply.extend_from_slice(call.payload());
            Ok(())
        }
    };
    let mut builder = Server::builder().waiting(WaitStrategy::EventBatch);
    if std::env::var(ROLE).as_deref() == Ok(COVERED) {
        builder = builder.pollers(Pollers::start(1).unwrap());
    }
    let server = builder.start(&nic(), echo).unwrap();
    println!("serving on <{}>", server.address());
    server.join();
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Other {
    fn start(role: &str) -> (Self, String) {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_entry", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut other = Self(process);
        let mut said = BufReader::new(other.0.stdout.take().unwrap());
        loop {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "the server process ended");
            if let Some((address, _)) = line.split_once('<').and_then(|(_, rest)| rest.split_once('>')) {
                return (other, address.to_owned());
            }
        }
    }
}

#[test]
fn no_wake_up_is_lost_between_two_processes() {
    assert!(call_over_and_over(SERVER, |_| {}) > 0, "nobody slept");
}

#[test]
fn no_wake_up_is_lost_between_pollers_and_events() {
    // Pauses that pollers poll through, and longer ones.
    call_over_and_over(COVERED, |round| match round % 400 {
        0 => std::thread::sleep(Duration::from_millis(4)),
        1..20 => std::thread::sleep(Duration::from_micros(100)),
        _ => {}
    });
}

/// Returns the number of KICKs, for the wait strategy with the fewest.
fn call_over_and_over(role: &str, pause: impl Fn(u32)) -> u64 {
    let mut kicks = u64::MAX;
    let (_server, address) = Other::start(role);
    // Fetches until the response is there; or fetches a few times and then sleeps until it is woken.
    for waiting in [WaitStrategy::Busy, WaitStrategy::Adaptive { max_retry: 16 }] {
        let options = ClientOptions::preset("rf-rpc").unwrap().probe(false).reconnect(false);
        let mut options = options.wait_by(waiting);
        options.config.kick_after = NEVER;
        // No pause between fetches either: it would be a timer.
        options.config.fetch_retries_max = u32::MAX;
        options.config.tune_while_running = false;
        let options = options.call_timeout(LOST);
        let mut client = Client::connect(&nic(), address.clone(), options).unwrap();
        let mut reply = Vec::new();
        for round in 0..rounds() / 2 {
            pause(round);
            reply.clear();
            let outcome = client.call(1, &round.to_le_bytes(), &mut reply);
            assert_eq!(outcome, Ok(()), "{waiting:?}, round {round}: slept through; {:?}", client.counters());
            assert_eq!(reply, round.to_le_bytes());
        }
        let counters = client.counters();
        println!("{waiting:?}: {} kicks, {} sleeps", counters.kicks.get(), counters.arms.get());
        kicks = kicks.min(counters.kicks.get());
    }
    kicks
}
