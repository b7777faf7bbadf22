//! Bad input on every port of a serving binary: one clear answer each, and the service goes on.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Longer than any answer takes, shorter than anybody waits: a test that gets here has failed.
const PATIENCE: Duration = Duration::from_secs(30);

fn farcall(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// A `farcall kv serve` with every door open; killed when dropped.
struct Server {
    child: Child,
    ready: Value,
}

impl Server {
    fn start(name: &str, options: &[&str]) -> Self {
        let socket = std::env::temp_dir().join(format!("farcall-hostile-{}-{name}.sock", std::process::id()));
        let mut child = Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(["--json", "kv", "serve", "--tcp", "127.0.0.1:0", "--rpc", "127.0.0.1:0", "--unix"])
            .arg(&socket)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, ready: serde_json::from_str(&line).unwrap() }
    }

    fn place(&self, door: &str) -> &str {
        let place = &self.ready[door];
        place.as_str().or_else(|| place[0].as_str()).unwrap_or_else(|| panic!("no {door}: {place}"))
    }

    fn bootstrap(&self) -> TcpStream {
        let stream = TcpStream::connect(self.place("rpc")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn kv(&self, args: &[&str]) -> Output {
        let address = format!("tcp:{}", self.place("tcp"));
        farcall(&[&["kv"], args, &["--server", &address]].concat())
    }

    /// Whether values still go in and out, and the process has used no more than it should.
    fn assert_serves(&self) {
        let set = self.kv(&["set", "probe", "alive"]);
        assert!(set.status.success(), "{set:?}");
        assert_eq!(self.kv(&["get", "probe"]).stdout, b"alive\n");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(self.place("unix"));
    }
}

/// Everything the other side says until it closes.
fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => answer,
        // It closed with bytes of ours unread.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => answer,
        Err(error) => panic!("the server neither answers nor closes: {error}"),
    }
}

/// A handshake frame's head: magic, range of versions, kind, body length.
fn head(magic: &[u8; 4], min: u16, max: u16, kind: u8, body_bytes: u32) -> Vec<u8> {
    let mut head = magic.to_vec();
    head.extend(min.to_le_bytes());
    head.extend(max.to_le_bytes());
    head.extend([kind, 0, 0, 0]);
    head.extend(body_bytes.to_le_bytes());
    head
}

#[test]
fn garbage_in_a_handshake_is_refused_in_words_and_harms_nobody() {
    let server = Server::start("handshake", &[]);
    // A neighbour that says nothing costs the others nothing.
    let _silent = server.bootstrap();
    let attempts: [(&str, Vec<u8>, &str); 6] = [
        ("another protocol", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "magic"),
        ("a version of the future", [head(b"FCL1", 900, 901, 1, 1), vec![0]].concat(), "version"),
        ("a frame of 4 GiB", head(b"FCL1", 1, 1, 1, u32::MAX), "allowed"),
        ("a frame of no kind", head(b"FCL1", 1, 1, 77, 4), "77"),
        ("a hello of garbage", [head(b"FCL1", 1, 1, 1, 64), vec![0xFF; 64]].concat(), ""),
        ("a welcome to the server", [head(b"FCL1", 1, 1, 2, 4), vec![0; 4]].concat(), ""),
    ];
    for (what, bytes, says) in attempts {
        let mut stream = server.bootstrap();
        stream.write_all(&bytes).unwrap();
        let answer = read_to_end(&mut stream);
        let text = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(b"FCL1") && text.contains(says), "{what}: {text:?}");
        server.assert_serves();
    }
    // Half a head, then gone.
    server.bootstrap().write_all(b"FCL1\x01").unwrap();
    server.assert_serves();
}

#[test]
fn garbage_on_the_memcached_doors_is_answered_or_closed_and_harms_nobody() {
    let server = Server::start("memcached", &[]);
    let binary_protocol = [&[0x80, 0][..], &[0; 22]].concat();
    let long_key = [b"get ", &[b'k'; 251][..], b"\r\n"].concat();
    let endless = vec![b'x'; 1 << 20];
    let attempts: [(&str, &[u8]); 6] = [
        ("the binary protocol", &binary_protocol),
        ("a line without end", &endless),
        ("unknown commands", b"frobnicate\r\nslabs automove 1\r\n"),
        ("impossible numbers", b"set k 0 0 -1\r\nset k 0 0 99999999999999999999\r\nincr k x\r\n"),
        ("a key of 251 bytes", &long_key),
        ("half a value", b"set k 0 0 100\r\nhalf"),
    ];
    for (what, bytes) in attempts {
        let mut tcp = TcpStream::connect(server.place("tcp")).unwrap();
        let mut unix = UnixStream::connect(server.place("unix")).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        unix.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may close before it has all of it.
        let _ = tcp.write_all(bytes).and_then(|()| tcp.shutdown(std::net::Shutdown::Write));
        let _ = unix.write_all(bytes).and_then(|()| unix.shutdown(std::net::Shutdown::Write));
        for answer in [read_to_end(&mut tcp), read_to_end(&mut unix)] {
            let text = String::from_utf8_lossy(&answer);
            assert!(answer.is_empty() || text.contains("ERROR"), "{what}: {text:?}");
        }
        server.assert_serves();
    }
    let stored = server.kv(&["get", "k"]);
    assert_eq!(stored.status.code(), Some(3), "nothing of it was stored: {stored:?}");
}

#[test]
fn a_value_too_large_is_refused_and_the_old_one_stays() {
    let server = Server::start("oversized", &["--value-max", "1024"]);
    assert!(server.kv(&["set", "k", "old"]).status.success());
    let refused = server.kv(&["set", "k", &"x".repeat(1025)]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("too large"), "{error}");
    assert_eq!(server.kv(&["get", "k"]).stdout, b"old\n");
    assert!(server.kv(&["set", "k", &"x".repeat(1024)]).status.success());
}

#[test]
fn a_full_store_that_may_not_evict_refuses_and_keeps_what_it_has() {
    let server = Server::start("full", &["--memory-mib", "1", "--value-max", "4096", "--no-evict"]);
    let value = "v".repeat(4000);
    let records: String = (0..1000).map(|n| format!("key{n}\t{value}\n")).collect();
    let file = std::env::temp_dir().join(format!("farcall-hostile-{}.tsv", std::process::id()));
    fs::write(&file, records).unwrap();
    let loaded = server.kv(&["load", file.to_str().unwrap(), "--json"]);
    fs::remove_file(&file).unwrap();
    assert_eq!(loaded.status.code(), Some(1));
    let tally: Value = serde_json::from_slice(&loaded.stdout).unwrap();
    let (stored, refused) = (tally["stored"].as_u64().unwrap(), tally["refused"].as_u64().unwrap());
    assert!(stored > 0 && refused > 0 && stored + refused == 1000, "{tally}");
    assert!(String::from_utf8_lossy(&loaded.stderr).contains("out of memory"), "{loaded:?}");
    // What was acknowledged is still there.
    let mut stream = TcpStream::connect(server.place("tcp")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let gets: String = (0..1000).map(|n| format!("get key{n}\r\n")).collect();
    let reader = std::thread::spawn({
        let mut stream = stream.try_clone().unwrap();
        move || String::from_utf8_lossy(&read_to_end(&mut stream)).into_owned()
    });
    stream.write_all(gets.as_bytes()).and_then(|()| stream.write_all(b"quit\r\n")).unwrap();
    let replies = reader.join().unwrap();
    assert_eq!(replies.matches("VALUE key").count() as u64, stored);
    assert_eq!(replies.matches(&value).count() as u64, stored);
}

#[test]
fn a_socket_path_in_use_is_refused_and_its_server_left_alone() {
    let server = Server::start("taken", &[]);
    let path = server.place("unix");
    let second = farcall(&["kv", "serve", "--unix", path]);
    let error = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{error}");
    assert!(error.contains(path) && error.contains("remedy:"), "{error}");
    let still_there = farcall(&["kv", "stats", "--server", &format!("unix:{path}")]);
    assert!(still_there.status.success(), "{still_there:?}");
}
