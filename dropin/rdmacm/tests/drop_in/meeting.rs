//! Programs that connect through the connection manager.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Folder, Running, library, words};

/// Returns the path of the library that was built with these tests.
pub fn connection_manager() -> PathBuf {
    let library = library().with_file_name("libfarcall_rdmacm.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// Returns a directory that contains both libraries under the system's names.
pub fn folder(name: &str) -> Folder {
    let folder = Folder::new(&format!("cm-{name}"));
    std::os::unix::fs::symlink(connection_manager(), folder.path("librdmacm.so.1")).unwrap();
    folder
}

/// Returns the name of a listening end in the kernel's list. `port PORT` instead means a TCP port.
pub fn listening_at(space: &str, address: &str) -> String {
    format!("-{space}-{address}.sock")
}

/// Waits until a program listens.
pub fn wait_for(mut server: Running, listening: &str) -> Running {
    let began = Instant::now();
    while !is_there(listening) {
        if server.has_ended() || began.elapsed() > Duration::from_secs(60) {
            panic!("nobody listens at {listening}: {}", words(&server.stop()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    server
}

/// Returns the path of a listener's socket.
pub fn path_of(listening: &str) -> String {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let line = sockets.lines().find(|line| line.ends_with(listening)).expect("a socket that listens");
    line.split_whitespace().last().unwrap().to_owned()
}

/// Returns whether the kernel lists a socket that accepts connections.
fn is_there(listening: &str) -> bool {
    let holds =
        |list: &str, is_it: &dyn Fn(&str) -> bool| std::fs::read_to_string(list).unwrap().lines().any(is_it);
    if let Some(port) = listening.strip_prefix("port ") {
        // State 0A: it listens.
        let local = format!(":{:04X} ", port.parse::<u16>().unwrap());
        return holds("/proc/net/tcp", &|line| line.contains(&local) && line.contains(" 0A "));
    }
    // Flags 00010000: it accepts connections.
    holds("/proc/net/unix", &|line| line.ends_with(listening) && line.contains(" 00010000 "))
}

/// Runs a server and, as soon as it listens, its client; both must succeed. Returns their output.
pub fn meet(server: Command, client: Command, listening: &str) -> (String, String) {
    let described = format!("{client:?}");
    let server = wait_for(Running::start(server), listening);
    let client = Running::start(client).finish();
    // Without a successful client the server would never exit.
    let server = if client.status.success() { server.finish() } else { server.stop() };
    let (heard, said) = (words(&server), words(&client));
    assert!(
        client.status.success() && server.status.success(),
        "{described}, {}: {said}\nits server, {}: {heard}",
        client.status,
        server.status,
    );
    (heard, said)
}

/// Compiles a C program with the system's headers; `None` if there is no compiler or no header.
pub fn compile(source: &str, folder: &Folder) -> Option<String> {
    let header = Path::new("/usr/include/rdma/rdma_cma.h");
    if !header.exists() {
        eprintln!("SKIPPED: no rdma/rdma_cma.h on this machine (Debian: apt-get install librdmacm-dev)");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drop_in").join(source);
    let program = folder.path("program");
    let libraries = ["-lrdmacm", "-libverbs", "-lpthread"];
    let mut compiler = Command::new("gcc");
    compiler.args(["-Wall", "-Werror", "-o", &program]).arg(source).args(libraries);
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    Some(program)
}
