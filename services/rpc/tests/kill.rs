//! A client and a server in two processes. The server is killed or stopped, or only the connection breaks, while calls
//! are in flight that must not run twice.
//!
//! 60 disturbances in release, 12 in debug. `FARCALL_TEST_SEED` repeats the choices of a run; `FARCALL_TEST_KILLS`
//! sets the number of disturbances.

#[path = "support/relay.rs"]
mod relay;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farcall_link::Nic;
use farcall_link::{PRESETS, SplitMix64};
use farcall_rpc::*;
use farcall_softnic::SoftNic;
use relay::Relay;
use rustix::process::{Pid, Signal, kill_process};

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

const LOG: &str = "FARCALL_TEST_LOG";
/// Appends the request's number to the log, and answers with the number of entries appended in this incarnation.
const NOTE: u16 = 1;
const WINDOW: usize = 8;

/// In the other process: a server that logs executed calls in a file that outlives it.
#[test]
fn child_entry() {
    let Ok(log) = std::env::var(LOG) else { return };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let service = move |_| {
        let mut log = OpenOptions::new().append(true).open(&log).unwrap();
        let mut noted = 0u64;
        move |call: &Call<'_>, reply: &mut Reply<'_>| {
            log.write_all(call.payload()).unwrap();
            noted += 1;
            reply.extend_from_slice(&noted.to_le_bytes());
            Ok(())
        }
    };
    // No session expires because the machine is slow.
    let config = ResponderConfig::default().session_linger(Duration::from_secs(3_600));
    let server = Server::builder().config(config).start(&nic(), service).unwrap();
    println!("serving on <{}>", server.address());
    server.join();
}

/// The server's process, killed when dropped.
struct Other {
    process: Child,
    address: SocketAddr,
}

impl Other {
    fn start(log: &Log) -> Self {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_entry", "--nocapture", "--test-threads=1"])
            .env(LOG, &log.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut other = Self { process, address: SocketAddr::from(([0; 4], 0)) };
        let mut said = BufReader::new(other.process.stdout.take().unwrap());
        while other.address.port() == 0 {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "the server process ended");
            let place = line.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
            other.address = place.map_or(other.address, |(address, _)| address.parse().unwrap());
        }
        other
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The calls that servers executed, in all their incarnations.
struct Log(PathBuf);

impl Log {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("farcall-rpc-{}-{name}.log", std::process::id()));
        File::create(&path).unwrap();
        Self(path)
    }

    /// Returns how often each call was executed.
    fn executions(&self) -> HashMap<u64, u32> {
        let mut bytes = Vec::new();
        File::open(&self.0).unwrap().read_to_end(&mut bytes).unwrap();
        let (numbers, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty());
        let mut executions = HashMap::new();
        for number in numbers {
            *executions.entry(u64::from_le_bytes(*number)).or_insert(0) += 1;
        }
        executions
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A client that keeps a window of calls in flight, and the outcome of each.
struct Load {
    client: Client,
    next: u64,
    under_way: HashMap<CallId, u64>,
    outcomes: HashMap<u64, Result<u64, Executed>>,
}

impl Load {
    fn connect(relay: &Relay, preset: &str, call_timeout: Option<Duration>) -> Self {
        let options = ClientOptions::preset(preset)
            .unwrap()
            .call_timeout(call_timeout)
            .reconnect_timeout(Duration::from_secs(3_600))
            .connect_timeout(Duration::from_millis(500))
            .probe(false);
        let client = Client::connect(&nic(), relay.address.to_string(), options).unwrap();
        Self { client, next: 0, under_way: HashMap::new(), outcomes: HashMap::new() }
    }

    /// Begins a call, unless cancelled calls still occupy the window.
    fn submit(&mut self) -> bool {
        match self.client.submit(NOTE, &self.next.to_le_bytes()) {
            Ok(id) => {
                self.under_way.insert(id, self.next);
                self.next += 1;
                true
            }
            Err(CallError::WindowFull { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn finish_one(&mut self) {
        let done = self.client.wait().unwrap();
        let number = self.under_way.remove(&done.call).expect("a call ends once");
        let outcome = match done.result {
            Ok(reply) => Ok(u64::from_le_bytes(reply.try_into().unwrap())),
            Err(error) => Err(error.executed()),
        };
        self.outcomes.insert(number, outcome);
    }

    /// Makes calls until `stop` is set, then waits for those in flight.
    fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            while self.under_way.len() < WINDOW && self.submit() {}
            if self.under_way.is_empty() {
                self.client.progress();
            } else {
                self.finish_one();
            }
        }
        while !self.under_way.is_empty() {
            self.finish_one();
        }
    }

    /// Checks that each call was executed as often as its outcome implies.
    fn check(&self, log: &Log) {
        let executions = log.executions();
        assert_eq!(self.outcomes.len() as u64, self.next, "every call ends");
        for (number, count) in &executions {
            assert_eq!(*count, 1, "call {number} was executed twice");
        }
        for (number, outcome) in &self.outcomes {
            let was_executed = executions.contains_key(number);
            match outcome {
                Ok(_) => assert!(was_executed, "call {number} has a result and was not executed"),
                Err(Executed::No) => assert!(!was_executed, "call {number}, not executed, was"),
                Err(Executed::Unknown) => {}
                Err(Executed::Yes) => panic!("call {number} failed in its handler, which never fails"),
            }
        }
    }

    fn results(&self) -> impl Iterator<Item = u64> {
        self.outcomes.values().filter_map(|outcome| outcome.ok())
    }
}

/// A disturbance of a server or its connection.
enum Disturbance {
    Cut,
    Stop,
    Kill,
}

impl Disturbance {
    fn draw(rng: &mut SplitMix64) -> Self {
        match rng.below(3) {
            0 => Self::Cut,
            1 => Self::Stop,
            _ => Self::Kill,
        }
    }
}

fn disturbances() -> u32 {
    let asked = std::env::var("FARCALL_TEST_KILLS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if cfg!(debug_assertions) { 12 } else { 60 })
}

fn seed() -> u64 {
    let asked = std::env::var("FARCALL_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = asked.unwrap_or(1);
    println!("FARCALL_TEST_SEED={seed}");
    seed
}

fn pause(rng: &mut SplitMix64, max_us: u64) {
    std::thread::sleep(Duration::from_micros(rng.below(max_us)));
}

/// Every call succeeds, and the counter's values, exactly 1 to their number, show that each ran once.
#[test]
fn completes_every_call_once_across_broken_connections() {
    let mut rng = SplitMix64::new(seed());
    for preset in PRESETS.iter().map(|preset| preset.name) {
        let log = Log::new(preset);
        let server = Other::start(&log);
        let relay = Relay::start(server.address);
        let mut load = Load::connect(&relay, preset, None);
        let incarnation = load.client.server_incarnation();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..disturbances() {
                    pause(&mut rng, 5_000);
                    relay.cut();
                }
                pause(&mut rng, 5_000);
                stop.store(true, Ordering::Relaxed);
            });
            load.run(&stop);
        });
        load.check(&log);
        let mut counts: Vec<u64> = load.results().collect();
        counts.sort_unstable();
        assert!(counts.into_iter().eq(1..=load.next), "{preset}: a call ran twice or not at all");
        assert_eq!(load.client.server_incarnation(), incarnation);
        assert!(load.client.counters().sessions_resumed.get() > 0, "{preset}: nothing was resumed");
    }
}

/// Calls that a kill leaves open have an unknown outcome. No call runs twice, including in the next incarnation of the
/// server.
#[test]
fn runs_calls_at_most_once_despite_server_kills() {
    let mut rng = SplitMix64::new(seed());
    let log = Log::new("any");
    let mut server = Other::start(&log);
    let relay = Relay::start(server.address);
    let mut load = Load::connect(&relay, "rf-rpc", Some(Duration::from_millis(200)));
    let stop = AtomicBool::new(false);
    let (mut kills, first_life) = (0, load.client.server_incarnation());
    // Servers are killed when the thread that started them exits, so this thread disturbs and another one makes calls.
    std::thread::scope(|scope| {
        scope.spawn(|| load.run(&stop));
        for number in 0..disturbances() {
            pause(&mut rng, 20_000);
            match if number == 0 { Disturbance::Kill } else { Disturbance::draw(&mut rng) } {
                Disturbance::Cut => relay.cut(),
                Disturbance::Stop => {
                    server.signal(Signal::STOP);
                    // Sometimes longer than calls may take; sometimes the connection is lost in the meantime.
                    pause(&mut rng, 400_000);
                    if rng.below(2) == 0 {
                        relay.cut();
                        pause(&mut rng, 100_000);
                    }
                    server.signal(Signal::CONT);
                }
                Disturbance::Kill => {
                    kills += 1;
                    server.signal(Signal::KILL);
                    pause(&mut rng, 20_000);
                    server = Other::start(&log);
                    relay.redirect(server.address);
                }
            }
        }
        pause(&mut rng, 20_000);
        stop.store(true, Ordering::Relaxed);
    });
    // The last incarnation serves.
    while !matches!(load.outcomes.get(&load.next.wrapping_sub(1)), Some(Ok(_))) {
        if load.submit() {
            load.finish_one();
        } else {
            load.client.progress();
        }
    }
    load.check(&log);
    assert!(kills > 0 && load.client.server_incarnation() != first_life);
    let unknown = load.outcomes.values().filter(|outcome| **outcome == Err(Executed::Unknown)).count();
    println!("{} calls, {unknown} unknown, {kills} kills; {:?}", load.next, load.client.counters());
}
