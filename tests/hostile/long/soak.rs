//! Servers that are killed, stopped, evict and expire values, while clients of every front end connect and disconnect.
//! There must be an order of operations in which a sequential store would give all the observed replies.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use farcall::kv::Change;
use farcall_sim::check::{Operation, Register, RegisterOp, Sequential, linearizable};
use rand::{Rng, RngExt};
use rand_pcg::Pcg64;

use super::door::{Client, Door, Outcome};
use super::{attack_time, random, seed};
use crate::server::Server;

const KEYS: usize = 3;
const CLIENTS_OF_A_DOOR: usize = 3;
const OPERATIONS_OF_A_ROUND: usize = 40;

/// Time after the end of its time to live from which a value must not be found.
const EXPIRY_MARGIN: Duration = Duration::from_millis(500);

/// Model of a store that may lose values: a key that was not found was evicted, expired or deleted, and does not
/// reappear.
struct Cache;

impl Sequential for Cache {
    type State = Option<u64>;
    type Op = RegisterOp;

    fn initial(&self) -> Option<u64> {
        None
    }

    fn apply(&self, state: &Option<u64>, op: &RegisterOp) -> Option<Option<u64>> {
        match op {
            RegisterOp::Read { found: None } | RegisterOp::Delete { found: Some(false) } => Some(None),
            _ => Register.apply(state, op),
        }
    }
}

/// Latest time at which each value was written, and its time to live.
type Lives = HashMap<u64, (u64, Duration)>;

/// A client with its observations and operations of a round.
struct Actor {
    client: Client,
    has_versions: bool,
    expires: bool,
    number: u64,
    written: u64,
    random: Pcg64,
    seen: HashMap<usize, (u64, u64)>,
    done: Vec<(usize, Operation<RegisterOp>)>,
    lives: Lives,
    answers: u64,
}

fn key_of(round: u64, key: usize) -> Vec<u8> {
    format!("round-{round}-key-{key}").into_bytes()
}

/// Returns the bytes of a value: eight bytes of identity, and a body derived from it.
fn bytes_of(value: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.extend((0..len_bytes as u64).map(|at| (value ^ at) as u8));
    bytes
}

fn value_of(bytes: &[u8]) -> u64 {
    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert!(bytes == bytes_of(value, bytes.len() - 8), "value {value:#x} was garbled");
    value
}

impl Actor {
    fn new(number: usize, door: Door, expires: bool, seed: u64) -> Self {
        Self {
            has_versions: matches!(door, Door::Rpc(_)),
            client: Client::new(door),
            expires,
            number: number as u64,
            written: 0,
            random: random(seed, number as u64),
            seen: HashMap::new(),
            done: Vec::new(),
            lives: HashMap::new(),
            answers: 0,
        }
    }

    /// Executes the operations of a round. Some rounds are fast, some wait for expiry in between.
    fn act(&mut self, round: u64, began: Instant) {
        self.seen.clear();
        let pause_us_max = if round.is_multiple_of(3) { 50_000 } else { 200 };
        for _ in 0..OPERATIONS_OF_A_ROUND {
            if self.random.random_range(0..50) == 0 {
                self.client.disconnect();
            }
            let key = self.random.random_range(0..KEYS);
            let called = began.elapsed();
            let op = self.operate(&key_of(round, key), key, called);
            let returned = began.elapsed();
            if let Some((op, has_returned)) = op {
                self.answers += u64::from(has_returned);
                let returned_ns = has_returned.then_some(returned.as_nanos() as u64);
                self.done.push((key, Operation { called_ns: called.as_nanos() as u64, returned_ns, op }));
            }
            std::thread::sleep(Duration::from_micros(self.random.random_range(0..pause_us_max)));
        }
    }

    /// Executes an operation. Returns it for the history, and whether it returned; `None` if it had no effect and no
    /// result.
    fn operate(&mut self, key: &[u8], number: usize, called: Duration) -> Option<(RegisterOp, bool)> {
        match (self.random.random_range(0..10), self.seen.get(&number).copied()) {
            (0..=3, _) => self.read(key, number),
            (4..=6, _) => self.write(key, called),
            (7, _) => known(self.client.delete(key), |found| RegisterOp::Delete { found }),
            (_, Some((expected, version))) if self.has_versions => self.swap(key, expected, version),
            _ => self.read(key, number),
        }
    }

    fn read(&mut self, key: &[u8], number: usize) -> Option<(RegisterOp, bool)> {
        // A read without a reply has no result.
        let Outcome::Known(item) = self.client.get(key) else { return None };
        let found = item.map(|(bytes, version)| (value_of(&bytes), version));
        match found {
            Some((value, Some(version))) => self.seen.insert(number, (value, version)),
            _ => self.seen.remove(&number),
        };
        Some((RegisterOp::Read { found: found.map(|(value, _)| value) }, true))
    }

    fn next_value(&mut self) -> (u64, Vec<u8>) {
        self.written += 1;
        let value = self.number << 40 | self.written;
        (value, bytes_of(value, [0, 24, 200, 3_000][self.random.random_range(0..4)]))
    }

    fn write(&mut self, key: &[u8], called: Duration) -> Option<(RegisterOp, bool)> {
        let (value, bytes) = self.next_value();
        // Over sockets, times to live are whole seconds.
        let time_to_live = match (self.expires && self.random.random_range(0..3) == 0, self.has_versions) {
            (false, _) => Duration::ZERO,
            (true, true) => Duration::from_millis(self.random.random_range(1..300)),
            (true, false) => Duration::from_secs(1),
        };
        let began = Instant::now();
        let outcome = self.client.set(key, &bytes, time_to_live);
        if !time_to_live.is_zero() && matches!(outcome, Outcome::Known(())) {
            self.lives.insert(value, ((called + began.elapsed()).as_nanos() as u64, time_to_live));
        }
        known(outcome, |_| RegisterOp::Write { value })
    }

    fn swap(&mut self, key: &[u8], expected: u64, version: u64) -> Option<(RegisterOp, bool)> {
        let (value, bytes) = self.next_value();
        match self.client.compare_and_swap(key, version, &bytes) {
            Outcome::Known(Change::Done { .. }) => {
                Some((RegisterOp::CompareAndSwap { expected, value, stored: Some(true) }, true))
            }
            Outcome::Known(Change::OtherVersion) => {
                Some((RegisterOp::CompareAndSwap { expected, value, stored: Some(false) }, true))
            }
            Outcome::Known(Change::NotFound) => Some((RegisterOp::Read { found: None }, true)),
            Outcome::Known(change) => panic!("a compare-and-swap came to {change:?}"),
            Outcome::Nothing => None,
            Outcome::Unknown => Some((RegisterOp::CompareAndSwap { expected, value, stored: None }, false)),
        }
    }
}

fn known<T>(outcome: Outcome<T>, op: impl FnOnce(Option<T>) -> RegisterOp) -> Option<(RegisterOp, bool)> {
    match outcome {
        Outcome::Known(result) => Some((op(Some(result)), true)),
        Outcome::Nothing => None,
        Outcome::Unknown => Some((op(None), false)),
    }
}

/// Stops the server for some time, or kills it and starts another one in its place. Returns the period in which it may
/// have lost all values.
fn disturb(server: &mut Server, random: &mut impl Rng, began: Instant) -> Option<(u64, u64)> {
    std::thread::sleep(Duration::from_millis(random.random_range(0..30)));
    match random.random_range(0..10) {
        0 | 1 => {
            server.stop_for(Duration::from_millis(random.random_range(1..1_500)));
            None
        }
        2 | 3 => {
            let killed_ns = began.elapsed().as_nanos() as u64;
            server.restart();
            Some((killed_ns, began.elapsed().as_nanos() as u64))
        }
        _ => None,
    }
}

/// Checks that an order of operations explains a round, and that no value was found after its time to live. Returns
/// the number of operations.
fn check<S: Sequential<Op = RegisterOp>>(
    object: &S,
    actors: &mut [Actor],
    forgotten: Option<(u64, u64)>,
) -> usize {
    let mut histories: Vec<Vec<Operation<RegisterOp>>> = vec![Vec::new(); KEYS];
    let mut lives = Lives::new();
    for actor in actors {
        actor.done.drain(..).for_each(|(key, operation)| histories[key].push(operation));
        lives.extend(actor.lives.drain());
    }
    let outlived = |operation: &&Operation<RegisterOp>| match operation.op {
        RegisterOp::Read { found: Some(value) } => lives.get(&value).is_some_and(|(written_ns, lives)| {
            operation.called_ns > written_ns + (*lives + EXPIRY_MARGIN).as_nanos() as u64
        }),
        _ => false,
    };
    let mut count = 0;
    for mut history in histories {
        if let Some(operation) = history.iter().find(outlived) {
            panic!("found after its time to live had ended: {operation:?}, of {lives:?}");
        }
        count += history.len();
        history.extend(forgotten.map(|(called_ns, returned_ns)| Operation {
            called_ns,
            returned_ns: Some(returned_ns),
            op: RegisterOp::MayForget,
        }));
        if let Err(error) = linearizable(object, &history) {
            panic!("{error}");
        }
    }
    count
}

/// Executes rounds of many operations, each on keys of its own, for the attack time.
fn soak<S: Sequential<Op = RegisterOp>>(object: &S, name: &str, options: &[&str], is_cache: bool) {
    let seed = seed();
    let mut server = Server::start(name, options);
    let doors = [
        Door::Tcp(server.place("tcp").into()),
        Door::Unix(server.place("unix").into()),
        Door::Rpc(server.place("rpc").into()),
    ];
    let doors = doors.iter().cycle().take(doors.len() * CLIENTS_OF_A_DOOR).cloned().enumerate();
    let mut actors: Vec<Actor> = doors.map(|(at, door)| Actor::new(at, door, is_cache, seed)).collect();
    let mut chaos = random(seed, 1 << 20);
    let mut evictor = Client::new(Door::Tcp(server.place("tcp").into()));
    let (began, mut operations, mut kills) = (Instant::now(), 0, 0);
    for round in 0.. {
        if began.elapsed() >= attack_time() {
            let answers: Vec<u64> = actors.iter().map(|actor| actor.answers).collect();
            println!(
                "{round} rounds, {operations} operations, {kills} kills: all explained; answers {answers:?}"
            );
            assert!(!answers.contains(&0), "a client was never answered");
            return;
        }
        let forgotten = std::thread::scope(|scope| {
            for actor in &mut actors {
                scope.spawn(move || actor.act(round, began));
            }
            let evictor = &mut evictor;
            scope.spawn(move || {
                for at in (0..300).filter(|_| is_cache) {
                    let _ = evictor.set(format!("of-others-{at}").as_bytes(), &[b'x'; 4_000], Duration::ZERO);
                }
            });
            disturb(&mut server, &mut chaos, began)
        });
        kills += usize::from(forgotten.is_some());
        operations += check(object, &mut actors, forgotten);
    }
}

#[test]
#[ignore = "runs long"]
fn answers_of_a_store_that_keeps_everything_are_linearizable() {
    soak(&Register, "soak-keeps", &["--no-evict"], false);
}

#[test]
#[ignore = "runs long"]
fn answers_of_a_store_that_evicts_and_expires_are_linearizable() {
    soak(&Cache, "soak-forgets", &["--memory-mib", "1", "--value-max", "8192"], true);
}
