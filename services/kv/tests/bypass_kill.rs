//! Kills the server of a store while a client READs it. Values that the client reads are consistent and from the
//! incarnation that acknowledged them; the client continues with the next incarnation.
//!
//! `FARCALL_TEST_SEED` replays a run's choices, `FARCALL_TEST_KILLS` sets the number of kills.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use farcall_kv::bypass::{BypassClient, BypassConfig, BypassError, Scheme, serve};
use farcall_kv::{farm::Farm, pilaf::Pilaf};
use farcall_link::Nic;
use farcall_rpc::Server;
use farcall_softnic::SoftNic;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Signal, set_parent_process_death_signal};

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

const STORE: &str = "FARCALL_TEST_STORE";
const ADDRESS: &str = "FARCALL_TEST_ADDRESS";
const KEYS: u64 = 20;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Runs in the other process: a server.
#[test]
fn child_entry() {
    let Ok(store) = std::env::var(STORE) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let builder = Server::builder().address(std::env::var(ADDRESS).unwrap());
    let config = BypassConfig::default().entries(256);
    let server = if store == Pilaf::NAME {
        serve::<Pilaf>(builder, &nic(), config)
    } else {
        serve::<Farm>(builder, &nic(), config.inline_bytes(100))
    };
    let server = server.unwrap();
    println!("serving on <{}>", server.address());
    server.join();
}

/// The server's process, killed when dropped.
struct Other {
    process: Child,
    address: String,
}

impl Other {
    fn start<S: Scheme>(address: &str) -> Self {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_entry", "--nocapture", "--test-threads=1"])
            .envs([(STORE, S::NAME), (ADDRESS, address)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut other = Self { process, address: String::new() };
        let mut said = BufReader::new(other.process.stdout.take().unwrap());
        while other.address.is_empty() {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "the server process ended");
            if let Some((address, _)) = line.split_once('<').and_then(|(_, rest)| rest.split_once('>')) {
                other.address = address.to_owned();
            }
        }
        other
    }
}

impl Other {
    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}

fn value_of(key: u64, version: u64) -> Vec<u8> {
    let words = 2 + (version % 30) as usize;
    [key, version].into_iter().cycle().take(words).flat_map(u64::to_le_bytes).collect()
}

/// Reads and writes until a stop is requested. Counts the values that were read.
fn load<S: Scheme>(
    store: &mut BypassClient<S>,
    random: &mut ChaCha8Rng,
    stop: &AtomicBool,
    values_read: &AtomicU64,
) {
    let mut version = 0;
    // Last value that an incarnation acknowledged; removed after a PUT with an unknown outcome.
    let mut acknowledged: HashMap<u64, (u64, u64)> = HashMap::new();
    while !stop.load(Ordering::Relaxed) {
        let key = random.random_range(0..KEYS);
        let life = store.calls().server_incarnation();
        if random.random_bool(0.3) {
            version += 1;
            acknowledged.remove(&key);
            if store.put(&key.to_le_bytes(), &value_of(key, version)).is_ok()
                && store.calls().server_incarnation() == life
            {
                acknowledged.insert(key, (life, version));
            }
            continue;
        }
        let mut value = Vec::new();
        match store.get(&key.to_le_bytes(), &mut value) {
            Ok(is_there) => {
                let is_same_life = store.calls().server_incarnation() == life;
                let expected = acknowledged.get(&key).filter(|(then, _)| is_same_life && *then == life);
                if let Some((_, version)) = expected {
                    assert!(is_there, "key {key} is missing");
                    assert_eq!(value, value_of(key, *version), "key {key}");
                }
                if is_there {
                    let found = u64::from_le_bytes(value[8..16].try_into().unwrap());
                    assert!(found <= version && value == value_of(key, found), "key {key} is torn");
                    values_read.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(BypassError::Call(_) | BypassError::Unreadable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn kills<S: Scheme>() {
    let seed = number("FARCALL_TEST_SEED", std::process::id().into());
    println!("FARCALL_TEST_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut server = Other::start::<S>("127.0.0.1:0");
    let options = BypassClient::<S>::options()
        .probe(false)
        .connect_timeout(Duration::from_secs(1))
        .reconnect_timeout(Duration::from_secs(3_600));
    let mut store = BypassClient::<S>::connect(&nic(), &server.address, options).unwrap();
    let first_life = store.calls().server_incarnation();
    let (stop, values_read) = (AtomicBool::new(false), AtomicU64::new(0));
    // Servers exit with the thread that started them, so this thread kills them and another one reads.
    std::thread::scope(|scope| {
        let mut choices = ChaCha8Rng::seed_from_u64(seed + 1);
        let (store, stop, values_read) = (&mut store, &stop, &values_read);
        let loading = scope.spawn(move || load(store, &mut choices, stop, values_read));
        let wait_for_values = || {
            let before = values_read.load(Ordering::Relaxed);
            while values_read.load(Ordering::Relaxed) < before + 50 && !loading.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for _ in 0..number("FARCALL_TEST_KILLS", 4) {
            wait_for_values();
            std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
            let address = server.address.clone();
            server.kill();
            server = Other::start::<S>(&address);
        }
        wait_for_values();
        stop.store(true, Ordering::Relaxed);
    });
    println!("{}: {values_read:?} values were read", S::NAME);
    // The last incarnation serves.
    while store.put(b"last", b"life").is_err() {}
    let mut value = Vec::new();
    while !matches!(store.get(b"last", &mut value), Ok(true)) {}
    assert_eq!(value, b"life");
    assert_ne!(store.calls().server_incarnation(), first_life);
}

#[test]
fn returns_complete_values_of_a_killed_server_and_its_successor() {
    kills::<Pilaf>();
    kills::<Farm>();
}
