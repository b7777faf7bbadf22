//! `farcall mount` as programs see it: the process that serves the files is killed repeatedly while they are used.
//! Needs root, /dev/fuse and Linux 6.9.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
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
use mounted::{LOST, Mounted, Process, can_mount, farcall, is_mounted};
#[path = "support/mounted_volumes.rs"]
mod mounted_volumes;
use mounted_volumes::{VolumeMount, VolumeNodes, sync};

/// Expected files by name.
type Model = BTreeMap<String, Vec<u8>>;

/// Executes one step of a program that knows the expected content of all files.
fn step(dir: &Path, model: &mut Model, rng: &mut Pcg64Mcg) {
    let name = |rng: &mut Pcg64Mcg| format!("d{}/f{}", rng.random_range(0..3), rng.random_range(0..12));
    let (path, kind) = (name(rng), rng.random_range(0..12));
    let at = dir.join(&path);
    match (kind, model.get_mut(&path)) {
        // `create_new` must succeed: a creation that is repeated after the server was killed must not find its own
        // file.
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
fn blocks_programs_only_until_a_killed_worker_is_replaced() {
    let seed = std::env::var("FARCALL_SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let Some(mounted) = Mounted::new("kills") else { return };
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut model = Model::new();
    (0..3).for_each(|number| fs::create_dir(mounted.dir.join(format!("d{number}"))).unwrap());
    // A handle that remains open, to a file whose name has been removed.
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
                // Sometimes before the new process serves; not always, because no step would then ever complete.
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

/// Ends the killing thread even if a check fails.
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

/// Unmounts a file system at the end of a test, even of one that failed.
struct TakesOff(PathBuf);

impl Drop for TakesOff {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-i", "-l"]).arg(&self.0).stderr(Stdio::null()).status();
    }
}

#[test]
fn attaches_the_directory_only_when_it_serves() {
    if !can_mount() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("farcall-attach-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("below"), "what the directory contained").unwrap();
    // A memory node that accepts connections and never replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let at = dir.to_str().unwrap();
    let child = farcall().args(["mount", at, "--nodes", &address, "--replicas", "1"]).spawn().unwrap();
    let mount = Process { child, ready: Value::Null };
    let begun = Instant::now();
    let connection = loop {
        match silent.accept() {
            Ok(connection) => break connection,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(begun.elapsed() < LOST, "the mount does not connect to its memory node");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(!is_mounted(&dir) && dir.join("below").exists());
    let worker = mount.worker();
    drop(mount);
    if let Some(worker) = worker {
        let _ = kill_process(worker, Signal::KILL);
    }
    drop(connection);
    assert!(!is_mounted(&dir));
    fs::remove_dir_all(&dir).unwrap();
}

/// Returns the time slice of a thread in nanoseconds; 0 before Linux 6.12.
fn slice_of(thread: i32) -> u64 {
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attributes);
    // SAFETY: sched_getattr(2) writes at most `size` bytes to `attributes`, a live local variable of that size.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    attributes.sched_runtime
}

#[test]
fn serves_with_the_shortest_time_slice() {
    let Some(mounted) = Mounted::new("slice") else { return };
    fs::write(mounted.dir.join("file"), "bytes").unwrap();
    if slice_of(0) == 0 {
        println!("SKIPPED: this kernel has no time slices of threads");
        return mounted.end();
    }
    let worker = mounted.worker().unwrap().as_raw_nonzero();
    let serves = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap().starts_with("fuse-");
    let tasks = fs::read_dir(format!("/proc/{worker}/task")).unwrap().map(|task| task.unwrap().path());
    let threads: Vec<PathBuf> = tasks.filter(serves).collect();
    assert!(!threads.is_empty());
    let begun = Instant::now();
    for thread in threads {
        let number: i32 = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
        // The thread may have been started just now.
        while slice_of(number) != 100_000 {
            assert!(begun.elapsed() < LOST, "{} ns", slice_of(number));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    mounted.end();
}

#[test]
fn returns_when_a_mount_serves_and_when_its_volume_is_free() {
    let Some(nodes) = VolumeNodes::new("background") else { return };
    let dir = nodes.root.join("mnt");
    fs::create_dir(&dir).unwrap();
    let _takes_off = TakesOff(dir.clone());
    let at = dir.to_str().unwrap();
    // The command line with which mount(8) calls its helper.
    let options =
        format!("rw,nodes=\"{}\",size=96M,slab=4M,volume_key={},_netdev", nodes.addresses, nodes.key());
    for round in 0..3 {
        // The output ends when no process holds it any more; processes in the background must not hold it.
        let output = farcall().args(["__mount-helper", "files", at, "-o", &options]).output().unwrap();
        assert!(output.status.success(), "round {round}: {}", String::from_utf8_lossy(&output.stderr));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.contains(at)).unwrap();
        assert!(line.contains(" fuse.farcall files "), "{line}");
        let file = dir.join("file");
        assert_eq!(fs::read(&file).unwrap_or_default(), vec![7; round]);
        fs::write(&file, vec![7; round + 1]).unwrap();
        let held = File::open(&file).unwrap();
        let busy = farcall().args(["umount", at]).output().unwrap();
        assert!(!busy.status.success() && is_mounted(&dir));
        drop(held);
        let output = farcall().args(["umount", at]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!is_mounted(&dir));
    }
    let refused =
        farcall().args(["__mount-helper", "files", at, "-o", "nodes=127.0.0.1:1,noexec"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("--noexec"), "{said}");
}

#[test]
fn says_what_to_do_about_a_directory_that_is_occupied() {
    let Some(mut mounted) = Mounted::new("occupied") else { return };
    let _takes_off = TakesOff(mounted.dir.clone());
    let at = mounted.dir.to_str().unwrap().to_owned();
    let mount_again =
        || Process::try_start(&["mount", &at, "--nodes", "127.0.0.1:1", "--replicas", "1"]).err().unwrap();
    let remedy = format!("farcall umount {at}");
    let said = mount_again();
    assert!(said.contains("is mounted there already") && said.contains(&remedy), "{said}");
    // Both processes are killed together, as by a system that is short of memory.
    let worker = mounted.worker().unwrap();
    mounted.mount.signal(Signal::STOP);
    kill_process(worker, Signal::KILL).unwrap();
    mounted.mount.signal(Signal::KILL);
    mounted.mount.child.wait().unwrap();
    let ended = fs::read_dir(&mounted.dir).unwrap_err();
    // ECONNABORTED is returned while the kernel closes the connection.
    assert!([Some(libc::ENOTCONN), Some(libc::ECONNABORTED)].contains(&ended.raw_os_error()), "{ended}");
    let said = mount_again();
    assert!(said.contains(&remedy), "{said}");
    let output = farcall().args(["umount", &at]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!is_mounted(&mounted.dir));
    fs::remove_dir(&mounted.dir).unwrap();
}

#[test]
fn mounts_synced_data_on_another_machine_after_a_crash() {
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
            // Another process on the same machine takes over immediately.
            assert!(kill_process(mounted.mount.worker().unwrap(), Signal::KILL).is_ok());
            (0..50).for_each(|_| step(&mounted.dir, &mut model, &mut rng));
        }
        sync(&mounted.dir);
        // The file has not been synced or closed, so it may exist afterwards or not.
        let loose = File::create(mounted.dir.join(format!("d0/loose {round}"))).unwrap();
        mounted.kill();
        drop(loose);
        mounted = nodes.mount(&round.to_string());
        let _ = fs::remove_file(mounted.dir.join(format!("d0/loose {round}")));
        check(&mounted.dir, &model);
    }
    // The volume also exists after it is unmounted, until it is forgotten.
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

/// Returns the metrics of a mount.
fn metrics_of(mount: &VolumeMount) -> String {
    let explanation = mount.mount.ready["explanation"].as_str().unwrap();
    let (_, address) = explanation.split_once("http://").unwrap();
    let address = address.split_once("/metrics").unwrap().0;
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    std::io::read_to_string(connection).unwrap()
}

/// Returns a value of a client of memory nodes in such metrics.
fn metric(text: &str, name: &str) -> u64 {
    let start = format!("farcall_memory_client_{name}{{number=\"0\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn shows_redundancy_in_metrics_and_scrubs_on_request() {
    let Some(mut nodes) = VolumeNodes::new("metrics") else { return };
    let mount = nodes.try_mount_with("mnt", &["--metrics", "127.0.0.1:0"]).unwrap();
    fs::write(mount.dir.join("file"), vec![7; 1 << 20]).unwrap();
    sync(&mount.dir);
    let until_metrics = |are_right: &dyn Fn(&str) -> bool| {
        let begun = Instant::now();
        loop {
            let text = metrics_of(&mount);
            if are_right(&text) {
                return;
            }
            assert!(begun.elapsed() < LOST, "{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until_metrics(&|text| {
        metric(text, "slabs_in_use") > 0
            && metric(text, "slabs_degraded") == 0
            && metric(text, "nodes_up") == 2
    });
    let scrubbed = nodes.memory("scrub", &[]);
    let clients = scrubbed.as_array().unwrap();
    let has_read = |client: &Value| client["is_scrubbed"] == true && client["pages"].as_u64() >= Some(256);
    assert!(clients.len() == 2 && clients.iter().all(has_read), "{scrubbed}");
    until_metrics(&|text| {
        metric(text, "pages_scrubbed_total") >= 256 && metric(text, "pages_repaired_total") == 0
    });
    nodes.kill(1);
    until_metrics(&|text| metric(text, "slabs_degraded") > 0 && metric(text, "nodes_up") == 1);
    nodes.start_again(1);
    until_metrics(&|text| metric(text, "slabs_degraded") == 0 && metric(text, "nodes_up") == 2);
    mount.end();
}

#[test]
fn readmits_a_restarted_node_of_a_mounted_volume() {
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
