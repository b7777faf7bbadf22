//! `farcall page`: a program whose pages are stored at memory nodes, and the effect of the end of each of the serving
//! processes.
//!
//! A defect here can stop a machine. Tests that swap are ignored by default; `.ci/run` has a step for them, and a
//! guard process for each removes everything if it takes too long. They need root, /dev/fuse, loop devices and a
//! memory cgroup, and report it if these are missing.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Timeout after which a test fails, even on a busy machine.
const LOST: Duration = Duration::from_secs(240);
/// Time after which the guard frees the machine, whatever a test waits for.
const FREED_SECONDS: u32 = 300;
const ROLE: &str = "FARCALL_TEST_ROLE";
const SEED: u64 = 1;
/// Memory of the program, and its limit of resident memory.
const PROGRAM_MIB: usize = 64;
const RESIDENT: &str = "32M";
const PAGE_BYTES: usize = 4096;

fn farcall() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
    command.stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Entry point of the other process: fills memory with known bytes, reports that it is full, then reads it as often as
/// its role specifies.
#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut memory = vec![0_u8; PROGRAM_MIB << 20];
    let mut turns = vec![0_u64; memory.len() / PAGE_BYTES];
    let mut random = Pcg64Mcg::seed_from_u64(SEED);
    memory.chunks_exact_mut(PAGE_BYTES).enumerate().for_each(|(at, page)| fill(page, at, 0));
    println!("\n<full>");
    if role == "waits" {
        std::io::stdin().read_line(&mut String::new()).unwrap();
    } else {
        // The number of rounds, or endless until the process is told to end.
        let rounds = if role == "works" { usize::MAX } else { role.parse().unwrap() };
        let is_told = told_to_end(&role);
        for _ in 0..rounds {
            if is_told.load(Ordering::Relaxed) {
                break;
            }
            let at = random.random_range(0..turns.len());
            let page = &mut memory[at * PAGE_BYTES..][..PAGE_BYTES];
            check(page, at, turns[at]);
            turns[at] += 1;
            fill(page, at, turns[at]);
        }
    }
    memory
        .chunks_exact(PAGE_BYTES)
        .zip(&turns)
        .enumerate()
        .for_each(|(at, (page, turn))| check(page, at, *turn));
    println!("\n<right>");
    std::process::exit(7);
}

/// Returns a flag that is set when a program with the role `works` is told to end.
fn told_to_end(role: &str) -> Arc<AtomicBool> {
    let is_told = Arc::new(AtomicBool::new(false));
    if role == "works" {
        let told = Arc::clone(&is_told);
        std::thread::spawn(move || {
            std::io::stdin().read_line(&mut String::new()).unwrap();
            told.store(true, Ordering::Relaxed);
        });
    }
    is_told
}

fn word(page: usize, turn: u64, at: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left((turn % 63) as u32) ^ at as u64
}

fn fill(bytes: &mut [u8], page: usize, turn: u64) {
    for (at, bytes) in bytes.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(page, turn, at).to_ne_bytes());
    }
}

fn check(bytes: &[u8], page: usize, turn: u64) {
    for (at, bytes) in bytes.chunks_exact(8).enumerate() {
        if bytes != word(page, turn, at).to_ne_bytes() {
            println!("\n<wrong {page}>");
            std::process::exit(99);
        }
    }
}

/// A memory node, which is killed when this is dropped.
struct Node {
    process: Child,
    address: String,
}

impl Node {
    fn start() -> Self {
        Self::of_size("160M")
    }

    fn of_size(size: &str) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        let mut process = farcall()
            .args(["--json", "memory", "serve", "--listen", "127.0.0.1:0", "--size", size, "--slab", "16M"])
            // Locked, because its own pages could otherwise be swapped to itself.
            .args(is_root.then_some("--lock"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        Self { process, address: ready["rpc"].as_str().unwrap().to_owned() }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Process that frees the machine of a run after some time, without relying on other processes, unless this is dropped
/// before.
struct Guard(Child);

impl Guard {
    fn over(supervisor: u32) -> Self {
        let script = format!(
            "sleep {FREED_SECONDS}; kill -9 {supervisor}; \
             for file in $(find /sys/fs/cgroup -path '*/farcall-page-{supervisor}/cgroup.procs'); \
             do for pid in $(cat $file); do kill -9 $pid; done; done; sleep 1; \
             for file in $(grep -l /run/farcall-page/{supervisor}.mount/ /sys/block/loop*/loop/backing_file); do \
             timeout -s KILL 20 swapoff /dev/$(echo $file | cut -d/ -f4); done; \
             umount -f /run/farcall-page/{supervisor}.mount"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The process group, which includes the sleeping command.
        let group = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A run of the program above, with its nodes.
struct Run {
    supervisor: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    nodes: Vec<Node>,
    _guard: Guard,
    _alone: MutexGuard<'static, ()>,
}

/// One run at a time, because each needs a share of the machine's memory.
static ALONE: Mutex<()> = Mutex::new(());

impl Run {
    /// Starts the run, and waits until the program's memory is full; `None` if that is not possible here.
    fn start(role: &str) -> Option<Self> {
        Self::over(vec![Node::start(), Node::start()], role)
    }

    /// Starts the run on these nodes; without nodes the pager stores the pages itself.
    fn over(nodes: Vec<Node>, role: &str) -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = page(&nodes);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "child_entry", "--nocapture"]);
        command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut supervisor = command.spawn().unwrap();
        let guard = Guard::over(supervisor.id());
        let input = supervisor.stdin.take().unwrap();
        let output = BufReader::new(supervisor.stdout.take().unwrap());
        let mut run = Self { supervisor, input, output, nodes, _guard: guard, _alone: alone };
        if run.says("<full>") {
            return Some(run);
        }
        let ended = run.supervisor.wait_with_output().unwrap();
        assert!(said(&ended).contains("nothing was changed"), "{ended:?}");
        println!("SKIPPED: {}", said(&ended));
        None
    }

    /// Returns whether the program prints this text before its output ends.
    fn says(&mut self, words: &str) -> bool {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            assert!(!line.contains("<wrong"), "{line}");
            if line.trim() == words {
                return true;
            }
            line.clear();
        }
        false
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    fn status(&self) -> Value {
        let mut status = farcall();
        let output =
            status.args(["--json", "page", "status", &self.supervisor.id().to_string()]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
            [0]
        .take()
    }

    /// Returns the status once it fulfils a condition; the pager may need time to update its counters.
    fn status_once(&mut self, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            if let Some(ended) = self.supervisor.try_wait().unwrap() {
                let mut said = String::new();
                self.supervisor.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("the run ended meanwhile ({ended}): {said}");
            }
            assert!(begun.elapsed() < LOST, "{status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn pager(&mut self) -> u32 {
        let status = self.status_once(|status| status["pager_pid"].is_u64());
        u32::try_from(status["pager_pid"].as_u64().unwrap()).unwrap()
    }

    /// Waits for the end of the run, and checks that nothing of it remains.
    fn end(mut self) -> (Option<i32>, String) {
        let supervisor = self.supervisor.id();
        // Its output is also read while it ends.
        while self.says("<right>") {}
        let ended = self.supervisor.wait_with_output().unwrap();
        println!("{ended:?}");
        until_nothing_is_left(supervisor);
        (ended.status.code(), said(&ended))
    }
}

fn page(nodes: &[Node]) -> Command {
    let addresses: Vec<_> = nodes.iter().map(|node| &*node.address).collect();
    let mut command = farcall();
    command.args(["page", "--may-stall", "--resident", RESIDENT, "--size", "128M", "--slab", "16M"]);
    match addresses[..] {
        [] => command.arg("--bare"),
        _ => command.args(["--nodes", &addresses.join(",")]),
    };
    command.arg("--");
    command
}

/// Returns whether a path exists; one that cannot be checked counts as existing.
fn is_there(path: &String) -> bool {
    fs::exists(path).unwrap_or(true)
}

/// Returns the remains of a run: mount, record, cgroup and swap area.
fn left_of(supervisor: u32) -> Vec<String> {
    let mut left = Vec::new();
    let mount = format!("/run/farcall-page/{supervisor}.mount");
    for file in ["/proc/self/mountinfo", "/proc/swaps"] {
        let text = fs::read_to_string(file).unwrap();
        left.extend(text.lines().filter(|line| line.contains(&mount)).map(str::to_owned));
    }
    let cgroup = format!("farcall-page-{supervisor}");
    let version_2 = format!("/sys/fs/cgroup/{cgroup}");
    let version_1 = format!("/sys/fs/cgroup/memory/{cgroup}");
    let record = format!("/run/farcall-page/{supervisor}");
    left.extend([version_1, version_2, mount, record].into_iter().filter(is_there));
    for device in fs::read_dir("/sys/block").unwrap() {
        let file = device.unwrap().path().join("loop/backing_file");
        let backing = fs::read_to_string(file).unwrap_or_default();
        left.extend(backing.contains(&format!("/{supervisor}.mount/")).then_some(backing));
    }
    left
}

fn until_nothing_is_left(supervisor: u32) {
    let begun = Instant::now();
    while !left_of(supervisor).is_empty() {
        assert!(begun.elapsed() < LOST, "{:?}", left_of(supervisor));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the number of threads that have not exited.
fn threads_of(pid: u32) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    stats.filter(|stat| !stat.contains(") Z ")).count()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn keeps_bytes_and_exit_code_of_a_program_larger_than_memory() {
    println!("seed {SEED}");
    let Some(mut run) = Run::start("5000") else { return };
    let status = run.status_once(|status| status["reads"]["count"].as_u64() > Some(0));
    assert!(status["used_bytes"].as_u64() > Some(0) && status["priority"].as_i64() > Some(0), "{status}");
    assert!(
        status["writes"]["count"].as_u64() > Some(0) && status["major_faults"].as_u64() > Some(0),
        "{status}"
    );
    assert_eq!(status["replicas_now"]["nodes_up"], 2, "{status}");
    // The kernel writes several pages at once: adjacent ones share a work request.
    let (ratio, pages) = (status["flow"]["merge_ratio"].as_f64(), status["flow"]["pages"].as_u64());
    assert!(pages > Some(1_000) && ratio.is_some_and(|ratio| 0.0 < ratio && ratio < 1.0), "{status}");
    assert_eq!((&status["failures"], &status["replicas_now"]["slabs_degraded"]), (&0.into(), &0.into()));
    assert!(run.says("<right>"));
    assert_eq!(run.end().0, Some(7));
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn states_that_nodes_cannot_hold_all_replicas() {
    let Some(mut run) = Run::over(vec![Node::start(), Node::of_size("16M")], "10") else { return };
    let status = run.status_once(|status| status["replicas_now"]["slabs_in_use"] == 8);
    assert_eq!(status["replicas_now"]["slabs_degraded"], 7, "{status}");
    let (code, said) = run.end();
    assert_eq!(code, Some(7));
    assert!(said.contains("NOT 2 replicas of 7 of 8 slabs"), "{said}");
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn a_memory_node_that_is_lost_costs_a_program_nothing_but_time() {
    println!("seed {SEED}");
    let Some(mut run) = Run::start("2000") else { return };
    run.nodes[0].kill();
    assert!(run.says("<right>"));
    assert_eq!(run.end().0, Some(7));
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn a_page_that_no_node_has_is_a_signal_and_never_other_bytes() {
    let Some(mut run) = Run::start("waits") else { return };
    run.nodes.iter_mut().for_each(Node::kill);
    run.go_on();
    assert!(!run.says("<right>"));
    // SIGBUS.
    assert_eq!(run.end().0, Some(128 + 7));
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn replaces_a_killed_pager_without_losing_bytes() {
    let Some(mut run) = Run::start("works") else { return };
    let mut pagers = vec![run.pager()];
    for _ in 0..3 {
        signal(pagers[pagers.len() - 1], Signal::KILL);
        let next = run.status_once(|status| {
            // The new pager serves: the program continues.
            let pid = status["pager_pid"].as_u64();
            pid.is_some_and(|pid| !pagers.iter().any(|earlier| u64::from(*earlier) == pid))
                && status["reads"]["count"].as_u64() > Some(0)
        });
        pagers.push(u32::try_from(next["pager_pid"].as_u64().unwrap()).unwrap());
        assert_eq!(next["failures"], 0, "{next}");
    }
    run.go_on();
    assert!(run.says("<right>"));
    let (code, said) = run.end();
    assert_eq!(code, Some(7), "{said}");
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn kills_the_program_and_cleans_up_without_a_successor_pager() {
    let Some(mut run) = Run::start("1000000") else { return };
    let pager = run.pager();
    // Stopped, so that it does not react to the loss of its nodes before it is killed.
    signal(pager, Signal::STOP);
    run.nodes.iter_mut().for_each(Node::kill);
    signal(pager, Signal::KILL);
    let (code, said) = run.end();
    assert!(
        code == Some(1) && said.contains("the pager died, and no other could take over"),
        "{code:?} {said}"
    );
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn ends_the_program_whose_pages_a_killed_pager_held() {
    let Some(mut run) = Run::over(Vec::new(), "1000000") else { return };
    run.status_once(|status| status["reads"]["count"].as_u64() > Some(0));
    let pager = run.pager();
    signal(pager, Signal::KILL);
    let (code, said) = run.end();
    assert!(
        code == Some(1) && said.contains("the pager died, and no other could take over"),
        "{code:?} {said}"
    );
    assert!(said.contains("they were in the pager that crashed"), "{said}");
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn the_bench_brings_pages_back_from_each_area_that_there_is() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = farcall();
    bench.args(["--json", "bench", "page", "--size", "24M", "--touches", "500", "--repetitions", "1"]);
    let output = bench.output().unwrap();
    let measured: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    println!("{measured}");
    let areas = measured["areas"].as_array().unwrap();
    let names: Vec<_> = areas.iter().map(|area| area["area"].as_str().unwrap()).collect();
    assert_eq!(names, ["empty loop on FUSE", "farcall page", "swap file", "zram"]);
    for area in areas {
        let is_told = area["not_here"].is_string();
        let is_measured = area["faults"].as_u64() > Some(0) && area["p50_us"].as_f64() > Some(0.0);
        assert!(is_told ^ is_measured, "{area}");
    }
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn releases_the_run_when_the_supervisor_is_killed() {
    let Some(mut run) = Run::start("1000000") else { return };
    run.pager();
    signal(run.supervisor.id(), Signal::KILL);
    let (code, said) = run.end();
    assert!(code.is_none() && said.contains("the supervisor has exited"), "{code:?} {said}");
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn reports_and_cleans_up_after_two_killed_processes() {
    let Some(mut run) = Run::start("waits") else { return };
    let (supervisor, pager) = (run.supervisor.id(), run.pager());
    for pid in [supervisor, pager] {
        signal(pid, Signal::STOP);
    }
    for pid in [supervisor, pager] {
        signal(pid, Signal::KILL);
    }
    run.supervisor.wait().unwrap();
    let begun = Instant::now();
    // All its threads: the first one may exit before the others have closed its files.
    while threads_of(pager) > 0 {
        assert!(begun.elapsed() < LOST);
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = page(&run.nodes).arg("true").output().unwrap();
    let text = said(&refused);
    assert!(refused.status.code() == Some(1) && text.contains("left things behind"), "{refused:?}");
    assert!(text.contains("farcall page cleanup"), "{text}");
    let cleaned = farcall().args(["--json", "page", "cleanup"]).output().unwrap();
    let undone: Value = serde_json::from_slice(&cleaned.stdout).unwrap();
    assert!(undone["undone"].as_array().unwrap().contains(&supervisor.into()), "{cleaned:?}");
    assert_eq!(left_of(supervisor), Vec::<String>::new());
    assert!(!run.says("<right>"));
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn ends_on_a_signal_and_leaves_nothing() {
    let Some(run) = Run::start("1000000") else { return };
    signal(run.supervisor.id(), Signal::INT);
    assert_eq!(run.end().0, Some(130));
}

#[test]
#[ignore = "it swaps: .ci/run page"]
fn a_pager_that_is_stopped_does_not_hold_up_the_end() {
    let Some(mut run) = Run::start("1000000") else { return };
    signal(run.pager(), Signal::STOP);
    signal(run.supervisor.id(), Signal::INT);
    assert_eq!(run.end().0, Some(130));
}

#[test]
fn what_cannot_be_paged_is_said_before_anything_is_begun() {
    let usage = farcall().arg("page").output().unwrap();
    assert!(usage.status.code() == Some(2) && said(&usage).contains("--resident"), "{usage:?}");
    let few = ["page", "--resident", "64M", "--nodes", "127.0.0.1:1", "--replicas", "2", "--", "true"];
    let few = farcall().args(few).output().unwrap();
    assert!(few.status.code() == Some(2) && said(&few).contains("lower --replicas"), "{few:?}");
    let huge = ["page", "--resident", "900T", "--nodes", "127.0.0.1:1", "--replicas", "1", "--", "true"];
    let huge = farcall().args(huge).output().unwrap();
    let text = said(&huge);
    assert!(huge.status.code() == Some(1) && text.contains("nothing was changed"), "{huge:?}");
    assert!(text.contains("of memory are available") && text.contains("lower --resident"), "{text}");
    let none = farcall().args(["page", "status", "1"]).output().unwrap();
    assert!(matches!(none.status.code(), Some(3 | 1)), "{none:?}");
}
