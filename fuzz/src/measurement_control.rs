//! Arbitrary bytes to a server half of a measurement, and to a client half: no panic, nothing started but this program,
//! and with no word of the sender's among its arguments.
//!
//! An input is what a client half says; `@` at its start stands for the greeting of this release.

use farcall_bench::peer::foreign::{Wished, greeting, is_an_answer, wished_by};

/// No wish is longer.
const WISH_LEN_BYTES_MAX: usize = 64 << 10;
/// What a server is told besides numbers and addresses.
const WORDS: [&str; 21] = [
    "--json",
    "kv",
    "rpc",
    "serve",
    "--listen",
    "--threads",
    "--tcp",
    "--rpc",
    "--provider",
    "--preset",
    "--records",
    "--memory-mib",
    "--value-max",
    "--inline-bytes",
    "auto",
    "ibv",
    "softnic",
    "pilaf",
    "farm",
    "farm-var",
    "127.0.0.1:0",
];

/// Runs one input.
pub fn run(input: &[u8]) {
    let said = match input.split_first() {
        Some((b'@', rest)) => [greeting().as_bytes(), rest].concat(),
        _ => input.to_vec(),
    };
    match wished_by(&said) {
        Wished::Refused | Wished::Answered => {}
        Wished::Peer(task_bytes) => assert!(task_bytes <= 2 * WISH_LEN_BYTES_MAX, "{task_bytes}"),
        Wished::Server(args) => {
            for arg in args {
                let is_number = !arg.is_empty() && arg.bytes().all(|byte| byte.is_ascii_digit());
                assert!(is_number || WORDS.contains(&arg.as_str()), "{arg:?}");
            }
        }
    }
    let _ = is_an_answer(input);
}
