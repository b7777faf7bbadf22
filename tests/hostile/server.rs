//! A serving binary, and functions shared by its attackers.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Longer than any reply takes. A test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn farcall(args: &[&str]) -> Output {
    Command::new(binary()).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Returns the program under attack: that of `FARCALL_TEST_BINARY`, to verify that an attack succeeds against an older
/// one, else the tested one.
pub fn binary() -> OsString {
    std::env::var_os("FARCALL_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_farcall").into())
}

/// Returns a command that runs as another user of the machine, who is in none of the groups of this one.
pub fn stranger(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.uid(65534).gid(65534).current_dir("/").stdin(Stdio::null());
    command
}

/// A `farcall kv serve` with every front end, which is killed when this is dropped.
pub struct Server {
    command: Vec<OsString>,
    child: Child,
    ready: Value,
}

impl Server {
    pub fn start(name: &str, options: &[&str]) -> Self {
        Self::start_by(&[], name, options)
    }

    /// Starts a server by another command, whose words come first, such as `["nice"]`.
    pub fn start_by(words: &[&str], name: &str, options: &[&str]) -> Self {
        let socket = std::env::temp_dir().join(format!("farcall-hostile-{}-{name}.sock", std::process::id()));
        let mut command: Vec<OsString> = words.iter().map(Into::into).collect();
        command.push(binary());
        command.extend(["--json", "kv", "serve", "--unix"].map(Into::into));
        command.push(socket.into());
        command.extend(options.iter().map(Into::into));
        let (child, ready) = spawn(&command, "127.0.0.1:0", "127.0.0.1:0");
        Self { command, child, ready }
    }

    /// Kills the server and starts another one at the same addresses.
    pub fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        (self.child, self.ready) = spawn(&self.command, self.place("tcp"), self.place("rpc"));
    }

    /// Stops the server, as a debugger does.
    pub fn stop_for(&self, duration: Duration) {
        let process = Pid::from_raw(self.pid() as i32).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        std::thread::sleep(duration);
        kill_process(process, Signal::CONT).unwrap();
    }

    pub fn place(&self, front_end: &str) -> &str {
        let place = &self.ready[front_end];
        place.as_str().or_else(|| place[0].as_str()).unwrap_or_else(|| panic!("no {front_end}: {place}"))
    }

    pub fn pid(&self) -> u64 {
        self.ready["pid"].as_u64().unwrap()
    }

    pub fn bootstrap(&self) -> TcpStream {
        let stream = TcpStream::connect(self.place("rpc")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub fn kv(&self, args: &[&str]) -> Output {
        let address = format!("tcp:{}", self.place("tcp"));
        farcall(&[&["kv"], args, &["--server", &address]].concat())
    }

    /// Asserts that values can be stored and read.
    pub fn assert_serves(&self) {
        let set = self.kv(&["set", "probe", "alive"]);
        assert!(set.status.success(), "{set:?}");
        assert_eq!(self.kv(&["get", "probe"]).stdout, b"alive\n");
    }
}

fn spawn(command: &[OsString], tcp: &str, rpc: &str) -> (Child, Value) {
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .args(["--tcp", tcp, "--rpc", rpc])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(self.place("unix"));
    }
}

/// Asserts that a connected client is served, however long it takes.
pub fn assert_answers(client: &mut TcpStream) {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"mn\r\n").unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"MN\r\n");
}

/// Returns everything that the other side sends until it closes the connection.
pub fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => answer,
        // It closed the connection while sent bytes were unread.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => answer,
        Err(error) => panic!("the server neither answers nor closes: {error}"),
    }
}
