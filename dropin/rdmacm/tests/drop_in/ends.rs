//! Events of programs in error cases: a C program, compiled with the system's headers, in both roles.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, send, socket};

use crate::meeting::{compile, folder, listening_at, path_of, wait_for};
use crate::support::{Folder, Running, free_port, words};

/// Runs a case of the program. Returns its output.
fn run(folder: &Folder, program: &str, arguments: &[&str]) -> String {
    let mut command = folder.program(program);
    command.args(arguments);
    let output = Running::start(command).finish();
    let said = words(&output);
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

/// Each case is a function of the C program, which checks every event, status and byte itself.
#[test]
fn events_are_those_of_the_man_pages() {
    let folder = folder("ends");
    let Some(program) = compile("ends.c", &folder) else { return };
    for case in [
        "nobody",
        "elsewhere",
        "refused",
        "private_data",
        "killed",
        "killed_early",
        "datagrams",
        "ports",
        "sync",
        "errors",
    ] {
        let said = run(&folder, &program, &[case, &free_port()]);
        assert!(said.contains("ok"), "{case}: {said}");
    }
}

/// A peer that sends garbage, sends nothing, or disconnects at once has no effect: the next client is served.
#[test]
fn garbage_at_a_port_does_no_harm() {
    let folder = folder("garbage");
    let Some(program) = compile("ends.c", &folder) else { return };
    let port = free_port();
    let mut server = folder.program(&program);
    server.args(["serve", &port]).stdin(Stdio::piped());
    let listening = listening_at("tcp", &format!("127.0.0.1:{port}"));
    let server = wait_for(Running::start(server), &listening);
    let path = path_of(&listening);
    let name = SocketAddrUnix::new(&path).unwrap();
    let mut silent = Vec::new();
    // The header of a REQ, in a management datagram of 256 bytes.
    let mut header = [0; 24];
    header[..4].copy_from_slice(&[1, 7, 2, 3]);
    header[17] = 0x10;
    let mut foreign = header;
    foreign[2] = 9;
    let nonsense: [Vec<u8>; 8] = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 4096],
        vec![0xff; 512],
        header.to_vec(),
        [header.as_slice(), &[0xff; 232]].concat(),
        [header.as_slice(), &[0; 232]].concat(),
        [foreign.as_slice(), &[0; 232]].concat(),
        Vec::new(),
    ];
    for bytes in nonsense {
        let stranger = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&stranger, &name).unwrap();
        if bytes.is_empty() {
            silent.push(stranger);
        } else {
            // The end may have closed the connection after an earlier packet.
            let _ = send(&stranger, &bytes, rustix::net::SendFlags::NOSIGNAL);
        }
    }
    // From another kind of socket: refused by the kernel.
    if let Ok(mut stream) = std::os::unix::net::UnixStream::connect(&path) {
        let _ = stream.write_all(b"hello");
    }
    run(&folder, &program, &["visit", &port]);
    let said = server.finish();
    assert!(said.status.success() && words(&said).contains("ok"), "{}", words(&said));
}

/// Other users cannot create a port's file first, and files of a killed process do not block other processes.
#[test]
fn keeps_ports_in_a_private_directory_and_reclaims_stale_ones() {
    let folder = folder("places");
    let Some(program) = compile("ends.c", &folder) else { return };
    let [first, second] = [free_port(), free_port()];
    let start = |port: &str| {
        let mut server = folder.program(&program);
        server.args(["serve", port]).stdin(Stdio::piped());
        Running::start(server)
    };
    let serve = |port: &str| wait_for(start(port), &listening_at("tcp", &format!("127.0.0.1:{port}")));
    let killed = serve(&first);
    let left = PathBuf::from(path_of(&listening_at("tcp", &format!("127.0.0.1:{first}"))));
    let directory = std::fs::metadata(left.parent().unwrap()).unwrap();
    let is_own = directory.uid() == rustix::process::geteuid().as_raw() && directory.mode() & 0o077 == 0;
    assert!(is_own, "others may enter {}", left.display());
    killed.stop();
    assert!(left.exists(), "a killed process leaves its socket");
    let other = serve(&second);
    assert!(!left.exists(), "who listens removes what the dead left");
    let refused = start(&second).finish();
    let why = format!("errno {}", rustix::io::Errno::ADDRINUSE.raw_os_error());
    assert!(!refused.status.success() && words(&refused).contains(&why), "{}", words(&refused));
    let again = serve(&first);
    for (server, port) in [(other, &second), (again, &first)] {
        run(&folder, &program, &["visit", port]);
        let said = server.finish();
        assert!(said.status.success() && words(&said).contains("ok"), "{}", words(&said));
    }
    assert!(!left.exists(), "an end that is destroyed leaves nothing");
}
