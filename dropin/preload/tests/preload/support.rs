//! The library, C programs with two ends, and installed programs, which may be absent.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use farcall_stats::{PathReason, read_pid};

/// Path of the library that was built with these tests.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let directory = test.parent().and_then(Path::parent).unwrap();
    // Tests build it among their dependencies only.
    let library = directory.join("deps/libfarcall_preload.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// A program, with the library or on plain TCP.
pub fn program(name: &str, is_preloaded: bool) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).env_remove("FARCALL_RUN_ONLY").env_remove("FARCALL_RUN_EXCEPT");
    command.env_remove("FARCALL_RUN_AFTER");
    if is_preloaded {
        command.env("LD_PRELOAD", library());
    }
    command
}

/// Returns whether a program is installed; prints what is skipped otherwise.
pub fn has(program: &str, package: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&folders).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.any(|directory| directory.join(program).exists());
    if !found {
        eprintln!("SKIPPED: no {program} on this machine (Debian: apt-get install {package})");
    }
    found
}

/// A temporary directory of a test, removed when dropped.
pub struct TestDirectory(PathBuf);

impl TestDirectory {
    pub fn new(name: &str) -> Self {
        Self::inside_of(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    /// Creates one that another user can reach.
    pub fn reachable(name: &str) -> Self {
        Self::inside_of(&std::env::temp_dir(), name)
    }

    fn inside_of(parent: &Path, name: &str) -> Self {
        let directory = parent.join(format!("preload-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    /// Returns the path of a file in it.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles a program of these tests; `None` if there is no compiler.
pub fn compile(directory: &TestDirectory, name: &str) -> Option<String> {
    compile_with(directory, name, name, &[])
}

/// Compiles `NAME.c` to a file with another name, by further options.
pub fn compile_with(directory: &TestDirectory, name: &str, output: &str, options: &[&str]) -> Option<String> {
    if !has("cc", "gcc") {
        return None;
    }
    let source = format!("{}/tests/preload/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let output = directory.path(output);
    let mut cc = Command::new("cc");
    // Fortified: the functions that check lengths are called, too.
    cc.args(["-Wall", "-O1", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-pthread", "-o", &output, &source]);
    let compiled = cc.args(options).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(output)
}

/// A process that does not outlive its test.
pub struct Running(Child);

impl Running {
    pub fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Returns its standard output and its exit status.
    pub fn finish(&mut self) -> (String, ExitStatus) {
        let mut errors = self.0.stderr.take().unwrap();
        let printed = thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text)
        });
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let status = self.0.wait().unwrap();
        let errors = printed.join().unwrap().unwrap();
        if !errors.is_empty() {
            eprintln!("{errors}");
        }
        (text, status)
    }

    /// Ends it by SIGTERM.
    pub fn stop(&mut self) -> u32 {
        // SAFETY: a child of ours that was not waited for.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let _ = self.finish();
        self.0.id()
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Outputs, exit statuses and process numbers of both ends of a program.
pub struct Ends {
    pub server: (String, ExitStatus),
    pub client: (String, ExitStatus),
    pub pids: [u32; 2],
}

/// Runs both ends of a program of these tests; each with its own last argument.
pub fn both_ends(path: &str, is_preloaded: bool, arguments: [&str; 2]) -> Ends {
    run_both(path, |path| program(path, is_preloaded), arguments)
}

/// As [`both_ends`] with the library; the ends pair as soon as they can.
pub fn both_ends_early(path: &str, arguments: [&str; 2]) -> Ends {
    let early = |path: &str| {
        let mut command = program(path, true);
        command.env("FARCALL_RUN_AFTER", "1");
        command
    };
    run_both(path, early, arguments)
}

fn run_both(path: &str, program: impl Fn(&str) -> Command, arguments: [&str; 2]) -> Ends {
    let mut server = program(path);
    server.args(["server", arguments[0]]);
    let mut server = Running::start(server);
    let mut lines = BufReader::new(server.0.stderr.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let port = line.trim().strip_prefix("port ").unwrap_or_else(|| panic!("no port: {line}")).to_owned();
    let more = thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            eprintln!("server: {line}");
        }
    });
    let mut client = program(path);
    client.args(["client", &port, arguments[1]]);
    let mut client = Running::start(client);
    let pids = [server.pid(), client.pid()];
    let client = client.finish();
    let mut text = String::new();
    server.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let status = server.0.wait().unwrap();
    more.join().unwrap();
    Ends { server: (text, status), client, pids }
}

/// Returns the number of bytes that the connections of a process, as far as they are listed, have moved through shared
/// memory; `None` where the system has no statistics.
pub fn moved_bytes(pid: u32) -> Option<u64> {
    farcall_stats::probe().ok()?;
    // The statistics of few exited processes are retained: those of others may have replaced them.
    Some(read_pid(pid).ok()?.moved_bytes())
}

/// As [`moved_bytes`], for each connection.
pub fn moved_bytes_of_connections(pid: u32) -> Vec<u64> {
    let [sent, received] = ["sent_bytes", "received_bytes"].map(|counter| of_connections(pid, counter));
    sent.into_iter().zip(received).map(|(sent, received)| sent + received).collect()
}

/// Returns the reasons for the transports of a process's connections.
pub fn reasons(pid: u32) -> Vec<&'static str> {
    of_connections(pid, "why").into_iter().filter_map(PathReason::words).collect()
}

/// Returns the lengths in bytes of the rings to the peers of a process.
pub fn ring_bytes(pid: u32) -> Vec<u64> {
    of_connections(pid, "ring_bytes")
}

fn of_connections(pid: u32, counter: &str) -> Vec<u64> {
    let blocks = read_pid(pid).map(|report| report.blocks).unwrap_or_default();
    let connections = blocks.iter().filter(|block| block.label.starts_with("tcp "));
    connections
        .filter_map(|block| Some(block.counters.iter().find(|(name, _)| *name == counter)?.1))
        .collect()
}
