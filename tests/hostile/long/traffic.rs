//! Connections at random times on every port, with arbitrary content. Other clients get their replies throughout, and
//! the resources that the attack used are released.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use super::holdings::Holdings;
use super::neighbour::Neighbour;
use super::{attack_time, random, seed};
use crate::server::Server;

const ATTACKERS: u64 = 16;

/// A connection of either socket type.
trait Stream: Read + Write {
    fn end_writing(&self);
}

impl Stream for TcpStream {
    fn end_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn end_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// Timeout after which an attacker stops its operation; a connection that is closed by the server is not a failure.
const LONG: Duration = Duration::from_millis(200);

fn connect(server: &Server, random: &mut impl Rng) -> Option<Box<dyn Stream>> {
    let front_end = ["tcp", "unix", "rpc"][random.random_range(0..3)];
    let place = server.place(front_end);
    if front_end == "unix" {
        let stream = UnixStream::connect(place).ok()?;
        stream.set_read_timeout(Some(LONG)).ok()?;
        stream.set_write_timeout(Some(LONG)).ok()?;
        return Some(Box::new(stream));
    }
    let stream = TcpStream::connect(place).ok()?;
    stream.set_read_timeout(Some(LONG)).ok()?;
    stream.set_write_timeout(Some(LONG)).ok()?;
    Some(Box::new(stream))
}

/// Returns a request that begins correctly for one of the front ends.
fn request(random: &mut impl Rng) -> Vec<u8> {
    let len_bytes = [0, 1, 100, 4_000, 100_000, 1 << 20][random.random_range(0..6)];
    let key = random.random_range(0..50);
    match random.random_range(0..6) {
        0 => format!("set attack-{key} 0 0 {len_bytes}\r\n{}\r\n", "x".repeat(len_bytes)).into_bytes(),
        1 => format!("get attack-{key}\r\n").repeat(1 + len_bytes / 100).into_bytes(),
        2 => format!("ms attack-{key} {len_bytes} T5 F1\r\n{}\r\n", "y".repeat(len_bytes)).into_bytes(),
        3 => b"stats\r\nversion\r\n".repeat(1 + len_bytes / 1_000),
        4 => [&b"FCL1\x01\x00\x01\x00"[..], &(len_bytes as u32).to_le_bytes(), &vec![7; len_bytes]].concat(),
        _ => [&[0x80, 1, 0, 4][..], &vec![0; len_bytes]].concat(),
    }
}

fn garbage(random: &mut impl Rng) -> Vec<u8> {
    let len_bytes = 1 << random.random_range(0..18);
    (0..len_bytes).map(|_| random.random()).collect()
}

fn oversized(random: &mut impl Rng) -> Vec<u8> {
    match random.random_range(0..4) {
        0 => vec![b'k'; 2 << 20],
        1 => format!("set k 0 0 {}\r\n", u32::MAX).into_bytes(),
        2 => [format!("set k 0 0 {}\r\n", 8 << 20).as_bytes(), &vec![b'v'; 8 << 20]].concat(),
        _ => [&b"FCL1\x01\x00\x01\x00"[..], &u32::MAX.to_le_bytes()].concat(),
    }
}

/// Executes one kind of misuse on one connection.
fn attack(stream: &mut dyn Stream, random: &mut impl Rng) -> std::io::Result<()> {
    let whole = request(random);
    let mut answer = [0; 4096];
    match random.random_range(0..8) {
        0 => stream.write_all(&garbage(random))?,
        1 => stream.write_all(&oversized(random))?,
        // Part of a request, then nothing.
        2 | 3 => stream.write_all(&whole[..random.random_range(0..whole.len())])?,
        // One byte at a time.
        4 => {
            for byte in whole.iter().take(200) {
                stream.write_all(&[*byte])?;
                thread::sleep(Duration::from_micros(random.random_range(0..2_000)));
            }
        }
        // Many requests without reading a reply.
        5 => {
            for _ in 0..50 {
                stream.write_all(&whole)?;
            }
        }
        // Waits without sending anything.
        6 => {
            let _ = stream.read(&mut answer)?;
        }
        _ => {
            stream.write_all(&whole)?;
            stream.end_writing();
            while stream.read(&mut answer)? > 0 {}
        }
    }
    thread::sleep(Duration::from_millis(random.random_range(0..20)));
    Ok(())
}

/// Attacks for `duration`. Returns the number of connections.
pub fn attack_for(server: &Server, duration: Duration, seed: u64) -> u64 {
    let (count, ends) = (AtomicU64::new(0), Instant::now() + duration);
    thread::scope(|scope| {
        for attacker in 0..ATTACKERS {
            let (mut random, count) = (random(seed, attacker), &count);
            scope.spawn(move || {
                while Instant::now() < ends {
                    if let Some(mut stream) = connect(server, &mut random) {
                        // The server may close the connection of an attacker.
                        let _ = attack(&mut *stream, &mut random);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    count.into_inner()
}

#[test]
#[ignore = "runs long"]
fn serves_others_under_random_traffic_and_frees_its_resources() {
    let seed = seed();
    let server = Server::start("traffic", &["--partitions", "2"]);
    let mut neighbours = Neighbour::one_of_each(&server);
    // The store is filled before the measurement.
    neighbours[0].fill_store();
    attack_for(&server, attack_time() / 10, seed ^ 1);
    let before = Holdings::at_rest(&server);
    let is_over = AtomicBool::new(false);
    let connections = thread::scope(|scope| {
        for neighbour in &mut neighbours {
            scope.spawn(|| neighbour.work_until(&is_over));
        }
        let connections = attack_for(&server, attack_time(), seed);
        is_over.store(true, Ordering::Relaxed);
        connections
    });
    let answers: u64 = neighbours.iter().map(|neighbour| neighbour.answers).sum();
    println!("{connections} connections, {answers} answers to neighbours");
    assert!(connections > 0 && answers > 0);
    server.assert_serves();
    before.assert_given_back(&server);
}
