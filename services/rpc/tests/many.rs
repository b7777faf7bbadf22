//! A thousand connections to one server: their cost for the server and for the client; idle connections cost no
//! processor time; and a stopped client costs the others nothing. The server and the client to be stopped have
//! processes of their own. Resources of the process are counted, so this is the file's only test.
//! `FARCALL_CONNECTIONS` sets another number of connections.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use farcall_link::Nic;
use farcall_rpc::*;
use farcall_shm::raise_descriptor_limit;
use farcall_softnic::SoftNic;
use rustix::process::{Pid, Signal, kill_process};

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Maximum number of connections that the server accepts.
const CONNECTIONS_MAX: usize = 10_100;
const ROLE: &str = "FARCALL_TEST_ROLE";
/// Number of connections of the client that is stopped; and of its calls on each.
const STOPPED: usize = 8;
const WINDOW: usize = 16;
/// Number of calls on each connection while that client is stopped.
const ROUNDS: u64 = 3;
/// Deadline of every wait: afterwards a test fails. Not a measurement.
const LOST: Duration = Duration::from_secs(300);

/// In the other processes.
#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else { return };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    match role.as_str() {
        "server" => serve(),
        address => call_on_command(address),
    }
}

fn serve() {
    let echo = |_| {
        |call: &Call<'_>, reply: &mut Reply<'_>| {
            reply.extend_from_slice(call.payload());
            Ok(())
        }
    };
    let config = ResponderConfig::default().connections_max(CONNECTIONS_MAX).slots_bytes_max(4 << 30);
    let server = Server::builder().config(config).start(&nic(), echo).unwrap();
    println!("say <{}>", server.address());
    server.join();
}

fn connect(address: &str) -> Client {
    let options = ClientOptions::default().probe(false).connect_timeout(LOST);
    Client::connect(&nic(), address, options).unwrap()
}

/// Begins as many calls as it may, and receives their results on command.
fn call_on_command(address: &str) {
    let mut clients: Vec<Client> = (0..STOPPED).map(|_| connect(address)).collect();
    for client in &mut clients {
        for call in 0..WINDOW as u64 {
            client.submit(1, &call.to_le_bytes()).unwrap();
        }
        client.flush();
    }
    println!("say <begun>");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    for client in &mut clients {
        for call in 0..WINDOW as u64 {
            assert_eq!(client.wait().unwrap().result.unwrap(), call.to_le_bytes());
        }
    }
    println!("say <ended>");
}

/// Another process, killed when dropped.
struct Other {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_entry", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, input, output: BufReader::new(output) }
    }

    /// Returns its next message.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the other process ended");
            if let Some((said, _)) = line.split_once("say <").and_then(|(_, rest)| rest.split_once('>')) {
                return said.to_owned();
            }
        }
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

/// Resources of a process.
struct Held {
    descriptors: usize,
    mappings: usize,
    /// Lengths in bytes of its open memfds, by inode.
    memory: HashMap<u64, u64>,
}

impl Held {
    fn by(pid: u32) -> Self {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let descriptors: Vec<_> = entries.map(|entry| entry.path()).collect();
        let memfds = descriptors.iter().filter(|path| {
            std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"))
        });
        let memory = memfds.filter_map(|path| std::fs::metadata(path).ok());
        Self {
            descriptors: descriptors.len(),
            mappings: std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines().count(),
            memory: memory.map(|file| (file.ino(), file.blocks() * 512)).collect(),
        }
    }
}

/// Returns the bytes of all memfds that two processes have open.
fn memory_bytes(one: &Held, other: &Held) -> u64 {
    let mut memory = one.memory.clone();
    memory.extend(&other.memory);
    memory.values().sum()
}

/// Returns how often the kernel has scheduled a thread of the process.
fn runs(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let runs_of = |schedstat: String| schedstat.split_whitespace().nth(2)?.parse::<u64>().ok();
    threads.filter_map(|thread| runs_of(std::fs::read_to_string(thread.path().join("schedstat")).ok()?)).sum()
}

/// Waits for an interval in which no thread of the process runs. A periodic activity would never end this wait.
fn until_at_rest(pid: u32) {
    const STRETCH: Duration = Duration::from_millis(300);
    let start = Instant::now();
    loop {
        let before = runs(pid);
        std::thread::sleep(STRETCH);
        if runs(pid) == before {
            return;
        }
        assert!(start.elapsed() < LOST, "process {pid} does not come to rest");
    }
}

/// Makes a call on every connection concurrently.
fn call_all(clients: &mut [Client], payload: u64) {
    for client in &mut *clients {
        client.submit(1, &payload.to_le_bytes()).unwrap();
        client.flush();
    }
    for client in clients {
        assert_eq!(client.wait().unwrap().result.unwrap(), payload.to_le_bytes());
    }
}

#[test]
fn limits_the_cost_of_connections_and_of_a_stopped_client() {
    // If fewer descriptors are allowed, there are fewer connections.
    let most = raise_descriptor_limit().saturating_sub(256) / 2 * 16 / 17;
    let wanted = std::env::var("FARCALL_CONNECTIONS").map_or(1_000, |count| count.parse().unwrap());
    let count = most.min(wanted) as usize;
    println!("{count} connections");
    let mut server = Other::start("server");
    let address = server.hear();
    let (server_pid, own_pid) = (server.process.id(), std::process::id());
    let mut clients = vec![connect(&address)];
    call_all(&mut clients, 0);
    let [server_before, own_before] = [server_pid, own_pid].map(Held::by);
    clients.extend((1..count).map(|_| connect(&address)));
    call_all(&mut clients, 1);
    let [server_after, own_after] = [server_pid, own_pid].map(Held::by);
    let more = count - 1;
    for (who, before, after) in
        [("server", &server_before, &server_after), ("client", &own_before, &own_after)]
    {
        // The bootstrap connection and the descriptor that wakes the client; regions share memfds and mappings.
        let descriptors = after.descriptors - before.descriptors;
        assert!(
            descriptors <= 2 * more + more / 16,
            "{who}: {descriptors} descriptors for {more} connections"
        );
        let mappings = after.mappings - before.mappings;
        assert!(mappings <= 4 * more, "{who}: {mappings} mappings for {more} connections");
    }
    let memory = memory_bytes(&server_after, &own_after) - memory_bytes(&server_before, &own_before);
    assert!(memory <= more as u64 * (64 << 10), "{memory} bytes of shared memory for {more} connections");

    // Without calls no thread runs, whatever the number of connections.
    until_at_rest(server_pid);

    let mut stopped = Other::start(&address);
    assert_eq!(stopped.hear(), "begun");
    stopped.signal(Signal::STOP);
    for payload in 2..2 + ROUNDS {
        call_all(&mut clients, payload);
    }
    stopped.signal(Signal::CONT);
    stopped.input.write_all(b"\n").unwrap();
    assert_eq!(stopped.hear(), "ended");
    call_all(&mut clients, 9);
}
