//! Two ends in one thread over the software RNIC.
#![allow(dead_code)]

use std::time::{Duration, Instant};

use farcall_link::Nic;
use farcall_softnic::SoftNic;
use farcall_stream::{Stream, StreamConfig, StreamError, UnconnectedStream};
use farcall_verbs::{Endpoint, Nanos, Progress};

/// Timeout of a test. Not a measurement.
const LOST: Duration = Duration::from_secs(20);

pub fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

pub fn pair_of(configs: [StreamConfig; 2]) -> [Stream; 2] {
    let nic = nic();
    let unconnected = UnconnectedStream::new(&nic, configs[0]).unwrap();
    let (server, answer) = Stream::accept(&nic, configs[1], &unconnected.end()).unwrap();
    [unconnected.connect(&answer).unwrap(), server]
}

pub fn pair() -> [Stream; 2] {
    pair_of([StreamConfig::default(); 2])
}

/// Returns the byte of a stream at a position.
pub fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub fn bytes_at(position: u64, len: usize) -> Vec<u8> {
    (position..position + len as u64).map(byte_at).collect()
}

/// Drives both ends until `done` returns `true`.
pub fn step_until(ends: &mut [Stream; 2], mut done: impl FnMut(&mut [Stream; 2]) -> bool) {
    let (start, mut turns, mut idle) = (Instant::now(), 0, 0_u32);
    while !done(ends) {
        let now = Nanos(1_000 * turns);
        let [a, b] = ends;
        let is_idle = a.progress(now).merge(b.progress(now)) != Progress::Again;
        idle = if is_idle { idle + 1 } else { 0 };
        if idle > 50 {
            // Gives the device's service thread a chance to run.
            std::thread::yield_now();
        }
        turns += 1;
        assert!(
            turns < 500_000 || start.elapsed() < LOST,
            "nothing comes: {:?}",
            ends.each_ref().map(Stream::counters)
        );
    }
}

/// Writes `bytes` into one end and reads them from the other, as both are ready.
pub fn carry(ends: &mut [Stream; 2], from: usize, bytes: &[u8], read_at_once: usize) -> Vec<u8> {
    let (mut written, mut got, mut piece) = (0, Vec::new(), vec![0; read_at_once]);
    step_until(ends, |ends| {
        match ends[from].write(&bytes[written..]) {
            Ok(count) => written += count,
            Err(error) => assert_eq!(error, StreamError::WouldBlock),
        }
        match ends[1 - from].read(&mut piece) {
            Ok(count) => got.extend_from_slice(&piece[..count]),
            Err(error) => assert_eq!(error, StreamError::WouldBlock),
        }
        got.len() >= bytes.len()
    });
    got
}

/// Waits until a read returns bytes, the end (no bytes) or an error.
pub fn read_some(ends: &mut [Stream; 2], at: usize) -> Result<Vec<u8>, StreamError> {
    let (mut bytes, mut result) = (vec![0; 100_000], Ok(0));
    step_until(ends, |ends| {
        result = ends[at].read(&mut bytes);
        result != Err(StreamError::WouldBlock)
    });
    result.map(|count| bytes[..count].to_vec())
}
