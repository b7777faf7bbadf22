//! UCX's own benchmark, `ucx_perftest`, over shared memory: the reference, measured in the same run as Farcall.
//!
//! Each test runs as two processes, pinned to the same two cores as those of Farcall. UCX's latency tests report half
//! a round trip; [`UcxResult`] retains that unit and states it.

use crate::peer::free_ports;
use crate::program_pair::{in_path, last_line, run_pair};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Transport: POSIX shared memory, which UCX prefers on one host.
const TRANSPORT: &str = "posix";

/// A test of `ucx_perftest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UcxTest {
    /// `put_lat`: one-sided write, polled by the receiver; 8 bytes.
    PutLatency,
    /// `am_lat`: active message; 64 bytes.
    AmLatency,
    /// `put_bw`: one-sided writes of 1 MiB.
    PutBandwidth,
    /// `am_bw`: active messages of 64 bytes, for their rate.
    AmRate,
    /// `stream_lat`: ping-pong over a byte stream, with the given number of bytes in each direction.
    StreamLatency(usize),
    /// `stream_bw`: a byte stream in one direction, with writes of the given number of bytes.
    StreamBandwidth(usize),
    /// `ucp_put_bw`: one-sided writes of the given number of bytes.
    RemotePut(usize),
    /// `ucp_get`: one-sided reads of the given number of bytes.
    RemoteGet(usize),
}

impl UcxTest {
    /// Tests of single messages.
    pub const ALL: [Self; 4] = [Self::PutLatency, Self::AmLatency, Self::PutBandwidth, Self::AmRate];

    fn name(self) -> &'static str {
        match self {
            Self::PutLatency => "put_lat",
            Self::AmLatency => "am_lat",
            Self::PutBandwidth => "put_bw",
            Self::AmRate => "am_bw",
            Self::StreamLatency(_) => "stream_lat",
            Self::StreamBandwidth(_) => "stream_bw",
            Self::RemotePut(_) => "ucp_put_bw",
            Self::RemoteGet(_) => "ucp_get",
        }
    }

    /// Returns the length of one message in bytes.
    pub fn message_len_bytes(self) -> usize {
        match self {
            Self::PutLatency => 8,
            Self::AmLatency | Self::AmRate => 64,
            Self::PutBandwidth => 1 << 20,
            Self::StreamLatency(len_bytes)
            | Self::StreamBandwidth(len_bytes)
            | Self::RemotePut(len_bytes)
            | Self::RemoteGet(len_bytes) => len_bytes,
        }
    }

    /// Returns a number of iterations that takes a fraction of a second on current machines.
    fn iterations(self) -> u64 {
        match self {
            Self::PutLatency | Self::AmLatency => 1_000_000,
            Self::PutBandwidth => 8_000,
            Self::AmRate => 4_000_000,
            Self::StreamLatency(_) => 300_000,
            Self::StreamBandwidth(len_bytes) | Self::RemotePut(len_bytes) | Self::RemoteGet(len_bytes) => {
                ((2 << 30) / len_bytes as u64).clamp(2_000, 1_000_000)
            }
        }
    }

    /// Returns whether the test measures latencies of single messages.
    pub fn is_latency(self) -> bool {
        matches!(self, Self::PutLatency | Self::AmLatency | Self::StreamLatency(_))
    }

    /// Returns whether the test belongs to UCX's upper layer (UCP), which chooses among the transports that it is
    /// allowed to use. The other tests belong to the lower layer (UCT) and name one transport.
    fn is_of_ucp(self) -> bool {
        match self {
            Self::PutLatency | Self::AmLatency | Self::PutBandwidth | Self::AmRate => false,
            Self::StreamLatency(_) | Self::StreamBandwidth(_) | Self::RemotePut(_) | Self::RemoteGet(_) => {
                true
            }
        }
    }
}

impl fmt::Display for UcxTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UCX {}, {} B", self.name(), self.message_len_bytes())
    }
}

/// Result that `ucx_perftest` reports at the end of a test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UcxResult {
    /// Messages sent.
    pub iterations: u64,
    /// Median latency one way (half a round trip), in microseconds, for the latency tests; overhead per message for
    /// the others.
    pub median_us: f64,
    /// Mean over the complete test, in microseconds.
    pub mean_us: f64,
    /// Rate over the complete test in MiB (2^20 bytes) a second.
    pub mib_per_second: f64,
    /// Messages a second over the complete test.
    pub messages_per_second: f64,
}

/// Reason why UCX could not be measured, as a sentence.
#[derive(Debug, thiserror::Error)]
#[error("no comparison with UCX: {0}")]
pub struct UcxError(String);

impl UcxError {
    fn of(test: UcxTest, what: impl fmt::Display) -> Self {
        Self(format!("ucx_perftest {}: {what}", test.name()))
    }
}

/// An installed UCX.
#[derive(Debug, Clone)]
pub struct Ucx {
    perftest: PathBuf,
    /// Version that `ucx_info -v` prints, for the conditions of a report.
    pub version: String,
}

impl Ucx {
    /// Searches for `ucx_perftest` and checks that it supports shared memory.
    ///
    /// # Errors
    /// Returns an error if it is absent or does not support shared memory. Callers continue without UCX.
    pub fn find() -> Result<Self, UcxError> {
        let perftest = in_path("ucx_perftest").ok_or_else(|| {
            UcxError("ucx_perftest is not in PATH; install it: apt-get install ucx-utils".to_owned())
        })?;
        let info = |flag| in_path("ucx_info").and_then(|info| Command::new(info).arg(flag).output().ok());
        if let Some(devices) = info("-d")
            && !offers_shared_memory(&String::from_utf8_lossy(&devices.stdout))
        {
            let what = format!("it has no transport `{TRANSPORT}` (see ucx_info -d); is /dev/shm mounted?");
            return Err(UcxError(what));
        }
        let version = info("-v").and_then(|output| version_in(&String::from_utf8_lossy(&output.stdout)));
        Ok(Self { perftest, version: version.unwrap_or_else(|| "unknown version".to_owned()) })
    }

    /// Runs one test, with server and client each pinned to its core.
    ///
    /// # Errors
    /// Returns an error if the test cannot run here. Callers report it and continue.
    pub fn run(&self, test: UcxTest, server_core: usize, client_core: usize) -> Result<UcxResult, UcxError> {
        let [port] = free_ports().map_err(|error| UcxError::of(test, error))?;
        let mut client = self.command(test, port);
        client.arg(Ipv4Addr::LOCALHOST.to_string());
        let out = run_pair(&mut self.command(test, port), server_core, &mut client, client_core, port)
            .map_err(|why| UcxError::of(test, why))?;
        parse(&out).ok_or_else(|| {
            let end = last_line(&out).unwrap_or("nothing at all");
            UcxError::of(test, format!("it printed no result line that is understood, but: {end}"))
        })
    }

    fn command(&self, test: UcxTest, port: u16) -> Command {
        let mut command = Command::new(&self.perftest);
        if test.is_of_ucp() {
            command.env("UCX_TLS", "shm");
        } else {
            command.args(["-d", "memory", "-x", TRANSPORT]);
        }
        command
            .args(["-t", test.name(), "-f", "-v"])
            .args(["-s", &test.message_len_bytes().to_string(), "-n", &test.iterations().to_string()])
            .args(["-p", &port.to_string()])
            .stdin(Stdio::null());
        command
    }
}

fn offers_shared_memory(devices: &str) -> bool {
    devices
        .lines()
        .any(|line| line.split_once("Transport:").is_some_and(|(_, transport)| transport.trim() == TRANSPORT))
}

fn version_in(info: &str) -> Option<String> {
    let line = info.lines().find(|line| line.to_ascii_lowercase().contains("version"))?;
    line.split_ascii_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        .map(str::to_owned)
}

/// Finds the CSV columns by their names in the heading, so that versions with another order of columns work. The
/// heading looks like `iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr`.
fn parse(output: &str) -> Option<UcxResult> {
    let lines: Vec<Vec<&str>> = output.lines().map(|line| line.split(',').map(str::trim).collect()).collect();
    let at = lines.iter().position(|line| line.first() == Some(&"iterations"))?;
    let heading = &lines[at];
    let values = lines[at + 1..].iter().rfind(|line| line.len() == heading.len())?;
    let number = |is_column: &dyn Fn(&str) -> bool| -> Option<f64> {
        let index = heading.iter().position(|name| is_column(name))?;
        values[index].parse::<f64>().ok().filter(|number| number.is_finite())
    };
    Some(UcxResult {
        iterations: number(&|name| name == "iterations")? as u64,
        // Some versions call the column `typical` instead of naming the percentile.
        median_us: number(&|name| name.contains("percentile") || name.starts_with("typical"))?,
        mean_us: number(&|name| name == "overall_lat" || name == "overall_overhead")?,
        mib_per_second: number(&|name| name == "overall_bw")?,
        messages_per_second: number(&|name| name == "overall_mr")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
        200000,0.049,0.048,0.047,159.47,160.50,20902021,20902022\n";

    #[test]
    fn a_known_output_is_understood() {
        let result = parse(OUTPUT).unwrap();
        let expected = UcxResult {
            iterations: 200_000,
            median_us: 0.049,
            mean_us: 0.047,
            mib_per_second: 160.5,
            messages_per_second: 20_902_022.0,
        };
        assert_eq!(result, expected);
    }

    #[test]
    fn columns_may_move_and_noise_may_surround() {
        let moved = format!("warning: something\noverall\n{}\n[log] bye\n", OUTPUT.replace('\r', ""));
        assert_eq!(parse(&moved), parse(OUTPUT));
        let typical =
            "iterations,typical_lat,overall_mr,avg_lat,overall_lat,avg_bw,overall_bw\n5,1.5,9,1,2,3,4\n";
        assert_eq!(parse(typical).unwrap().messages_per_second, 9.0);
    }

    #[test]
    fn garbage_gives_no_result() {
        for text in [
            "",
            "iterations",
            "iterations,overall_lat\nx,y\n",
            "a,b\n1,2\n",
            "iterations,50.0_percentile_lat\n1,nan",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn devices_and_versions_are_read() {
        assert!(offers_shared_memory("#      Transport: posix\n#         Device: memory\n"));
        assert!(!offers_shared_memory("#      Transport: tcp\n"));
        assert_eq!(version_in("# Version 1.13.1\n").as_deref(), Some("1.13.1"));
        assert_eq!(version_in("# Library version: 1.18.0\n").as_deref(), Some("1.18.0"));
        assert_eq!(version_in("nothing"), None);
    }

    #[test]
    fn the_installed_one_runs_or_the_remedy_is_named() {
        match Ucx::find() {
            Err(UcxError(why)) => {
                assert!(why.contains("apt-get install") || why.contains("/dev/shm"), "{why}")
            }
            Ok(ucx) => {
                let cores = crate::measure::Cores::allowed().unwrap();
                let (server_core, client_core) = cores.server_and_client();
                let result = ucx.run(UcxTest::PutBandwidth, server_core, client_core).unwrap();
                assert!(result.mib_per_second > 0.0 && result.iterations > 0);
            }
        }
    }
}
