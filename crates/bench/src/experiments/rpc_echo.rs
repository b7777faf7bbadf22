//! The round trip of a small call beside what bounds it and what people use: 64 bytes there, 8 bytes back.

use super::limits::find_ucx;
use super::server::{ServerCommand, ServerError, ServerProcess};
use super::stage::{Progress, Stage};
use crate::baseline::{self, Baseline, BaselineResult, PeerError};
use crate::measure::{CoreError, CpuTime, ProcessError, RoundTrips, Spread, pin_thread, ping_pong};
use crate::report::{Cell, Column, Report, Table};
use crate::rpc_connection::{RpcCallError, RpcConnectError, RpcConnection};
use crate::ucx::{Ucx, UcxResult, UcxTest};
use farcall_rpc::{FetchThenReply, Path, ServerReply};
use farcall_softnic::SoftNic;
use std::time::Duration;

/// Bytes of a request.
const REQUEST_LEN_BYTES: usize = 64;
/// The echo service's method that answers with the first eight bytes.
const METHOD_HEAD: u16 = 2;
/// Bytes of a reply.
const REPLY_LEN_BYTES: usize = 8;
/// Calls under way when rates are taken.
const WINDOW: u32 = 16;
/// A server that does not answer for so long is dead.
const PATIENCE: Duration = Duration::from_secs(5);

/// The experiment could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RpcEchoError {
    /// The server process.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The connection.
    #[error(transparent)]
    Connect(#[from] RpcConnectError),
    /// A call.
    #[error(transparent)]
    Call(#[from] RpcCallError),
    /// The answer is another one.
    #[error("the echo came back with other bytes")]
    WrongEcho,
    /// The server does not say where it serves.
    #[error("the server process did not say where RPC clients connect")]
    NoAddress,
    /// A bare limit.
    #[error(transparent)]
    Baseline(#[from] PeerError),
    /// A figure of a process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Pinning.
    #[error(transparent)]
    Core(#[from] CoreError),
}

/// One run of calls.
#[derive(Debug, Clone, Copy)]
struct Sample {
    round_trips: RoundTrips,
    calls_per_second: f64,
    operations_per_call: f64,
    server_cpu_us_per_call: f64,
}

/// What is measured.
#[derive(Debug)]
enum Line {
    Bare(Baseline, Vec<BaselineResult>),
    Ucx(Vec<UcxResult>),
    Rpc { name: &'static str, window: u32, fetches: bool, samples: Vec<Sample> },
}

/// Measures echoes under both presets beside bare ping-pongs and UCX's active messages, interleaved.
///
/// # Errors
/// When one of ours cannot be measured. A missing UCX is a note.
pub fn run(stage: &Stage, with_ucx: bool, progress: Progress<'_>) -> Result<Report, RpcEchoError> {
    pin_thread(stage.client_core)?;
    let mut conditions = stage.conditions();
    conditions.push("provider", "softnic (RC)");
    conditions.push("sizes", format!("{REQUEST_LEN_BYTES} B requests, {REPLY_LEN_BYTES} B replies"));
    conditions.push("threads", "1 server thread, 1 client thread, 1 connection");
    let mut report = Report::new("Echo calls between two processes", conditions);
    report.notes.extend(stage.single_core_note());
    let ucx = if with_ucx { find_ucx(&mut report) } else { None };
    let args = ["--json", "rpc", "serve", "--listen", "127.0.0.1:0"];
    let server = ServerProcess::start(&ServerCommand::this_program(args, stage.server_core))?;
    let mut lines = lines(ucx.is_some());
    for repetition in 1..=stage.repetitions {
        for line in &mut lines {
            if !progress(&format!("{} ({repetition} of {})", line.title(), stage.repetitions)) {
                report.problems.push("interrupted before the end".to_owned());
                return Ok(report);
            }
            line.measure(stage, &server, ucx.as_ref(), &mut report)?;
        }
    }
    report.tables.push(table(&lines));
    if let Err(error) = server.stop(PATIENCE) {
        report.problems.push(error.to_string());
    }
    Ok(report)
}

fn lines(with_ucx: bool) -> Vec<Line> {
    let mut lines = vec![Line::Bare(Baseline::SharedMemory, Vec::new())];
    for window in [1, WINDOW] {
        for (name, fetches) in [("server-reply", false), ("rf-rpc", true)] {
            lines.push(Line::Rpc { name, window, fetches, samples: Vec::new() });
        }
    }
    if with_ucx {
        lines.push(Line::Ucx(Vec::new()));
    }
    lines.extend(
        [Baseline::TcpSpin, Baseline::TcpEpoll, Baseline::UnixEpoll].map(|bare| Line::Bare(bare, Vec::new())),
    );
    lines
}

impl Line {
    fn title(&self) -> String {
        match self {
            Self::Bare(bare, _) => bare.title().to_owned(),
            Self::Ucx(_) => format!("{}, there and back", UcxTest::AmLatency),
            Self::Rpc { name, window, .. } => format!("{name} echo, window {window}"),
        }
    }

    fn measure(
        &mut self,
        stage: &Stage,
        server: &ServerProcess,
        ucx: Option<&Ucx>,
        report: &mut Report,
    ) -> Result<(), RpcEchoError> {
        match self {
            Self::Bare(bare, results) => results.push(baseline::measure(*bare, &stage.baseline_plan())?),
            Self::Rpc { window, fetches: true, samples, .. } => {
                samples.push(sample::<FetchThenReply>(stage, server, *window)?);
            }
            Self::Rpc { window, fetches: false, samples, .. } => {
                samples.push(sample::<ServerReply>(stage, server, *window)?);
            }
            Self::Ucx(results) => {
                let result = ucx.map(|ucx| ucx.run(UcxTest::AmLatency, stage.server_core, stage.client_core));
                match result {
                    Some(Ok(result)) => results.push(result),
                    Some(Err(error)) => report.notes.push(error.to_string()),
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn row(&self) -> Vec<Cell> {
        let mut row: Vec<Cell> = vec![self.title().into()];
        row.extend(match self {
            Self::Bare(_, results) => {
                let spread = |figure: &dyn Fn(&BaselineResult) -> f64| Spread::of(results.iter().map(figure));
                [
                    spread(&|result| result.round_trips.latency.p50_ns as f64 / 1e3).into(),
                    spread(&|result| result.round_trips.latency.p99_ns as f64 / 1e3).into(),
                    spread(&|result| result.round_trips.latency.p999_ns as f64 / 1e3).into(),
                    spread(&|result| result.round_trips.per_second).into(),
                    Cell::None,
                    Cell::None,
                ]
            }
            Self::Ucx(results) => {
                let spread = |figure: &dyn Fn(&UcxResult) -> f64| Spread::of(results.iter().map(figure));
                [
                    // UCX reports half of a round trip.
                    spread(&|result| result.median_us * 2.0).into(),
                    Cell::None,
                    Cell::None,
                    spread(&|result| result.messages_per_second / 2.0).into(),
                    Cell::None,
                    Cell::None,
                ]
            }
            Self::Rpc { window, samples, .. } => {
                let spread = |figure: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
                // With several calls under way only the time of a whole window is known.
                let latency = |figure: &dyn Fn(&Sample) -> u64| -> Cell {
                    (*window == 1).then(|| spread(&|sample| figure(sample) as f64 / 1e3)).flatten().into()
                };
                [
                    latency(&|sample| sample.round_trips.latency.p50_ns),
                    latency(&|sample| sample.round_trips.latency.p99_ns),
                    latency(&|sample| sample.round_trips.latency.p999_ns),
                    spread(&|sample| sample.calls_per_second).into(),
                    spread(&|sample| sample.operations_per_call).into(),
                    spread(&|sample| sample.server_cpu_us_per_call).into(),
                ]
            }
        });
        row
    }
}

/// Connects, calls for the stage's duration with `window` calls under way, disconnects.
fn sample<P: Path>(stage: &Stage, server: &ServerProcess, window: u32) -> Result<Sample, RpcEchoError> {
    let address = server
        .ready()
        .rpc
        .as_ref()
        .and_then(|address| address.parse().ok())
        .ok_or(RpcEchoError::NoAddress)?;
    let mut connection = RpcConnection::<P>::connect(&SoftNic::new(), address, window, PATIENCE)?;
    let operations_before = connection.operations();
    let cpu_before = CpuTime::of(server.pid())?;
    let mut calls = 0u64;
    let round_trips = ping_pong(stage.warm_up, stage.duration, |number| {
        calls += u64::from(window);
        if window == 1 {
            call_once(&mut connection, number)
        } else {
            call_window(&mut connection, number, window)
        }
    })?;
    let server_cpu = CpuTime::of(server.pid())?.since(cpu_before);
    Ok(Sample {
        round_trips,
        calls_per_second: round_trips.per_second * f64::from(window),
        operations_per_call: (connection.operations() - operations_before) as f64 / calls as f64,
        server_cpu_us_per_call: server_cpu.total_ns as f64 / 1e3 / calls as f64,
    })
}

#[inline]
fn call_once<P: Path>(connection: &mut RpcConnection<P>, number: u64) -> Result<(), RpcEchoError> {
    let request = request_of(number);
    let is_right =
        connection.call(METHOD_HEAD, &request, PATIENCE, |reply| reply == &request[..REPLY_LEN_BYTES])?;
    if is_right { Ok(()) } else { Err(RpcEchoError::WrongEcho) }
}

/// Begins a window of calls and waits for all of them.
#[inline]
fn call_window<P: Path>(
    connection: &mut RpcConnection<P>,
    number: u64,
    window: u32,
) -> Result<(), RpcEchoError> {
    const POLLS_MAX: u64 = 1 << 32;
    let request = request_of(number);
    for _ in 0..window {
        connection.submit(METHOD_HEAD, &request).map_err(RpcCallError::from)?;
    }
    let (mut left, mut polls) = (window, 0u64);
    while left > 0 {
        connection.progress();
        while let Some(completion) = connection.next_completion() {
            if completion.result.map_err(RpcCallError::from)? != &request[..REPLY_LEN_BYTES] {
                return Err(RpcEchoError::WrongEcho);
            }
            left -= 1;
        }
        polls += 1;
        if let Some(broken) = connection.caller().broken() {
            return Err(RpcCallError::Lost(broken.to_string()).into());
        }
        if polls > POLLS_MAX {
            return Err(RpcCallError::Silent(PATIENCE).into());
        }
    }
    Ok(())
}

fn request_of(number: u64) -> [u8; REQUEST_LEN_BYTES] {
    let mut request = [number as u8; REQUEST_LEN_BYTES];
    request[..REPLY_LEN_BYTES].copy_from_slice(&number.to_le_bytes());
    request
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "Round trips",
        vec![
            Column::new("what", "what"),
            Column::with_decimals("p50_us", "p50 µs", 3),
            Column::with_decimals("p99_us", "p99 µs", 3).median_only(),
            Column::with_decimals("p999_us", "p99.9 µs", 3).median_only(),
            Column::new("per_second", "calls/s"),
            Column::with_decimals("operations_per_call", "verbs/call", 3).median_only(),
            Column::with_decimals("server_cpu_us_per_call", "server CPU µs", 3).median_only(),
        ],
    );
    for line in lines {
        table.push(line.row());
    }
    table
}
