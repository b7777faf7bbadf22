//! libfabric's own benchmark, `fi_pingpong`, over its shared-memory provider: messages in both directions.

use crate::peer::free_ports;
use crate::program_pair::{in_path, last_line, run_pair};
use farcall_verbs::with_sources;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = "fi_pingpong";
/// libfabric's provider for processes of one host.
const PROVIDER: &str = "shm";
/// Bytes transferred by one test, which takes a fraction of a second.
const BYTES: usize = 64 << 20;

/// Reason why libfabric could not be measured, as a sentence.
#[derive(Debug, thiserror::Error)]
#[error("no comparison with libfabric: {0}")]
pub(crate) struct LibfabricError(String);

/// Returns the bytes a second in one direction that a ping-pong of messages of `len_bytes` bytes carries.
///
/// # Errors
/// Returns an error if the program is not installed or cannot run here. Callers report it and continue.
pub(crate) fn ping_pong(
    len_bytes: usize,
    server_core: usize,
    client_core: usize,
) -> Result<f64, LibfabricError> {
    let program = in_path(PROGRAM).ok_or_else(|| {
        LibfabricError(format!("{PROGRAM} is not in PATH; install it: apt-get install libfabric-bin"))
    })?;
    let [port] = free_ports().map_err(|error| LibfabricError(with_sources(&error)))?;
    let mut server = command(&program, len_bytes);
    server.args(["-B", &port.to_string()]);
    let mut client = command(&program, len_bytes);
    client.args(["-P", &port.to_string()]).arg(Ipv4Addr::LOCALHOST.to_string());
    let out = run_pair(&mut server, server_core, &mut client, client_core, port)
        .map_err(|why| LibfabricError(format!("{PROGRAM}: {why}")))?;
    bytes_per_second(&out).ok_or_else(|| {
        let end = last_line(&out).unwrap_or("nothing at all");
        LibfabricError(format!("{PROGRAM} printed no result line that is understood, but: {end}"))
    })
}

fn command(program: &Path, len_bytes: usize) -> Command {
    let iterations = (BYTES / len_bytes.max(1)).clamp(50, 10_000);
    let mut command = Command::new(program);
    command.args(["-p", PROVIDER, "-e", "rdm"]);
    command.args(["-S", &len_bytes.to_string(), "-I", &iterations.to_string()]).stdin(Stdio::null());
    command
}

/// Returns the rate from the column `MB/sec`. The program counts both directions of the ping-pong, so each direction
/// has half of it.
fn bytes_per_second(output: &str) -> Option<f64> {
    let mut lines = output.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let heading = lines.find(|words| words.contains(&"MB/sec"))?;
    let values = lines.find(|words| words.len() == heading.len())?;
    let at = heading.iter().position(|name| *name == "MB/sec")?;
    let megabytes: f64 = values[at].parse().ok()?;
    megabytes.is_finite().then_some(megabytes * 1e6 / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_output_is_understood_and_garbage_gives_no_result() {
        let output = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      4k      1k      =1k      7.8m        0.38s     21.51     190.40       0.01\n";
        assert_eq!(bytes_per_second(output), Some(10_755_000.0));
        for garbage in ["", "bytes MB/sec\n4k\n", "bytes MB/sec\n4k many\n", "4k 21.51\n"] {
            assert_eq!(bytes_per_second(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn the_installed_one_runs_or_the_remedy_is_named() {
        let cores = crate::measure::Cores::allowed().unwrap();
        let (server_core, client_core) = cores.server_and_client();
        match ping_pong(4096, server_core, client_core) {
            Ok(bytes_per_second) => assert!(bytes_per_second > 0.0),
            Err(LibfabricError(why)) => {
                assert!(why.contains("apt-get install") || why.contains(PROGRAM), "{why}")
            }
        }
    }
}
