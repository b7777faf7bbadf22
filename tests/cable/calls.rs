//! Calls that must not be executed twice, under several presets, to a server that logs the executed calls.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use farcall::Nic;
use farcall::rpc::{Call, CallId, Client, ClientOptions, ConnectError, Executed, Reply, Server};
use farcall_softnic::SoftNic;

use crate::ROLE;
use crate::client::Progress;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

const ADDRESS: &str = "10.99.0.2:11400";
const LOG: &str = "FARCALL_TEST_LOG";
const NOTE: u16 = 1;
const WINDOW: usize = 4;

/// Presets with results fetched, written and sent, over RC, UC and UD.
pub const PRESETS: [&str; 5] = ["rf-rpc", "server-reply", "send-send", "uc-rpc", "ud-rpc"];

/// Serves in the other network: replies to each call after it has appended the call's number to the log, which
/// outlives this process.
pub fn serve() {
    let log = std::env::var(LOG).unwrap();
    let service = move |_| {
        let mut log = OpenOptions::new().append(true).open(&log).unwrap();
        move |call: &Call<'_>, reply: &mut Reply<'_>| {
            log.write_all(call.payload()).unwrap();
            reply.extend_from_slice(call.payload());
            Ok(())
        }
    };
    Server::builder().address(ADDRESS).start(&nic(), service).unwrap().join();
}

/// Process of the server.
pub struct Other {
    process: Child,
    log: PathBuf,
}

impl Other {
    pub fn start(log: &Log) -> Self {
        Self { process: Self::spawn(&log.0), log: log.0.clone() }
    }

    /// Kills the server and starts it again.
    pub fn restart(&mut self) {
        self.kill();
        self.process = Self::spawn(&self.log);
    }

    fn spawn(log: &Path) -> Child {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &std::env::var("NETWORK_B").unwrap()]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "child_entry"]);
        command.env(ROLE, "serve").env(LOG, log);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }

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

/// Log of the calls executed by all incarnations of the server.
pub struct Log(PathBuf);

impl Log {
    pub fn new() -> Self {
        let path = Path::new("/run/executed").to_owned();
        File::create(&path).unwrap();
        Self(path)
    }

    /// Returns the number of executions of each call.
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

/// A client that keeps calls outstanding, with the outcome of each.
pub struct Load {
    preset: &'static str,
    next: u64,
    under_way: HashMap<CallId, u64>,
    outcomes: HashMap<u64, Result<(), Executed>>,
}

impl Load {
    /// Creates a load whose call numbers no other load uses.
    pub fn new(nth: usize) -> Self {
        let next = (nth as u64) << 32;
        Self { preset: PRESETS[nth], next, under_way: HashMap::new(), outcomes: HashMap::new() }
    }

    /// Calls until `is_over` is set, then waits for the outstanding calls.
    pub fn run(&mut self, progress: &Progress, is_over: &AtomicBool) {
        let mut client = connect(self.preset);
        while !is_over.load(Ordering::Relaxed) {
            while self.under_way.len() < WINDOW && self.submit(&mut client) {}
            self.finish_one(&mut client, progress);
            sleep(Duration::from_millis(1));
        }
        while !self.under_way.is_empty() {
            self.finish_one(&mut client, progress);
        }
    }

    fn submit(&mut self, client: &mut Client) -> bool {
        let Ok(id) = client.submit(NOTE, &self.next.to_le_bytes()) else { return false };
        self.under_way.insert(id, self.next);
        self.next += 1;
        true
    }

    fn finish_one(&mut self, client: &mut Client, progress: &Progress) {
        let done = client.wait().unwrap();
        let number = self.under_way.remove(&done.call).expect("a call ends once");
        let outcome = match done.result {
            Ok(reply) => {
                assert_eq!(reply, number.to_le_bytes(), "{}: another call's result", self.preset);
                progress.succeeded();
                Ok(())
            }
            Err(error) => {
                progress.failed(&format!("{}: {error}", self.preset));
                Err(error.executed())
            }
        };
        self.outcomes.insert(number, outcome);
    }

    /// Checks that each call was executed as often as the client was notified.
    pub fn check(&self, log: &Log) {
        let executions = log.executions();
        for (number, outcome) in &self.outcomes {
            let count = executions.get(number).copied().unwrap_or_default();
            match outcome {
                Ok(()) => assert_eq!(count, 1, "{}: call {number:#x} has a result", self.preset),
                Err(Executed::No) => assert_eq!(count, 0, "{}: call {number:#x}, not executed", self.preset),
                Err(_) => assert!(count <= 1, "{}: call {number:#x} ran {count} times", self.preset),
            }
        }
    }
}

/// Connects; retries because the server may not listen yet.
fn connect(preset: &str) -> Client {
    let began = Instant::now();
    loop {
        let options = ClientOptions::preset(preset).unwrap().probe(false);
        match Client::connect(&nic(), ADDRESS, options) {
            Ok(client) => return client,
            Err(error) => {
                let is_soon = began.elapsed() < Duration::from_secs(60);
                assert!(matches!(error, ConnectError::Unreachable { .. }) && is_soon, "{preset}: {error}");
                sleep(Duration::from_millis(10));
            }
        }
    }
}
