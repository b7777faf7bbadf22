//! The library as found by programs, and programs of the system, which may not be installed.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// A temporary directory that contains the library under the system's name; removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink(library(), folder.join("libibverbs.so.1")).unwrap();
        Self(folder)
    }

    /// Returns the path of a file in the directory.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Returns the contents of the files whose names end with `ending`.
    pub fn texts(&self, ending: &str) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let wanted = entries.filter(|path| path.to_str().is_some_and(|path| path.ends_with(ending)));
        wanted.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }

    /// Returns the command of a program that finds the library.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("LD_LIBRARY_PATH", &self.0).stdin(Stdio::null());
        command
    }

    /// Returns the command of a program that also finds the device's files, because the library is preloaded.
    pub fn preloaded(&self, name: &str) -> Command {
        let mut command = self.program(name);
        command.env("LD_PRELOAD", self.0.join("libibverbs.so.1"));
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the path of the library that was built with these tests.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    // For tests, cargo builds it only in the directory of dependencies.
    let library = folder.join("deps/libfarcall_ibverbs.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// Returns whether a program is installed; prints what is skipped otherwise.
pub fn has(program: &str, package: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()));
    if !found {
        eprintln!("SKIPPED: no {program} on this machine (Debian: apt-get install {package})");
    }
    found
}

/// Returns a port on which no process listens, now or later: each is returned only once, and is below those that the
/// kernel assigns to connections.
pub fn free_port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Concurrent tests begin at different ports.
    let first = 10_000 + (std::process::id() % 20_000) as u16;
    let mut ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    ports.find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok()).unwrap().to_string()
}

/// How long a pair of programs may take on a busy machine: perftest computes for six seconds, and may get a hundredth
/// of the machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// A program that does not outlive its test.
pub struct Running(Option<Child>);

impl Running {
    pub fn start(mut command: Command) -> Self {
        Self(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    /// Returns whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        self.0.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
    }

    /// Reads its standard output up to a line that contains `words`.
    pub fn line_with(&mut self, words: &str) -> String {
        let output = self.0.as_mut().and_then(|child| child.stdout.take()).expect("read once");
        let mut lines = BufReader::new(output).lines().map(Result::unwrap);
        lines.find(|line| line.contains(words)).unwrap_or_else(|| panic!("ended without {words:?}"))
    }

    /// Kills it, if it has not exited yet.
    pub fn stop(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        let _ = child.kill();
        child.wait_with_output().unwrap()
    }

    /// Waits for its exit.
    pub fn finish(mut self) -> Output {
        let began = Instant::now();
        let mut child = self.0.take().unwrap();
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("did not end: {}", words(&child.wait_with_output().unwrap()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the output of a program.
pub fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a program as server and as client against each other; both must succeed. Returns their output. The client is
/// started again while the server does not listen yet.
pub fn pair(folder: &Folder, program: &str, arguments: &[&str]) -> (String, String) {
    pair_in(folder, program, arguments, &[])
}

/// Like [`pair`], with variables in the environment of both.
pub fn pair_in(
    folder: &Folder,
    program: &str,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> (String, String) {
    let prepared = || {
        let mut command = folder.program(program);
        command.envs(variables.iter().copied());
        command
    };
    pair_of(&prepared, arguments)
}

/// Like [`pair`], for a program with another command.
pub fn pair_of(program: &dyn Fn() -> Command, arguments: &[&str]) -> (String, String) {
    let port = free_port();
    let command = || {
        let mut command = program();
        command.args(arguments).args(["-p", &port]);
        command
    };
    let mut server = Running::start(command());
    let began = Instant::now();
    let client = loop {
        let mut command = command();
        let client = Running::start({
            command.arg("127.0.0.1");
            command
        })
        .finish();
        let said = words(&client);
        let refused = ["ouldn't connect", "onnection refused"].iter().any(|refused| said.contains(refused));
        if !refused || server.has_ended() || began.elapsed() > PATIENCE {
            break client;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    // Without a client the server would never exit.
    let server = if client.status.success() { server.finish() } else { server.stop() };
    assert!(
        client.status.success() && server.status.success(),
        "{:?}\nserver, {}: {}\nclient, {}: {}",
        command(),
        server.status,
        words(&server),
        client.status,
        words(&client),
    );
    (words(&server), words(&client))
}

/// Returns the system's own library, if it is installed; prints what is skipped otherwise.
pub fn system_library(name: &str, package: &str) -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    if found.is_none() {
        eprintln!("SKIPPED: no {name} on this machine (Debian: apt-get install {package})");
    }
    found
}

/// Returns `name@@version` of all symbols that a library defines for newly linked programs.
pub fn defined(library: &Path) -> BTreeSet<String> {
    versioned(library).into_iter().filter(|name| name.contains("@@")).collect()
}

/// Returns `name@version` of all symbols that a library defines, including those for programs linked with other
/// releases.
pub fn exported(library: &Path) -> BTreeSet<String> {
    versioned(library).into_iter().map(|name| name.replace("@@", "@")).collect()
}

fn versioned(library: &Path) -> Vec<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output();
    let output = output.expect("nm of binutils, which comes with the linker");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| name.contains('@'))
        .map(str::to_owned)
        .collect()
}

/// A name that a library exports since some release.
pub struct Exported {
    pub name: String,
    pub node: String,
    /// The release that introduced it.
    pub since: u32,
}

/// Reads a list of names by version node and release: `NODE since RELEASE`, then names, indented.
pub fn releases(text: &str) -> Vec<Exported> {
    let mut node = ("", 0);
    let mut names = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some((name, since)) = line.split_once(" since ") {
            node = (name, since.parse().expect("a release"));
            continue;
        }
        names.extend(line.split_whitespace().map(|name| Exported {
            name: name.to_owned(),
            node: node.0.to_owned(),
            since: node.1,
        }));
    }
    names
}

/// `unshare`, to run a program in its own namespaces, except for the network's.
pub fn contained(mut unshare: Command) -> Command {
    let all = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child=SIGKILL"];
    unshare.args(all).args(["--ipc", "--mount", "--mount-proc"]);
    unshare
}

/// Returns whether containers can be created here; prints what is skipped otherwise.
pub fn has_containers() -> bool {
    let mut command = contained(Command::new("unshare"));
    command.args(["--net", "true"]);
    let tried = Running::start(command).finish();
    if !tried.status.success() {
        eprintln!("SKIPPED: no user namespaces here: {}", words(&tried).trim());
    }
    tried.status.success()
}
