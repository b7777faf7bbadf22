//! `farcall mount` as programs see it: whoever serves the files is killed, again and again, while they are used. Needs
//! root, /dev/fuse and Linux 6.9.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// After that a test calls something lost, however busy the machine is.
const LOST: Duration = Duration::from_secs(240);

fn farcall() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
    command.stdin(Stdio::null());
    command
}

/// A process that says one line of JSON when it is ready, killed when dropped.
struct Process {
    child: Child,
    ready: Value,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut child = farcall().arg("--json").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Self { child, ready }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A mount over two nodes.
struct Mounted {
    dir: PathBuf,
    mount: Process,
    _nodes: [Process; 2],
}

impl Mounted {
    /// Nothing, with the reason, where nobody may mount.
    fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || File::open("/dev/fuse").is_err() {
            println!("SKIPPED: mounting needs root and /dev/fuse");
            return None;
        }
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let numbers: Vec<u32> = release.split(['.', '-']).map_while(|number| number.parse().ok()).collect();
        if numbers[..2] < [6, 9][..] {
            println!("SKIPPED: Linux {release} does not ask again for what was not answered");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("farcall-{name}-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let serve = ["memory", "serve", "--listen", "127.0.0.1:0", "--size", "128M", "--slab", "4M"];
        let nodes = [(); 2].map(|()| Process::start(&serve));
        let addresses = nodes.each_ref().map(|node| node.ready["rpc"].as_str().unwrap()).join(",");
        let options = ["--nodes", &addresses, "--size", "96M", "--slab", "4M"];
        let mount = Process::start(&[&["mount", dir.to_str().unwrap()], &options[..]].concat());
        Some(Self { dir, mount, _nodes: nodes })
    }

    /// The process that serves; none while it is being replaced.
    fn worker(&self) -> Option<Pid> {
        let pid = self.mount.child.id();
        let children = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        let children = children.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let all: Vec<i32> = children.collect::<String>().split_whitespace().flat_map(str::parse).collect();
        all.first().and_then(|pid| Pid::from_raw(*pid))
    }

    /// Kills whoever serves; whether there was one.
    fn kill_worker(&self) -> bool {
        self.worker().is_some_and(|worker| kill_process(worker, Signal::KILL).is_ok())
    }

    /// Ends it as a user does.
    fn end(mut self) {
        self.mount.signal(Signal::TERM);
        assert!(self.mount.child.wait().unwrap().success());
        assert!(!is_mounted(&self.dir));
        fs::remove_dir(&self.dir).unwrap();
    }
}

fn is_mounted(dir: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(dir.to_str().unwrap())
}

/// Files by name, as they must be.
type Model = BTreeMap<String, Vec<u8>>;

/// One step of a program that knows what everything must be.
fn step(dir: &Path, model: &mut Model, rng: &mut Pcg64Mcg) {
    let name = |rng: &mut Pcg64Mcg| format!("d{}/f{}", rng.random_range(0..3), rng.random_range(0..12));
    let (path, kind) = (name(rng), rng.random_range(0..12));
    let at = dir.join(&path);
    match (kind, model.get_mut(&path)) {
        // What exists is not made again, nor found by who must make it.
        (0..4, None) => {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&at).unwrap();
            let bytes: Vec<u8> = (0..rng.random_range(0..50_000)).map(|_| rng.random()).collect();
            file.write_all(&bytes).unwrap();
            model.insert(path, bytes);
        }
        (0..2, Some(bytes)) => {
            let mut file = OpenOptions::new().append(true).open(&at).unwrap();
            let more: Vec<u8> = (0..rng.random_range(1..9_000)).map(|_| rng.random()).collect();
            file.write_all(&more).unwrap();
            bytes.extend_from_slice(&more);
        }
        (2..6, Some(bytes)) => {
            let file = OpenOptions::new().write(true).open(&at).unwrap();
            let offset = rng.random_range(0..60_000);
            let more: Vec<u8> = (0..rng.random_range(1..9_000)).map(|_| rng.random()).collect();
            file.write_all_at(&more, offset as u64).unwrap();
            bytes.resize(bytes.len().max(offset + more.len()), 0);
            bytes[offset..offset + more.len()].copy_from_slice(&more);
        }
        (6, Some(bytes)) => {
            let len_bytes = rng.random_range(0..60_000);
            OpenOptions::new().write(true).open(&at).unwrap().set_len(len_bytes as u64).unwrap();
            bytes.resize(len_bytes, 0);
        }
        (7, Some(_)) => {
            fs::remove_file(&at).unwrap();
            model.remove(&path);
        }
        (8..10, Some(_)) => {
            let to = name(rng);
            fs::rename(&at, dir.join(&to)).unwrap();
            let bytes = model.remove(&path).unwrap();
            model.insert(to, bytes);
        }
        (10, _) => {
            let extra = dir.join("dir");
            fs::create_dir(&extra).unwrap();
            fs::remove_dir(&extra).unwrap();
        }
        (_, Some(bytes)) => assert!(fs::read(&at).unwrap() == *bytes, "{path} holds other bytes"),
        (_, None) => assert!(!fs::exists(&at).unwrap(), "{path} is there again"),
    }
}

fn check(dir: &Path, model: &Model) {
    let mut found = Model::new();
    for directory in fs::read_dir(dir).unwrap() {
        let directory = directory.unwrap();
        for file in fs::read_dir(directory.path()).unwrap() {
            let file = file.unwrap().path();
            let name = file.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
            found.insert(name, fs::read(&file).unwrap());
        }
    }
    assert!(found.keys().eq(model.keys()), "{:?}, not {:?}", found.keys(), model.keys());
    assert!(found == *model, "files hold other bytes");
}

#[test]
fn programs_only_wait_when_whoever_serves_is_killed() {
    let seed = std::env::var("FARCALL_SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let Some(mounted) = Mounted::new("kills") else { return };
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut model = Model::new();
    (0..3).for_each(|number| fs::create_dir(mounted.dir.join(format!("d{number}"))).unwrap());
    // A handle that is open all the time, to a file whose name is gone.
    let held =
        OpenOptions::new().read(true).write(true).create_new(true).open(mounted.dir.join("held")).unwrap();
    fs::remove_file(mounted.dir.join("held")).unwrap();
    let (is_over, kills, steps) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut pauses = Pcg64Mcg::seed_from_u64(seed + 1);
            let mut last = 0;
            while !is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(pauses.random_range(0..300)));
                // Sometimes before it serves; not always, or nothing would ever be done.
                let now = steps.load(Ordering::SeqCst);
                if now > last || pauses.random_range(0..4) == 0 {
                    kills.fetch_add(mounted.kill_worker().into(), Ordering::SeqCst);
                    last = now;
                }
            }
        });
        let _end = EndOnDrop(&is_over);
        let begun = Instant::now();
        let mut number = 0_u64;
        while kills.load(Ordering::SeqCst) < 25 || number < 500 {
            assert!(begun.elapsed() < LOST, "not in time");
            step(&mounted.dir, &mut model, &mut rng);
            number += 1;
            steps.store(number, Ordering::SeqCst);
            held.write_all_at(&number.to_le_bytes(), number * 8).unwrap();
            if number.is_multiple_of(50) {
                check_held(&held, number);
            }
        }
        check_held(&held, number);
        println!("{number} steps, {} kills", kills.load(Ordering::SeqCst));
    });
    fs::metadata(&mounted.dir).unwrap();
    check(&mounted.dir, &model);
    drop(held);
    mounted.end();
}

/// The killer ends also when a check fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn check_held(held: &File, last: u64) {
    let mut bytes = vec![0; (last as usize + 1) * 8];
    held.read_exact_at(&mut bytes, 0).unwrap();
    let numbers = bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number));
    assert!(numbers.eq(0..=last), "a file that has no name holds other bytes");
}

#[test]
fn nothing_is_left_mounted_when_the_supervisor_is_killed() {
    let Some(mut mounted) = Mounted::new("supervisor") else { return };
    fs::write(mounted.dir.join("file"), "bytes").unwrap();
    mounted.mount.signal(Signal::KILL);
    mounted.mount.child.wait().unwrap();
    let begun = Instant::now();
    while is_mounted(&mounted.dir) {
        assert!(begun.elapsed() < LOST, "it is still mounted");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(fs::read_dir(&mounted.dir).unwrap().count(), 0);
    fs::remove_dir(&mounted.dir).unwrap();
}
