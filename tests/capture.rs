//! `farcall capture`: content of the file of a run, its interpretation by tshark, and the end of the command.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

#[path = "../fabric/capture/tests/captures/support.rs"]
mod support;
use support::{Capture, check, read};

const FARCALL: &str = env!("CARGO_BIN_EXE_farcall");

/// A directory that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("farcall-capture-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("run.pcapng")
    }

    /// Returns the capture, which must be the only remaining file.
    fn capture(&self) -> Capture {
        let names: Vec<_> = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["run.pcapng"]);
        assert_eq!(fs::metadata(self.file()).unwrap().permissions().mode() & 0o777, 0o600);
        read(&self.file())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn capture_of(file: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(FARCALL);
    command.args(["capture", "-o"]).arg(file).arg("--").args(words);
    command
}

fn run(command: &mut Command) -> (Output, String) {
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, told)
}

/// Checks that tshark recognizes every frame as InfiniBand and none as malformed. tshark guesses the protocol of the
/// payload, which only the application knows; guesses that the payload of the conformance suite misleads are disabled.
fn require_clean(file: &Path, frames: usize) {
    const GUESSES: [&str; 6] = [
        "--disable-protocol",
        "rpcordma",
        "--disable-protocol",
        "idp",
        "--disable-heuristic",
        "mellanox_eoib",
    ];
    let matching = |filter: &str| {
        let output = Command::new("tshark").arg("-r").arg(file).args(GUESSES).args(["-Y", filter]).output();
        output.map(|output| {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        })
    };
    let whole = "infiniband.bth.opcode && infiniband.invariant.crc && !_ws.malformed";
    let Ok(dissected) = matching(whole) else {
        println!("skipped: tshark is not installed");
        return;
    };
    let others = matching(&format!("!({whole})")).unwrap();
    assert_eq!(
        dissected.lines().count(),
        frames,
        "frames in which tshark finds no mistake; others: {others}"
    );
}

#[test]
fn merges_two_processes_of_all_transports_into_a_valid_capture() {
    let folder = Folder::new("conform");
    let filters = ["rc/send/*", "rc/read/*", "rc/fetch-add/*", "rc/cmp-swap/*", "uc/write/*", "ud/send/*"];
    let mut words = vec![FARCALL, "conform", "--sides", "processes"];
    filters.iter().for_each(|filter| words.extend(["--filter", filter]));
    let (output, told) = run(&mut capture_of(&folder.file(), &words));
    assert!(output.status.success(), "{output:?}");
    let capture = folder.capture();
    assert!(told.contains(&format!("{} packets", capture.frames.len())), "{told}");
    let mut opcodes = BTreeSet::new();
    for frame in &capture.frames {
        opcodes.insert(check(frame).packet.opcode());
        let interface = &capture.interfaces[frame.interface];
        assert_eq!(interface.description, "synthesised from shared memory, not a network");
    }
    let expected = [0x04, 0x0c, 0x10, 0x11, 0x12, 0x14, 0x2a, 0x64];
    assert!(expected.iter().all(|opcode| opcodes.contains(opcode)), "{opcodes:x?}");
    assert!(capture.frames.is_sorted_by_key(|frame| frame.ns));
    let processes = capture.interfaces.iter().filter(|interface| interface.received > 0).count();
    assert!(processes >= 2, "{processes} processes have recorded something");
    require_clean(&folder.file(), capture.frames.len());
}

/// Captures packets over the loopback of a network namespace of its own, where the port is free.
fn capture_over_roce(name: &str, faults: &str) -> (Folder, Capture) {
    let folder = Folder::new(name);
    let script = "ip link set lo up && exec \"$@\"";
    let inner = [FARCALL, "conform", "--filter", "rc/write/*", "--filter", "uc/send/*"];
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c", script, "sh", FARCALL, "capture", "-o"]);
    command.arg(folder.file()).arg("--").args(inner);
    let (output, _) = run(command.envs([("FARCALL_TRANSPORT", "roce"), ("FARCALL_WIRE_FAULTS", faults)]));
    assert!(output.status.success(), "{output:?}");
    let capture = folder.capture();
    assert!(
        capture.frames.iter().all(|frame| capture.interfaces[frame.interface].name.starts_with("RoCEv2"))
    );
    (folder, capture)
}

#[test]
fn packets_of_roce_are_recorded_as_sent_and_as_received() {
    let (folder, capture) = capture_over_roce("roce", "");
    let (sent, received): (Vec<_>, Vec<_>) = capture.frames.iter().partition(|frame| frame.is_out);
    let known: BTreeSet<&[u8]> = sent.iter().map(|frame| &frame.bytes[..]).collect();
    assert!(!received.is_empty());
    for frame in &received {
        check(frame);
        assert!(known.contains(&frame.bytes[..]), "received what nobody sent");
    }
    require_clean(&folder.file(), capture.frames.len());
}

#[test]
fn packets_are_recorded_after_the_faults_of_the_wire() {
    let (_folder, capture) = capture_over_roce("faults", "seed=1,duplicate=1");
    let mut sent: Vec<&[u8]> =
        capture.frames.iter().filter(|frame| frame.is_out).map(|frame| &frame.bytes[..]).collect();
    sent.sort_unstable();
    assert!(!sent.is_empty());
    assert!(sent.chunk_by(|a, b| a == b).all(|alike| alike.len() % 2 == 0), "each is sent twice");
}

#[test]
fn a_program_on_the_drop_in_library_is_captured() {
    let folder = Folder::new("verbs-run");
    let has = |words: &[&str]| {
        Command::new(words[0]).args(&words[1..]).output().is_ok_and(|output| output.status.success())
    };
    if !has(&["sh", "-c", "command -v ibv_rc_pingpong"]) || !has(&[FARCALL, "verbs", "run", "--", "true"]) {
        println!("skipped: ibv_rc_pingpong or the drop-in library is not there");
        return;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = format!(
        "ibv_rc_pingpong -g 0 -n 20 -s 3000 -p {port} & for i in $(seq 100); do sleep 0.1; \
         ibv_rc_pingpong -g 0 -n 20 -s 3000 -p {port} 127.0.0.1 && break; done; wait"
    );
    let (output, _) =
        run(&mut capture_of(&folder.file(), &[FARCALL, "verbs", "run", "--", "sh", "-c", &script]));
    assert!(output.status.success(), "{output:?}");
    let capture = folder.capture();
    let packets: Vec<_> = capture.frames.iter().map(check).collect();
    // Twenty messages of three packets in each direction.
    assert_eq!(packets.iter().filter(|received| received.packet.opcode() == 0x02).count(), 40);
    require_clean(&folder.file(), packets.len());
}

#[test]
fn exits_with_the_programs_code_and_reports_an_unused_device() {
    let folder = Folder::new("codes");
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)] {
        let (output, told) = run(&mut capture_of(&folder.file(), &["sh", "-c", script]));
        assert_eq!(output.status.code(), Some(code), "{script}: {told}");
        assert!(told.contains("no process of the program has opened the software RNIC"), "{told}");
        assert_eq!(folder.capture().frames.len(), 0);
    }
    let (output, told) = run(&mut capture_of(&folder.file(), &["/no/such/program"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains("/no/such/program"), "{told}");
    folder.capture();
}

#[test]
fn refuses_to_overwrite_links_devices_and_directories() {
    let folder = Folder::new("places");
    let (kept, link, ran) = (folder.0.join("kept"), folder.0.join("link"), folder.0.join("ran"));
    fs::write(&kept, "kept").unwrap();
    symlink(&kept, &link).unwrap();
    for place in [&link, Path::new("/dev/null"), &folder.0, &folder.0.join("no/such/folder/file")] {
        let (output, told) = run(&mut capture_of(place, &["touch", ran.to_str().unwrap()]));
        assert_eq!(output.status.code(), Some(1), "{}: {told}", place.display());
        assert!(told.contains("cannot"), "{told}");
    }
    assert!(!ran.exists());
    assert_eq!(fs::read(&kept).unwrap(), b"kept");
    assert_ne!(fs::metadata("/dev/null").unwrap().rdev(), 0, "still a device");
}

#[test]
fn a_capture_ends_when_its_program_does_whatever_signal_came() {
    for (signal, is_group, code) in [(Signal::TERM, false, 9), (Signal::INT, true, 8)] {
        let folder = Folder::new(&format!("signal-{}", signal.as_raw()));
        let ready = folder.0.join("ready");
        // The program, not the capture, determines when the run ends after a signal.
        let script = format!(
            "trap 'exit 9' TERM; trap 'sleep 0.2; exit 8' INT; touch {}; while :; do sleep 0.05; done",
            ready.display()
        );
        let mut child = capture_of(&folder.file(), &["sh", "-c", &script]).process_group(0).spawn().unwrap();
        let began = Instant::now();
        while !ready.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "the program does not begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        if is_group { kill_process_group(pid, signal) } else { kill_process(pid, signal) }.unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        fs::remove_file(&ready).unwrap();
        folder.capture();
    }
}
