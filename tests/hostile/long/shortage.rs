//! Descriptors, memory for buffers and /dev/shm are exhausted under load, one after another. Connected clients
//! continue, others can connect after the shortage has ended, and the resources that it used are released. Threads
//! cannot be exhausted: a server creates all of its threads at its start.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::door::{Client, Door, Outcome};
use super::holdings::Holdings;
use super::neighbour::Neighbour;
use super::traffic::attack_for;
use super::{attack_time, seed};
use crate::server::{PATIENCE, Server};

/// A resource that a server is deprived of.
#[derive(Clone, Copy, Debug)]
enum Shortage {
    Descriptors,
    Buffers,
    DevShm,
}

impl Shortage {
    /// Begins the shortage; returns a function that ends it.
    fn begin(self, server: &Server) -> Box<dyn FnOnce() + '_> {
        let now = Holdings::of(server);
        match self {
            Self::Descriptors => limit(server, "nofile", now.descriptors as u64),
            Self::Buffers => {
                let held: Vec<TcpStream> = (0..HALF_SENT).filter_map(|_| half_sent(server)).collect();
                Box::new(move || drop(held))
            }
            Self::DevShm => {
                let file = format!("/proc/{}/root/dev/shm/all", server.pid());
                let _ = fs::write(&file, vec![0; 1 << 20]);
                Box::new(move || fs::remove_file(file).expect("what we wrote"))
            }
        }
    }
}

/// Number of connections that each send half of a large value: twice the limit of the buffers.
const HALF_SENT: usize = 160;

fn half_sent(server: &Server) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(server.place("tcp")).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    // The server may close the connection because of it.
    let _ = stream.write_all(b"set half 0 0 1000000\r\n").and_then(|()| stream.write_all(&[b'h'; 900_000]));
    Some(stream)
}

/// Sets a soft limit of the server.
fn limit<'a>(server: &'a Server, resource: &'static str, limit: u64) -> Box<dyn FnOnce() + 'a> {
    let prlimit = move |words: &[String]| {
        let output =
            Command::new("prlimit").arg(format!("--pid={}", server.pid())).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let had = prlimit(&[format!("--{resource}"), "--noheadings".into(), "--output=SOFT".into()]);
    prlimit(&[format!("--{resource}={limit}:")]);
    Box::new(move || {
        prlimit(&[format!("--{resource}={had}:")]);
    })
}

/// Connects new clients to every front end, until each has a reply. Returns how long that took.
fn come_in(server: &Server) -> Duration {
    let began = Instant::now();
    for door in [
        Door::Tcp(server.place("tcp").into()),
        Door::Unix(server.place("unix").into()),
        Door::Rpc(server.place("rpc").into()),
    ] {
        while !matches!(Client::new(door.clone()).get(b"newcomer"), Outcome::Known(_)) {
            assert!(began.elapsed() < PATIENCE, "newcomers are not served after the shortage");
        }
    }
    began.elapsed()
}

fn survive(shortage: Shortage, server: &Server, neighbours: &mut [Neighbour], duration: Duration, seed: u64) {
    let before = Holdings::at_rest(server);
    let is_over = AtomicBool::new(false);
    let answers = |neighbours: &[Neighbour]| neighbours.iter().map(|one| one.answers).sum::<u64>();
    let had_answers = answers(neighbours);
    let came_in = thread::scope(|scope| {
        for neighbour in neighbours.iter_mut() {
            scope.spawn(|| neighbour.work_until(&is_over));
        }
        let end = shortage.begin(server);
        attack_for(server, duration, seed);
        assert_eq!(Holdings::of(server).threads, before.threads, "threads could run out, too");
        end();
        let came_in = come_in(server);
        is_over.store(true, Ordering::Relaxed);
        came_in
    });
    let got = answers(neighbours) - had_answers;
    println!("{shortage:?}: {got} answers to neighbours, newcomers served {came_in:?} after it");
    assert!(got > 0);
    before.assert_given_back(server);
}

#[test]
#[ignore = "runs long"]
fn keeps_connections_through_shortages_and_recovers() {
    let seed = seed();
    let small = "mount -t tmpfs -o size=256k small /dev/shm && exec \"$@\"";
    let words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", small, "sh"];
    let server = Server::start_by(&words, "shortage", &["--partitions", "2"]);
    let mut neighbours = Neighbour::one_of_each(&server);
    neighbours[0].fill_store();
    attack_for(&server, attack_time() / 10, seed ^ 1);
    let shortages = [Shortage::Descriptors, Shortage::Buffers, Shortage::DevShm];
    for (at, shortage) in (0..).zip(shortages) {
        survive(shortage, &server, &mut neighbours, attack_time() / shortages.len() as u32, seed + at);
    }
}
