//! Runs every target on its seeds, and on random modifications of them.
//!
//! `FARCALL_FUZZ_SECONDS` is the duration of a target (by default it runs a small number of inputs).
//! `FARCALL_FUZZ_FIRST` is the number of the first input: each number determines one input, so a failure can be
//! reproduced.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Number of inputs of a target if no duration is given.
const INPUTS_DEFAULT: u64 = 2_000;
/// Maximum length of a modified input in bytes.
const INPUT_BYTES_MAX: usize = 4_096;
/// Bytes with a special meaning in some parsers.
const NOTABLE_BYTES: [u8; 10] = [0, 1, 0x7F, 0x80, 0xFF, b' ', b'\r', b'\n', b'0', b'9'];

fn number_from(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")))
}

/// Returns the seeds of a target in a fixed order.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has no seeds");
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Modifies a few positions of one seed.
fn changed(seeds: &[Vec<u8>], number: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(number);
    let mut input = seeds[rng.random_range(0..seeds.len())].clone();
    for _ in 0..rng.random_range(1..8) {
        let at = rng.random_range(0..=input.len());
        let end = rng.random_range(at..=input.len().min(at + 16));
        match rng.random_range(0..6) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => input.splice(at..at, input[at..end].to_vec()).for_each(drop),
            3 => {
                let other = &seeds[rng.random_range(0..seeds.len())];
                input.truncate(at);
                input.extend_from_slice(&other[rng.random_range(0..=other.len())..]);
            }
            4 => input[at..end].fill(NOTABLE_BYTES[rng.random_range(0..NOTABLE_BYTES.len())]),
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << rng.random_range(0..8);
                }
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

/// Prints the number of the input if the target panics.
struct Announce<'a> {
    target: &'a str,
    number: u64,
}

impl Drop for Announce<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { target, number } = self;
            eprintln!("again: FARCALL_FUZZ_FIRST={number} cargo test -p farcall-fuzz {target}");
        }
    }
}

fn run(target: &str, body: fn(&[u8])) {
    let seeds = seeds(target);
    seeds.iter().for_each(|seed| body(seed));
    let first = number_from("FARCALL_FUZZ_FIRST").unwrap_or(1);
    let until =
        number_from("FARCALL_FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut announce = Announce { target, number: first };
    while until.map_or(announce.number < first + INPUTS_DEFAULT, |until| Instant::now() < until) {
        body(&changed(&seeds, announce.number));
        announce.number += 1;
    }
    println!("{target}: {} seeds, inputs {first} to {}", seeds.len(), announce.number - 1);
}

/// Defines a test for every target.
macro_rules! targets {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            run(stringify!($target), crate::$target::run);
        })*

        #[test]
        fn every_folder_of_seeds_has_its_target() {
            let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds");
            let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, [$(stringify!($target)),*]);
        }
    };
}

targets!(
    bootstrap capture_part cm_message grpc_frame measurement_control membership_record memcached memory_control
    region_snapshot roce_packet roce_responder rpc_batch rpc_header rpc_profile softnic_frame stats_file store_read
    tree_log volume_notes
);
