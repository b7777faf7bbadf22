//! Misuse of memcached's protocol against its server: commands inside of other protocols, replies that are not read,
//! and changes of the clock.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::server::{PATIENCE, Server, read_to_end};

/// Returns all replies to `sent` on a connection of its own, whose sending side is then closed.
fn converse(server: &Server, sent: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.place("tcp")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may close the connection before it has received all bytes.
    let _ = stream.write_all(sent).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    String::from_utf8_lossy(&read_to_end(&mut stream)).into_owned()
}

#[test]
fn a_page_that_sends_a_browser_here_stores_nothing() {
    let server = Server::start("http", &[]);
    for verb in ["POST", "PUT", "OPTIONS", "GET"] {
        let request = format!("{verb} / HTTP/1.1\r\nHost: x\r\n\r\nset evil 0 0 4\r\nevil\r\nflush_all\r\n");
        assert_eq!(converse(&server, request.as_bytes()), "", "{verb}");
        assert_eq!(converse(&server, b"get evil\r\n"), "END\r\n", "{verb}");
    }
}

#[test]
fn requests_a_stale_item_refresh_from_one_caller_only() {
    let server = Server::start("stale", &["--partitions", "2"]);
    let setup = "ms k 1 T1000\r\n1\r\nmd k I T30\r\nmg k v\r\n";
    assert_eq!(converse(&server, setup.as_bytes()), "HD\r\nHD\r\nVA 1 X W\r\n1\r\n");
    for meddling in ["ms k 1 C1 I T90\r\n2\r\n", "incr k 7\r\n", "incr k 700\r\n", "ma k\r\n"] {
        converse(&server, meddling.as_bytes());
        let looks = (0..4).map(|_| converse(&server, b"mg k t\r\n")).collect::<String>();
        assert!(!looks.contains('W') && looks.matches(" Z X").count() == 4, "after {meddling:?}: {looks}");
        assert!(!looks.contains("t9"), "after {meddling:?} it lives longer: {looks}");
    }
}

#[test]
fn sends_no_reply_for_noreply_requests_that_fail() {
    let server = Server::start("noreply", &["--value-max", "1024"]);
    let sent = [
        b"set w 0 0 1 noreply\r\nw\r\nincr w 1 noreply\r\nincr w x noreply\r\ntouch w x noreply\r\n".to_vec(),
        b"delete w 5 noreply\r\nset w x 0 1 noreply\r\nx\r\nset w 0 0 1 noreply\r\nxyz\r\n".to_vec(),
        [b"set w 0 0 1025 noreply\r\n", &[b'x'; 1025][..], b"\r\nmn\r\n"].concat(),
    ];
    assert_eq!(converse(&server, &sent.concat()), "MN\r\n");
}

#[test]
fn the_binary_protocol_is_refused_before_its_client_says_more() {
    let server = Server::start("binary", &[]);
    let mut stream = TcpStream::connect(server.place("tcp")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[&[0x80, 0x0B][..], &[0; 10], b"same", &[0; 8]].concat()).unwrap();
    let answer = read_to_end(&mut stream);
    assert_eq!((&answer[..2], &answer[12..16]), (&[0x81, 0x0B][..], &b"same"[..]));
    assert!(answer.ends_with(b"use the text protocol"), "{answer:?}");
}

/// Library that adds an hour to the wall clock of the process that loads it, once the file named by `AN_HOUR_LATER`
/// exists.
const HOUR_LATER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, time);
    if (clock == CLOCK_REALTIME && access(getenv("AN_HOUR_LATER"), F_OK) == 0) time->tv_sec += 3600;
    return result;
}
"#;

#[test]
fn a_wall_clock_set_forward_expires_nothing() {
    let base = std::env::temp_dir().join(format!("farcall-hostile-{}-clock", std::process::id()));
    let (library, signal) = (base.with_extension("so"), base.with_extension("later"));
    let compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-x", "c", "-", "-ldl", "-o"])
        .arg(&library)
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut compiler) = compiler else { return eprintln!("skipped: no C compiler") };
    compiler.stdin.take().unwrap().write_all(HOUR_LATER.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
    let preload = format!("LD_PRELOAD={}", library.display());
    let server =
        Server::start_by(&["env", &preload, &format!("AN_HOUR_LATER={}", signal.display())], "clock", &[]);
    assert_eq!(
        converse(&server, b"set k 0 600 1\r\nx\r\nget k\r\n"),
        "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n"
    );
    let time_s = || {
        let stats = converse(&server, b"stats\r\n");
        let line = stats.lines().find_map(|line| line.strip_prefix("STAT time ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    let before_s = time_s();
    std::fs::write(&signal, "").unwrap();
    // The server's report shows that it uses the new time.
    while time_s() < before_s + 3600 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(converse(&server, b"get k\r\n"), "VALUE k 0 1\r\nx\r\nEND\r\n");
    // A Unix time refers to the clock that its sender reads.
    let unix_s = before_s + 3600 + 3000;
    let told = converse(&server, format!("ms told 1 T{unix_s}\r\nx\r\nmg told t\r\n").as_bytes());
    let left_s: u64 =
        told.trim_end().rsplit('t').next().unwrap().parse().unwrap_or_else(|_| panic!("{told}"));
    assert!((1..=3000).contains(&left_s), "{told}");
    let _ = (std::fs::remove_file(library), std::fs::remove_file(signal));
}
