//! Commands at a terminal. Ctrl-C at any time ends each of them with 130, without a report of a failure that did not
//! occur, and without remaining processes. Tables fit the terminal.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout for a command to end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program with a terminal of its own.
struct AtTerminal {
    child: Child,
    terminal: File,
}

impl AtTerminal {
    fn start(args: &[&str]) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let end = File::from(rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap());
        let stdio = || Stdio::from(end.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
        command.args(args).stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: the closure runs between fork and exec and only makes two system calls, which are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(std::io::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        Self { child, terminal: terminal.into() }
    }

    /// Returns the output until no process has the terminal open any more.
    fn read_to_end(&mut self) -> String {
        let mut said = Vec::new();
        // Reading a terminal whose other end is closed fails with EIO.
        let _ = self.terminal.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Returns the running processes of its session.
    fn left(&self) -> Vec<String> {
        let session = self.child.id().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let is_left = |stat: &str| {
            let fields: Vec<&str> =
                stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
            fields.get(3) == Some(&session.as_str()) && fields[0] != "Z"
        };
        let stats = processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
        stats.filter(|stat| is_left(stat)).collect()
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Presses Ctrl-C after `after` and checks the end of the command.
fn interrupt(args: &[&str], after: Duration) {
    let mut program = AtTerminal::start(args);
    std::thread::sleep(after);
    // The command may already have ended.
    let _ = program.terminal.write_all(b"\x03");
    let said = program.read_to_end();
    let status = program.child.wait().unwrap();
    let about = format!("{args:?} after {after:?}: {status}: {said}");
    // The shell shows both as 130: the exit code, and an end by the signal before there is anything to clean up.
    let is_interrupted = status.code() == Some(130) || status.signal() == Some(2);
    assert!(is_interrupted || status.success(), "{about}");
    // A report may state that it was interrupted, and that other programs compete for the processors.
    let said_else = said
        .replace("PROBLEM: interrupted before the end", "")
        .replace("WARNING: while nothing was measured", "");
    for complaint in ["error:", "PROBLEM", "panicked", "WARN", "ERROR"] {
        assert!(!said_else.contains(complaint), "{complaint:?}: {about}");
    }
    // A process that is killed with its parent exits shortly afterwards.
    let until = Instant::now() + PATIENCE;
    while !program.left().is_empty() {
        assert!(Instant::now() < until, "left behind: {:?}: {about}", program.left());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Interrupts each command at times that the seed determines.
fn interrupt_each(commands: &[&[&str]], times: u32) {
    let seed = std::env::var("FARCALL_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("FARCALL_TEST_SEED={seed}");
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    for _ in 0..times {
        for args in commands {
            let longest_ms = *[60, 400, 2_500].get(random.random_range(0..3)).unwrap();
            interrupt(args, Duration::from_millis(random.random_range(0..longest_ms)));
        }
    }
}

#[test]
fn servers_end_by_ctrl_c_at_any_moment() {
    interrupt_each(
        &[
            &["kv", "serve", "--tcp", "127.0.0.1:0", "--rpc", "127.0.0.1:0"],
            &["rpc", "serve", "--listen", "127.0.0.1:0"],
            &["memory", "serve", "--listen", "127.0.0.1:0", "--size", "128M"],
        ],
        3,
    );
}

#[test]
fn measurements_end_by_ctrl_c_at_any_moment() {
    let profile = std::env::temp_dir().join(format!("farcall-interrupts-{}.json", std::process::id()));
    interrupt_each(
        &[
            &["bench", "rpc"],
            &["tune", "--out", profile.to_str().unwrap()],
            &["bench", "stream"],
            &["bench", "remio"],
            &["bench", "grpc"],
            &["bench", "verbs", "all"],
            &["advise"],
            &["conform"],
            &["doctor"],
        ],
        1,
    );
    let _ = std::fs::remove_file(profile);
}

/// Its loading phases take long in a build without optimization.
#[test]
fn the_main_benchmark_ends_by_ctrl_c_at_any_moment() {
    interrupt_each(&[&["bench", "kv", "--records", "1000"]], 2);
}

/// Columns are left out, and named, until a table fits.
#[test]
fn tables_fit_the_terminal() {
    let bench = "bench rpc --preset fetch --window 1 --repetitions 2 --duration-ms 20";
    for columns in [60, 90] {
        let script = format!("stty rows 24 cols {columns}; exec {} {bench}", env!("CARGO_BIN_EXE_farcall"));
        let output = Command::new("script")
            .args(["-qec", &script, "/dev/null"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let rules: Vec<&str> = said.lines().map(str::trim_end).filter(|line| line.starts_with('─')).collect();
        assert!(!rules.is_empty(), "{said}");
        assert!(rules.iter().all(|rule| rule.chars().count() <= columns), "{columns}: {said}");
        assert!(said.contains("not shown:"), "{said}");
    }
}
