//! Arbitrary bytes to a server half of a measurement, and to a client half: no panic, no process other than this
//! program is started, and none of its arguments is text of the sender.
//!
//! An input contains the bytes of a client half; `@` at its start stands for the greeting of this release.

use farcall_bench::peer::fuzzing::{ParsedRequest, greeting, is_an_answer, parse_request};

/// Maximum length of a request in bytes.
const REQUEST_LEN_BYTES_MAX: usize = 64 << 10;
/// Arguments of a server other than numbers and addresses.
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
    match parse_request(&said) {
        ParsedRequest::Refused | ParsedRequest::Answered => {}
        ParsedRequest::Peer(task_bytes) => assert!(task_bytes <= 2 * REQUEST_LEN_BYTES_MAX, "{task_bytes}"),
        ParsedRequest::Server(args) => {
            for arg in args {
                let is_number = !arg.is_empty() && arg.bytes().all(|byte| byte.is_ascii_digit());
                assert!(is_number || WORDS.contains(&arg.as_str()), "{arg:?}");
            }
        }
    }
    let _ = is_an_answer(input);
}
