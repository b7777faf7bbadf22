//! Address spaces of real processes over nodes in other processes, which are killed, stopped and drained under load.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farcall_link::Nic;
use farcall_link::SplitMix64;
use farcall_memory::wire::{NodeStatus, Reply, Request};
use farcall_memory::*;
use farcall_softnic::SoftNic;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Deadline of a wait, longer than any pause of a busy machine.
const LOST: Duration = Duration::from_secs(600);
const ROLE: &str = "FARCALL_TEST_ROLE";
const NODES: &str = "FARCALL_TEST_NODES";
const SLAB_BYTES: usize = 16 * PAGE_BYTES;
const PAGES: usize = 64;
const SIZE_BYTES: u64 = (PAGES * PAGE_BYTES) as u64;

/// Lease term longer than any pause of the machine.
const LONG: Duration = Duration::from_secs(3_000);

fn config(nodes: Vec<String>, replicas: usize) -> ClientConfig {
    let (size_bytes, slab_bytes) = (SIZE_BYTES, SLAB_BYTES as u64);
    ClientConfig { nodes, replicas, size_bytes, slab_bytes, patience: LONG, ..ClientConfig::default() }
}

/// Entry point of the other process: a node, or a client.
#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    match &*role {
        "client" => be_client(),
        slabs_and_term => {
            let (slabs, term_ms) = slabs_and_term.split_once(' ').unwrap();
            let donated = NodeConfig {
                slab_bytes: SLAB_BYTES,
                slabs: slabs.parse().unwrap(),
                term: Duration::from_millis(term_ms.parse().unwrap()),
                ..NodeConfig::default()
            };
            let server = MemoryServer::start(&nic(), "127.0.0.1:0", donated).unwrap();
            println!("serving on <{}>", server.address());
            std::thread::sleep(LOST);
        }
    }
}

/// Writes the same pages repeatedly until a write fails, and prints that.
fn be_client() {
    let nodes = std::env::var(NODES).unwrap().split(' ').map(str::to_owned).collect();
    let patience = Duration::from_secs(1);
    let memory = RemoteMemory::open(&nic(), ClientConfig { patience, ..config(nodes, 1) }).unwrap();
    let mut turns = 0_u64;
    loop {
        turns += 1;
        let bytes = vec![0xaa; SLAB_BYTES];
        match memory.write(0, &bytes) {
            Ok(()) if turns == 1 => println!("writing"),
            Ok(()) => {}
            Err(error) => {
                println!("failed after {turns}: {error}");
                return;
            }
        }
    }
}

/// Another process, killed on drop.
struct Other {
    process: Child,
    said: BufReader<ChildStdout>,
    _input: ChildStdin,
}

impl Other {
    fn start(role: &str, nodes: &[&str]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_entry", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(NODES, nodes.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        let input = process.stdin.take().unwrap();
        Self { process, said, _input: input }
    }

    /// Waits for a line of its output that contains `text`.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "the process ended without {text:?}");
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct NodeProcess {
    other: Other,
    address: String,
}

impl NodeProcess {
    fn start(slabs: u32, term: Duration) -> Self {
        let mut other = Other::start(&format!("{slabs} {}", term.as_millis()), &[]);
        let line = other.wait_for("serving on <");
        let address = line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).unwrap().0.to_owned();
        Self { other, address }
    }

    fn call_node(&self, request: &Request) -> Reply {
        call_node(&nic(), &self.address, request).unwrap()
    }

    fn status(&self) -> NodeStatus {
        match self.call_node(&Request::Status) {
            Reply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    fn held(&self) -> u32 {
        let room = self.status().room;
        room.slabs - room.free
    }
}

fn until(what: &str, mut is_done: impl FnMut() -> bool) {
    let by = Instant::now() + LOST;
    while !is_done() {
        assert!(Instant::now() < by, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the bytes of the `life`-th write of a page.
fn page_bytes(page: usize, life: u64) -> Vec<u8> {
    let word = (page as u64) << 32 | life;
    word.to_le_bytes().repeat(PAGE_BYTES / 8)
}

/// Runs `happen` while two threads write and read their own pages, and check every byte that they read.
fn under_load<R>(memory: &RemoteMemory, lives: &[AtomicU64], happen: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let stop = &stop;
            scope.spawn(move || {
                for page in (thread..PAGES).step_by(2).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (life, offset) = (&lives[page], (page * PAGE_BYTES) as u64);
                    let mut found = vec![0; PAGE_BYTES];
                    memory.read(offset, &mut found).unwrap();
                    let wanted = life.load(Ordering::Relaxed);
                    let is_right = if wanted == 0 {
                        found.iter().all(|byte| *byte == 0)
                    } else {
                        found == page_bytes(page, wanted)
                    };
                    assert!(is_right, "page {page}");
                    memory.write(offset, &page_bytes(page, wanted + 1)).unwrap();
                    life.store(wanted + 1, Ordering::Relaxed);
                }
            });
        }
        let result = happen();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn lives() -> Vec<AtomicU64> {
    (0..PAGES).map(|_| AtomicU64::new(0)).collect()
}

/// Reads and checks all pages.
fn check_all(memory: &RemoteMemory, lives: &[AtomicU64]) {
    under_load(memory, lives, || ());
    for (page, life) in lives.iter().enumerate() {
        let mut found = vec![0; PAGE_BYTES];
        memory.read((page * PAGE_BYTES) as u64, &mut found).unwrap();
        let wanted = life.load(Ordering::Relaxed);
        assert!(wanted == 0 || found == page_bytes(page, wanted), "page {page}");
    }
}

fn addresses(nodes: &[NodeProcess]) -> Vec<String> {
    nodes.iter().map(|node| node.address.clone()).collect()
}

/// Waits until all pages are written and all replicas are in sync.
fn until_whole(memory: &RemoteMemory) {
    until("all replicas are in sync", || {
        let status = memory.status();
        status.extents == PAGES * PAGE_BYTES / SLAB_BYTES && status.degraded == 0
    });
}

#[test]
fn loses_no_page_while_a_replica_is_left_then_reports_errors() {
    let mut nodes: Vec<NodeProcess> = (0..3).map(|_| NodeProcess::start(16, LONG)).collect();
    let suspect_after = Duration::from_millis(100);
    let config = ClientConfig { suspect_after, patience: LONG, ..config(addresses(&nodes), 2) };
    let memory = RemoteMemory::open(&nic(), config).unwrap();
    let lives = lives();
    under_load(&memory, &lives, || until_whole(&memory));
    under_load(&memory, &lives, || {
        nodes[0].other.kill();
        until("its replicas are given up", || memory.status().nodes[0].replicas == 0);
        until_whole(&memory);
    });
    check_all(&memory, &lives);
    // One replica of everything is left now, and none after the next exit.
    under_load(&memory, &lives, || {
        nodes[1].other.kill();
        until("its replicas are given up", || memory.status().nodes[1].replicas == 0);
    });
    check_all(&memory, &lives);
    drop(memory);
    let last = ClientConfig {
        patience: Duration::from_millis(500),
        ..self::config(vec![nodes[2].address.clone()], 1)
    };
    let memory = RemoteMemory::open(&nic(), last).unwrap();
    memory.write(0, &page_bytes(0, 1)).unwrap();
    nodes[2].other.kill();
    let mut found = vec![7; PAGE_BYTES];
    let error = memory.read(0, &mut found).unwrap_err();
    assert!(matches!(error, IoError::Unreachable { page: 0 } | IoError::Lost { page: 0 }), "{error}");
    assert_eq!(found, vec![7; PAGE_BYTES], "an error brings no bytes");
}

#[test]
fn replaces_a_crashed_node_by_a_joining_one() {
    let mut nodes: Vec<NodeProcess> = (0..2).map(|_| NodeProcess::start(16, LONG)).collect();
    let suspect_after = Duration::from_millis(100);
    let addresses = addresses(&nodes);
    let config = ClientConfig { suspect_after, nodes_max: 2, ..config(addresses[..1].to_vec(), 2) };
    let memory = RemoteMemory::open(&nic(), config).unwrap();
    let lives = lives();
    under_load(&memory, &lives, || {
        until("one node has all it can", || memory.status().extents == PAGES * PAGE_BYTES / SLAB_BYTES);
        assert!(memory.join(&addresses[1]).unwrap() && !memory.join(&addresses[1]).unwrap());
        until_whole(&memory);
    });
    assert!(memory.join("127.0.0.1:9").is_err(), "there is room for two");
    under_load(&memory, &lives, || {
        nodes[0].other.kill();
        until("its replicas are given up", || memory.status().nodes[0].replicas == 0);
    });
    check_all(&memory, &lives);
}

/// A client is stopped for longer than its lease, and its slab is granted to another one. When the client resumes, its
/// late WRITEs fail.
#[test]
fn ignores_writes_after_lease_expiry() {
    let node = NodeProcess::start(1, Duration::from_secs(4));
    let mut client = Other::start("client", &[&node.address]);
    client.wait_for("writing");
    loop {
        client.signal(Signal::STOP);
        until("its lease expires", || node.status().holders.is_empty());
        if has_room(&node.address) {
            break;
        }
        // The client was stopped during an access, so the memory that it may still write to is not granted to others.
        // Resume it, with a new lease.
        client.signal(Signal::CONT);
        until("it writes again", || node.status().holders.iter().any(|holder| holder.slabs == 1));
    }
    let memory = RemoteMemory::open(&nic(), config(vec![node.address.clone()], 1)).unwrap();
    let bytes: Vec<u8> = (0..SLAB_BYTES / PAGE_BYTES).flat_map(|page| page_bytes(page, 1)).collect();
    let has_written = memory.write(0, &bytes).is_ok();
    assert!(has_written && node.held() == 1);
    client.signal(Signal::CONT);
    let failed = client.wait_for("failed after");
    let mut found = vec![0; SLAB_BYTES];
    let read = memory.read(0, &mut found);
    assert!(read.is_ok() && found == bytes, "{read:?}; the other: {failed}");
    memory.scrub().unwrap();
    let counts = memory.status().counts;
    assert_eq!((counts.wrong, counts.repaired), (0, 0), "nothing was written there");
}

/// Returns whether a node grants a slab to a new client.
fn has_room(address: &str) -> bool {
    let call_node = |request: &Request| call_node(&nic(), address, request);
    let Ok(Reply::Leased { lease, .. }) =
        call_node(&Request::Lease { version: wire::VERSION, name: "new".into() })
    else {
        panic!("no lease")
    };
    let begun = Instant::now();
    let granted = loop {
        match call_node(&Request::Grant { lease, slab: 1 }) {
            Ok(Reply::Wait) => assert!(begun.elapsed() < LOST, "not in time: it grants or refuses"),
            granted => break granted,
        }
    };
    call_node(&Request::End { lease }).unwrap();
    granted.is_ok()
}

#[test]
fn polls_by_callers_while_threads_compete() {
    let node = NodeProcess::start(8, LONG);
    let config = ClientConfig { caller_polling: false, ..config(vec![node.address.clone()], 1) };
    let memory = RemoteMemory::open(&nic(), config).unwrap();
    let bytes = page_bytes(0, 1);
    memory.write(0, &bytes).unwrap();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 * cores {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let begun = Instant::now();
        let mut found = vec![0; PAGE_BYTES];
        while memory.status().counts.driven_by_callers == 0 && begun.elapsed() < LOST {
            memory.read(0, &mut found).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(found == bytes && memory.status().counts.driven_by_callers > 0);
    });
}

#[test]
fn returns_node_memory_under_load() {
    // A client learns of the drain when it renews its lease.
    let nodes: Vec<NodeProcess> = (0..3).map(|_| NodeProcess::start(16, Duration::from_secs(10))).collect();
    let memory = RemoteMemory::open(&nic(), config(addresses(&nodes), 2)).unwrap();
    let lives = lives();
    under_load(&memory, &lives, || until_whole(&memory));
    for node in &nodes {
        under_load(&memory, &lives, || {
            node.call_node(&Request::Drain { is_wanted: true });
            until("it has its memory back", || node.held() == 0);
        });
        node.call_node(&Request::Drain { is_wanted: false });
        check_all(&memory, &lives);
    }
}

#[test]
fn returns_all_slabs_when_a_client_closes() {
    let nodes: Vec<NodeProcess> = (0..2).map(|_| NodeProcess::start(16, LONG)).collect();
    let memory = RemoteMemory::open(&nic(), config(addresses(&nodes), 2)).unwrap();
    memory.write(0, &vec![1; SIZE_BYTES as usize]).unwrap();
    assert!(nodes.iter().all(|node| node.held() == (PAGES * PAGE_BYTES / SLAB_BYTES) as u32));
    drop(memory);
    // No lease expires in this time.
    until("everything is given back", || nodes.iter().all(|node| node.held() == 0));
}

#[test]
fn rejects_old_leases_after_a_node_restart() {
    let mut node = NodeProcess::start(4, LONG);
    let reply = node.call_node(&Request::Lease { version: wire::VERSION, name: "old".into() });
    let Reply::Leased { lease, incarnation, .. } = reply else { panic!("{reply:?}") };
    node.call_node(&Request::Grant { lease, slab: 1 });
    node.other.kill();
    let again = NodeProcess::start(4, LONG);
    assert_ne!(again.status().incarnation, incarnation);
    let refused = call_node(&nic(), &again.address, &Request::Grant { lease, slab: 1 });
    let is_unknown = |failed: &NodeCallError| matches!(failed, NodeCallError::Refused(refusal) if refusal.kind == wire::RefusalKind::UnknownLease);
    assert!(refused.as_ref().is_err_and(is_unknown), "{refused:?}");
}

#[test]
fn explains_why_remote_memory_cannot_be_opened() {
    let config = config(vec!["127.0.0.1:1".into()], 1);
    let error = RemoteMemory::open(&nic(), config).err().unwrap().to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("is the server running"), "{error}");
    let wrong = ClientConfig { size_bytes: 5_000, ..self::config(vec!["x".into()], 1) };
    let error = RemoteMemory::open(&nic(), wrong).err().unwrap().to_string();
    assert!(error.contains("size_bytes is 5000: make it a multiple of 4096"), "{error}");
    let large = ClientConfig { size_bytes: 1 << 50, ..self::config(vec!["x".into()], 1) };
    let error = RemoteMemory::open(&nic(), large).err().unwrap().to_string();
    assert!(error.contains("size_bytes / slab_bytes is 17179869184: from 1 to 65536"), "{error}");
}

/// A caller drives the engine, or another caller or the thread drives it instead; or only the thread drives it.
#[test]
fn keeps_bytes_of_threads_that_share_an_address_space() {
    [true, false].into_iter().for_each(share_an_address_space);
}

fn share_an_address_space(caller_polling: bool) {
    const THREADS: usize = 6;
    const TURNS: usize = 400;
    let nodes = [NodeProcess::start(64, LONG), NodeProcess::start(64, LONG)];
    let config = ClientConfig { caller_polling, ..config(addresses(&nodes), 2) };
    let memory = RemoteMemory::open(&nic(), config).unwrap();
    // These ranges do not end at page boundaries, so two threads share a page.
    let own_bytes = SIZE_BYTES as usize / THREADS / 2 + 100;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let memory = &memory;
            scope.spawn(move || {
                let mut own = vec![0; own_bytes];
                let first = thread * own_bytes;
                let mut rng = SplitMix64::new(thread as u64);
                for turn in 0..TURNS {
                    let from = rng.below(own_bytes as u64) as usize;
                    let len_bytes = (1 + rng.below(4 * PAGE_BYTES as u64) as usize).min(own_bytes - from);
                    let range = from..from + len_bytes;
                    if rng.below(2) == 0 {
                        own[range.clone()].fill((turn + thread) as u8);
                        memory.write((first + from) as u64, &own[range]).unwrap();
                    } else {
                        let mut found = vec![0xEE; len_bytes];
                        memory.read((first + from) as u64, &mut found).unwrap();
                        assert!(
                            found == own[range],
                            "thread {thread}, turn {turn}, {len_bytes} bytes at {from}"
                        );
                    }
                }
            });
        }
    });
    let counts = memory.status().counts;
    assert_eq!((counts.wrong, counts.lost), (0, 0), "{counts:?}");
}
