//! Measures the number of READs and the time of a GET in a pilaf store at a load of three quarters.
//!
//!     cargo run --release -p farcall-kv --example pilaf
//!
//! Server and client are two threads on the software RNIC, so this measures inter-process communication.

use std::time::Instant;

use farcall_kv::pilaf::{PilafClient, PilafConfig, serve};
use farcall_link::Nic;
use farcall_rpc::Server;
use farcall_softnic::SoftNic;

const ENTRIES: u32 = 1 << 16;
const KEYS: u32 = ENTRIES / 4 * 3;
/// Scatters the numbers of the keys.
const STRIDE: u32 = 0x9e37_79b1;

fn key(number: u32) -> [u8; 16] {
    let mut key = *b"key.............";
    key[4..8].copy_from_slice(&number.to_le_bytes());
    key
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open(&SoftNic::new())?;
    let server = serve(Server::builder(), &nic, PilafConfig::default().entries(ENTRIES))?;
    let address = server.address().to_string();
    let mut store = PilafClient::connect(&nic, &address, PilafClient::options())?;

    let start = Instant::now();
    for number in 0..KEYS {
        store.put(&key(number), &[number as u8; 32])?;
    }
    println!("PUT: {:.2} us each, {KEYS} keys of {ENTRIES} entries", micros(start));

    let mut value = Vec::new();
    let start = Instant::now();
    for number in 0..KEYS {
        let number = number.wrapping_mul(STRIDE) % KEYS;
        value.clear();
        assert!(store.get(&key(number), &mut value)? && value == [number as u8; 32]);
    }
    let counters = store.counters();
    let reads = counters.reads as f64 / counters.gets as f64;
    println!("GET: {:.2} us each, {reads:.2} READs", micros(start));
    Ok(())
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / f64::from(KEYS)
}
