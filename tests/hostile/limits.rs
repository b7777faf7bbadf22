//! Data that exceeds a limit is refused, and the previous content is retained.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use serde_json::Value;

use crate::server::{PATIENCE, Server, farcall, read_to_end};

#[test]
fn rejects_an_oversized_value_and_removes_the_old_one() {
    let server = Server::start("oversized", &["--value-max", "1024"]);
    assert!(server.kv(&["set", "k", "old"]).status.success());
    let refused = server.kv(&["set", "k", &"x".repeat(1025)]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("too large"), "{error}");
    assert_eq!(server.kv(&["get", "k"]).status.code(), Some(3));
    assert!(server.kv(&["set", "k", &"x".repeat(1024)]).status.success());
}

#[test]
fn rejects_writes_to_a_full_store_without_evicting() {
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
    // Acknowledged values can still be read.
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
