//! `farcall rpc call`: one remote call.

use crate::commands::call_args::one_preset;
use crate::commands::kv::resolve;
use crate::commands::nic_args::NicArgs;
use crate::commands::startup_wait::{self, is_absence};
use crate::console::Console;
use crate::failure::{Exit, Failure, NO_REPLY_REMEDY};
use clap::Args;
use farcall::rpc::{CallError, Client, ClientOptions, ConnectError, UnknownBecause};
use serde_json::json;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Make one call and print its result.
///
/// Writes the bytes without change, followed by a line feed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall rpc call hello\n  farcall rpc call hello --method 2 --preset server-reply --json\n  \
                  farcall rpc call --method 3 --number 100    let the server compute for 100 µs\n  \
                  farcall rpc call < request.bin"
)]
pub struct Call {
    /// The request [default: standard input, unless it is a terminal].
    payload: Option<String>,
    /// The request as 32-bit numbers, as methods 3, 4 and 5 of farcall rpc serve expect. May be given several times.
    #[arg(long, value_name = "NUMBER", conflicts_with = "payload")]
    number: Vec<u32>,
    /// Number of the method.
    #[arg(long, short, default_value_t = 1)]
    method: u16,
    /// TCP address of the service, for the handshake.
    #[arg(long, short, value_name = "HOST:PORT", default_value = "127.0.0.1:11300", value_parser = resolve)]
    server: SocketAddr,
    /// Preset of the call.
    #[arg(long, default_value = "auto", value_parser = one_preset())]
    preset: String,
    /// Timeout in milliseconds.
    #[arg(long, default_value_t = 5000, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    timeout_ms: u64,
    #[command(flatten)]
    nic: NicArgs,
}

impl Call {
    /// Connects, makes the call, and prints the result.
    ///
    /// # Errors
    /// If the service cannot be reached, or the call fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let (reply, round_trip) = self.call(&self.request()?)?;
        if console.is_json() {
            let text = String::from_utf8_lossy(&reply);
            let us = round_trip.as_secs_f64() * 1e6;
            console.print(&"", &json!({ "method": self.method, "reply": text, "reply_len_bytes": reply.len(), "round_trip_us": us }))?;
        } else {
            console.raw(&reply)?;
            console.raw(b"\n")?;
        }
        Ok(Exit::Success)
    }

    fn request(&self) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        match &self.payload {
            Some(text) => bytes.extend_from_slice(text.as_bytes()),
            None if !self.number.is_empty() => {
                bytes.extend(self.number.iter().flat_map(|number| number.to_le_bytes()));
            }
            None if io::stdin().is_terminal() => {
                eprintln!("the request is empty: write it as an argument, or to standard input")
            }
            None => {
                let read = io::stdin().read_to_end(&mut bytes);
                read.map_err(|error| {
                    Failure::because("cannot read the request from standard input", &error)
                })?;
            }
        }
        Ok(bytes)
    }

    fn call(&self, request: &[u8]) -> Result<(Vec<u8>, Duration), Failure> {
        let timeout = Duration::from_millis(self.timeout_ms);
        // For a single call, reconnecting and probing are unnecessary. A name that is not in the preset table means
        // the client's own choice.
        let options = ClientOptions::preset(&self.preset)
            .unwrap_or_default()
            .connect_timeout(timeout)
            .reconnect(false)
            .probe(false);
        let options = options.call_timeout(timeout);
        let client = startup_wait::connect(
            || {
                self.nic.selection().connect(
                    |nic| Client::connect(nic, self.server.to_string(), options.clone()),
                    ConnectError::is_other_provider,
                )
            },
            |error| matches!(error, ConnectError::Unreachable { source, .. } if is_absence(source.kind())),
        );
        let mut client = client.map_err(|error| self.cannot_connect(&error))?;
        let (start, mut reply) = (Instant::now(), Vec::new());
        client.call(self.method, request, &mut reply).map_err(|error| self.failed(&error))?;
        Ok((reply, start.elapsed()))
    }

    fn cannot_connect(&self, error: &ConnectError) -> Failure {
        let failure = Failure::because("cannot connect to the RPC service", error).at(self.server);
        match error {
            ConnectError::Unreachable { source, .. } if source.kind() == ErrorKind::TimedOut => {
                failure.exit(Exit::Unreachable).remedy(NO_REPLY_REMEDY)
            }
            ConnectError::Unreachable { .. } => failure
                .exit(Exit::Unreachable)
                .remedy("start it (farcall rpc serve), or name another service with --server"),
            _ => failure,
        }
    }

    fn failed(&self, error: &CallError) -> Failure {
        let failure =
            Failure::because(format!("the call of method {} failed", self.method), error).at(self.server);
        match error {
            _ if is_silence(error) => failure.exit(Exit::Unreachable).remedy(NO_REPLY_REMEDY),
            CallError::Application { .. } if (3..=5).contains(&self.method) => failure.remedy(
                "write the request as numbers: --number (farcall rpc serve --help describes the methods)",
            ),
            CallError::NotSent(_) | CallError::OutcomeUnknown(_) => {
                failure.exit(Exit::Unreachable).remedy("check whether the service runs, then repeat the call")
            }
            _ => failure,
        }
    }
}

/// Returns whether a call failed because no reply arrived in time.
pub fn is_silence(error: &CallError) -> bool {
    matches!(error, CallError::DeadlineExceeded | CallError::OutcomeUnknown(UnknownBecause::Deadline))
}
