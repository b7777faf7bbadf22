//! `farcall mount` as programs see it: whoever serves the files is killed, again and again, while they are used. Needs
//! root, /dev/fuse and Linux 6.9.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

#[path = "support/mounted.rs"]
mod mounted;
use mounted::{Mounted, Process, can_mount, farcall, is_mounted};

/// After that a test calls something lost, however busy the machine is.
const LOST: Duration = Duration::from_secs(240);

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

/// Two nodes that keep a volume, and a place for mounts of it.
struct VolumeNodes {
    root: PathBuf,
    addresses: String,
    nodes: [Process; 2],
}

const SERVE: [&str; 8] = ["memory", "serve", "--size", "128M", "--slab", "4M", "--lease-ms", "2000"];

impl VolumeNodes {
    fn new(name: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let root = std::env::temp_dir().join(format!("farcall-{name}-{}", std::process::id()));
        fs::create_dir(&root).unwrap();
        let nodes = [(); 2].map(|()| Process::start(&[&SERVE[..], &["--listen", "127.0.0.1:0"]].concat()));
        let addresses = nodes.each_ref().map(|node| node.ready["rpc"].as_str().unwrap()).join(",");
        Some(Self { root, addresses, nodes })
    }

    /// Kills a node and starts it again, empty.
    fn restart(&mut self, at: usize) {
        self.nodes[at].signal(Signal::KILL);
        self.nodes[at].child.wait().unwrap();
        let address = self.addresses.split(',').nth(at).unwrap();
        self.nodes[at] = Process::start(&[&SERVE[..], &["--listen", address]].concat());
    }

    fn key(&self) -> String {
        self.root.join("key").to_str().unwrap().to_owned()
    }

    /// Mounts the volume; what was said instead, if it is refused.
    fn try_mount(&self, name: &str) -> Result<VolumeMount, String> {
        let dir = self.root.join(name);
        let _ = fs::create_dir(&dir);
        let (key, at) = (self.key(), dir.to_str().unwrap().to_owned());
        let options = ["--nodes", &self.addresses, "--size", "96M", "--slab", "4M"];
        let volume = ["--volume", "files", "--volume-key", &key];
        let mount = Process::try_start(&[&["mount", &at], &options[..], &volume[..]].concat())?;
        Ok(VolumeMount { dir, mount })
    }

    /// Mounts the volume when the lease of an earlier mount has ended.
    fn mount(&self, name: &str) -> VolumeMount {
        let begun = Instant::now();
        loop {
            match self.try_mount(name) {
                Ok(mount) => return mount,
                Err(said) => assert!(begun.elapsed() < LOST && said.contains("is mounted by"), "{said}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What a command says of the nodes.
    fn memory(&self, command: &str, more: &[&str]) -> Value {
        let mut asked = farcall();
        asked.args(["--json", "memory", command, "--nodes", &self.addresses]).args(more);
        let output = asked.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for VolumeNodes {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A mount of a volume. Whatever becomes of the test, nobody waits for it for ever: who serves is killed first, stopped
/// or not, and only then is the directory looked at.
struct VolumeMount {
    dir: PathBuf,
    mount: Process,
}

impl VolumeMount {
    /// As if its machine lost power.
    fn kill(&mut self) {
        let worker = self.mount.worker();
        let _ = self.mount.child.kill();
        let _ = self.mount.child.wait();
        if let Some(worker) = worker {
            let _ = kill_process(worker, Signal::KILL);
        }
        let _ = Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status();
    }

    fn signal_all(&self, signal: Signal) {
        self.mount.signal(signal);
        kill_process(self.mount.worker().unwrap(), signal).unwrap();
    }

    /// As a user ends it.
    fn end(mut self) {
        self.mount.signal(Signal::TERM);
        assert!(self.mount.child.wait().unwrap().success());
    }
}

impl Drop for VolumeMount {
    fn drop(&mut self) {
        self.kill();
    }
}

/// All that was done on a mount is at the nodes.
fn sync(dir: &Path) {
    File::open(dir).unwrap().sync_all().unwrap();
}

#[test]
fn a_mount_on_another_machine_has_what_was_synced_when_the_first_one_is_gone() {
    let seed = std::env::var("FARCALL_SEED").map_or(11, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let Some(nodes) = VolumeNodes::new("gone") else { return };
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let (mut model, mut mounted) = (Model::new(), nodes.mount("0"));
    (0..3).for_each(|number| fs::create_dir(mounted.dir.join(format!("d{number}"))).unwrap());
    let refused = nodes.try_mount("refused").err().unwrap();
    assert!(refused.contains("is mounted by") && refused.contains("farcall memory status"), "{refused}");
    for round in 1..4 {
        (0..150).for_each(|_| step(&mounted.dir, &mut model, &mut rng));
        if round == 2 {
            // Another process of the same machine goes on at once.
            assert!(kill_process(mounted.mount.worker().unwrap(), Signal::KILL).is_ok());
            (0..50).for_each(|_| step(&mounted.dir, &mut model, &mut rng));
        }
        sync(&mounted.dir);
        // Nobody was told that this is done; what is not closed may be there, or not.
        let loose = File::create(mounted.dir.join(format!("d0/loose {round}"))).unwrap();
        mounted.kill();
        drop(loose);
        mounted = nodes.mount(&round.to_string());
        let _ = fs::remove_file(mounted.dir.join(format!("d0/loose {round}")));
        check(&mounted.dir, &model);
    }
    // It is there also after it was unmounted, until it is forgotten.
    mounted.end();
    let kept = nodes.memory("status", &[]);
    assert_eq!(
        (kept[0]["volumes"][0]["name"].as_str(), &kept[0]["volumes"][0]["is_mounted"]),
        (Some("files"), &false.into())
    );
    let mounted = nodes.mount("last");
    check(&mounted.dir, &model);
    mounted.end();
    nodes.memory("forget", &["--volume", "files", "--volume-key", &nodes.key()]);
    assert_eq!(nodes.memory("status", &[])[1]["volumes"], Value::Array(Vec::new()));
}

#[test]
fn a_node_of_a_volume_that_was_started_again_has_it_again_while_it_is_mounted() {
    let Some(mut nodes) = VolumeNodes::new("restarted") else { return };
    let mut rng = Pcg64Mcg::seed_from_u64(5);
    let (mut model, mounted) = (Model::new(), nodes.mount("0"));
    (0..3).for_each(|number| fs::create_dir(mounted.dir.join(format!("d{number}"))).unwrap());
    for _ in 0..2 {
        (0..100).for_each(|_| step(&mounted.dir, &mut model, &mut rng));
        nodes.restart(1);
        (0..100).for_each(|_| step(&mounted.dir, &mut model, &mut rng));
        let begun = Instant::now();
        let slabs = || {
            let kept = nodes.memory("status", &[]);
            [0, 1].map(|at: usize| kept[at]["volumes"][0]["slabs"].as_u64())
        };
        while slabs()[1].is_none() || slabs()[1] != slabs()[0] {
            assert!(begun.elapsed() < LOST, "it has no part in the volume: {:?}", slabs());
            std::thread::sleep(Duration::from_millis(50));
        }
        check(&mounted.dir, &model);
    }
    mounted.end();
    let mounted = nodes.mount("1");
    check(&mounted.dir, &model);
    mounted.end();
}

#[test]
fn a_mount_that_was_stopped_beyond_its_lease_changes_nothing_and_shows_nothing() {
    const LEN: usize = 300_000;
    let Some(nodes) = VolumeNodes::new("stopped") else { return };
    let first = nodes.mount("first");
    let path = first.dir.join("file");
    fs::write(&path, [1; LEN]).unwrap();
    sync(&first.dir);
    // A program of the first machine. This process must have nothing open there: who it starts would close that, and
    // wait.
    let mut late = Command::new("sh")
        .args([
            "-c",
            "exec 3<>\"$1\"; echo ready; read go; exec dd if=/dev/zero bs=300000 count=1 1>&3",
            "sh",
        ])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(late.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    first.signal_all(Signal::STOP);
    // It writes, and waits for who serves.
    late.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let second = nodes.mount("second");
    let there = second.dir.join("file");
    assert!(fs::read(&there).unwrap() == [1; LEN]);
    fs::write(&there, [2; LEN]).unwrap();
    sync(&second.dir);
    first.signal_all(Signal::CONT);
    assert!(!late.wait().unwrap().success(), "what it wrote went nowhere");
    let failed = [
        fs::read(&path).unwrap_err(),
        fs::metadata(&path).unwrap_err(),
        fs::read_dir(&first.dir).and_then(|mut lines| lines.next().unwrap()).unwrap_err(),
    ];
    for error in failed {
        let number = error.raw_os_error();
        assert!([Some(libc::ENOTCONN), Some(libc::EIO)].contains(&number), "{error}");
    }
    assert!(fs::read(&there).unwrap() == [2; LEN]);
    second.end();
    let third = nodes.mount("third");
    assert!(fs::read(third.dir.join("file")).unwrap() == [2; LEN]);
    third.end();
}
