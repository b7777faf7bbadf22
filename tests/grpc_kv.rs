//! `farcall grpc kv`: a server as users start it, and its clients.
#![cfg(feature = "full")]

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn farcall(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
    command.args(args).stdin(Stdio::null());
    command
}

/// A directory of this process that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id())))
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(folder: &Folder, options: &[&str]) -> (Child, Value) {
    let args = ["--json", "grpc", "kv", "--listen", "127.0.0.1:0", "--dir", folder.text()];
    let mut child = farcall(&args).args(options).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}")))
}

#[test]
fn reports_address_and_durability_and_ends_cleanly() {
    for (transport, durability) in [("native", "group"), ("http2", "each"), ("tcp", "process")] {
        let folder = Folder::new(&format!("grpc-kv-{transport}"));
        let (mut server, ready) = start(&folder, &["--transport", transport, "--durability", durability]);
        assert_eq!((&ready["serving"], &ready["transport"]), (&"grpc-kv".into(), &transport.into()));
        assert_eq!((&ready["durability"], &ready["dir"]), (&durability.into(), &folder.text().into()));
        assert!(ready["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{ready}");
        // The store is in use, which a second server must report.
        let second =
            farcall(&["grpc", "kv", "--listen", "127.0.0.1:0", "--dir", folder.text()]).output().unwrap();
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(!second.status.success() && said.contains("another process has the store"), "{said}");
        let pid = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn rejects_an_invalid_store_and_incompatible_options() {
    let folder = Folder::new("grpc-kv-refused");
    std::fs::write(&folder.0, "a file").unwrap();
    let refused = farcall(&["grpc", "kv", "--dir", folder.text()]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    std::fs::remove_file(&folder.0).unwrap();
    assert!(refused.status.code() == Some(1) && said.contains("may write"), "{said}");
    let args = ["grpc", "kv", "--transport", "tcp", "--provider", "softnic", "--dir", folder.text()];
    let refused = farcall(&args).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn workloads_are_measured_beside_each_other() {
    let args = ["--json", "bench", "grpc", "--workload", "A,E", "--preset", "tcp,native", "--records", "200"];
    let more = ["--operations", "100", "--clients", "2", "--repetitions", "1"];
    let measured = farcall(&[&args[..], &more[..]].concat()).output().unwrap();
    let json: Value = serde_json::from_slice(&measured.stdout).unwrap_or_else(|_| panic!("{measured:?}"));
    let rows = json["tables"][0]["rows"].as_array().unwrap();
    let named: Vec<_> = rows.iter().map(|row| (&row["workload"], &row["preset"])).collect();
    let of = |workload: &'static str, preset: &'static str| (Value::from(workload), Value::from(preset));
    let wanted = [of("A", "tcp"), of("A", "native"), of("E", "tcp"), of("E", "native")];
    assert_eq!(named, wanted.iter().map(|(workload, preset)| (workload, preset)).collect::<Vec<_>>());
}
