//! A store that is written over RPC: acknowledged values must be found.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use farcall::Nic;
use farcall::kv::{KvClient, Write};
use farcall::rpc::{ClientOptions, Executed};
use farcall_softnic::SoftNic;

use crate::client::Progress;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

const ADDRESS: &str = "10.99.0.2:11401";
const KEYS: u64 = 64;

/// Process of the store.
pub struct Store(Child);

impl Store {
    pub fn start() -> Self {
        Self(Self::spawn())
    }

    /// Kills the store and starts it again, empty.
    pub fn restart(&mut self) {
        self.kill();
        self.0 = Self::spawn();
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    fn spawn() -> Child {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &std::env::var("NETWORK_B").unwrap()]);
        command.arg(std::env::var("FARCALL_BINARY").unwrap()).args(["kv", "serve", "--rpc", ADDRESS]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client that writes, and the possible values of each key.
pub struct Writer {
    client: KvClient,
    next: u64,
    /// By key: the last acknowledged value, if any, and the later ones with unknown outcome.
    may_hold: HashMap<u64, Vec<Option<u64>>>,
}

impl Writer {
    pub fn connect() -> Self {
        let began = Instant::now();
        loop {
            match KvClient::connect(&nic(), ADDRESS, &ClientOptions::default()) {
                Ok(client) => return Self { client, next: 0, may_hold: HashMap::new() },
                Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Writes until `is_over` is set.
    pub fn run(&mut self, progress: &Progress, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            let (key, value) = (self.next % KEYS, self.next);
            self.next += 1;
            let put = self.client.put(&key.to_le_bytes(), Write::of(&value.to_le_bytes()));
            let may_hold = self.may_hold.entry(key).or_insert_with(|| vec![None]);
            match put {
                Ok(_) => {
                    *may_hold = vec![Some(value)];
                    progress.succeeded();
                }
                Err(error) => {
                    if error.executed() != Executed::No {
                        may_hold.push(Some(value));
                    }
                    progress.failed(&format!("kv: {error}"));
                }
            }
            sleep(Duration::from_millis(1));
        }
    }

    /// Checks that each key has one of its possible values.
    pub fn check(&mut self) {
        for (key, may_hold) in &self.may_hold {
            let held = self.client.get(&key.to_le_bytes()).unwrap();
            let held = held.map(|item| u64::from_le_bytes(item.value.try_into().unwrap()));
            assert!(may_hold.contains(&held), "key {key} holds {held:?}, and may hold {may_hold:?}");
        }
    }
}
