//! Compares a typed service with calls of bytes, 64 B in the request and 8 B in the reply, interleaved in one run:
//!
//! ```text
//! cargo bench -p farcall --bench typed_service -- [ROUNDS [CALLS]]
//! ```
//!
//! Both ends are in one process and on one host: this measures inter-process communication, not a network. Threads are
//! not pinned. The relevant result is the ratio of adjacent rounds.

use std::time::Instant;

use farcall::rpc::{Call, Client, ClientOptions, HandlerError, Reply, Server};
use farcall::{Nic, SoftNic};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Line([f64; 8]);

#[derive(Debug, Serialize, Deserialize)]
struct Never;

#[farcall::service]
trait Lines {
    fn sum(&self, line: Line) -> Result<f64, Never>;
}

#[derive(Clone)]
struct Adder;

impl Lines for Adder {
    fn sum(&self, line: Line) -> Result<f64, Never> {
        Ok(line.0.iter().sum())
    }
}

/// The same computation without the typed service.
fn sum_of_bytes(call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
    let numbers = call.payload().chunks_exact(8);
    let sum: f64 = numbers.map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap_or_default())).sum();
    reply.extend_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// Returns the mean time per call in nanoseconds.
fn time_ns(calls: u32, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// Returns the median, the minimum and the maximum.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0], values[values.len() - 1]]
}

fn main() {
    // Cargo adds the argument `--bench`, which is ignored.
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let (rounds, calls): (u32, u32) = (numbers.next().unwrap_or(15).max(1), numbers.next().unwrap_or(20_000));
    let nic = Nic::open(&SoftNic::new()).expect("a software RNIC");
    let bytes = Server::builder().start(&nic, |_| sum_of_bytes).expect("a server of bytes");
    let typed = Server::builder().serve(&nic, LinesServer::new(Adder)).expect("a service with types");
    let options = ClientOptions::default;
    let mut of_bytes =
        Client::connect(&nic, bytes.address().to_string(), options()).expect("a client of bytes");
    let mut of_types =
        LinesClient::connect(&nic, typed.address().to_string(), options()).expect("a client with types");
    let line = Line([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let request: Vec<u8> = line.0.iter().flat_map(|number| number.to_le_bytes()).collect();
    let (mut reply, mut rows) = (Vec::new(), Vec::new());
    for _ in 0..=rounds {
        let bytes_ns = time_ns(calls, || {
            reply.clear();
            of_bytes.call(1, &request, &mut reply).expect("a call of bytes");
        });
        let typed_ns = time_ns(calls, || assert_eq!(of_types.sum(line).expect("a call with types"), 36.0));
        rows.push([bytes_ns, typed_ns, typed_ns / bytes_ns]);
    }
    // The first round is a warm-up.
    println!("{rounds} rounds of {calls} calls each, 64 B there, 8 B back, one at a time; median (range)");
    for (column, (name, unit)) in [("bytes", " ns"), ("typed", " ns"), ("ratio", "")].into_iter().enumerate()
    {
        let [median, low, high] = spread(rows[1..].iter().map(|row| row[column]).collect());
        println!("{name:6} {median:9.2}{unit} ({low:.2} to {high:.2})");
    }
}
