//! Byte streams compared with their upper limits and with common transports: round trips, and writes in one direction.

use super::ExperimentError;
use super::calls::{self, CallTask, PATIENCE, SharedContext};
use super::env::{ExperimentEnv, Progress, Sampled};
use super::limits::find_ucx;
use super::server::ServerProcess;
use super::subject::{Rival, Sample};
use crate::baseline::{Baseline, COPY_LEN_BYTES};
use crate::measure::pin_thread;
use crate::report::{Column, Figure, Report, Table};
use crate::rnic::{self, Operation, RnicTask, RnicTest, Tuning};
use crate::streams::{self, MESSAGE_LEN_BYTES, Medium};
use crate::ucx::{Ucx, UcxTest};
use farcall::select::SelectedNic;
use farcall_link::Transport;
use std::fmt;

/// Lengths of writes: those of RR-Compound's comparison with sockets and raw WRITE, and longer ones.
pub const LENS_BYTES: [usize; 7] = [16, 64, 512, 4 << 10, 32 << 10, 512 << 10, 1 << 20];

/// Preset whose echo is the lower limit of a round trip.
const ECHO_PRESET: &str = "server-reply";
/// Minimum length for which raw WRITEs are measured with few outstanding, as in `farcall bench verbs`.
const LONG_WRITE_BYTES: usize = 4 << 10;

/// Explanation of the columns of the table of writes.
const NOTES: [&str; 3] = [
    "Every byte of a round trip is checked, and of 16 MiB before each timed run of writes; while that is timed, the first \
     and the last eight bytes of each write. Raw WRITE, the copy and UCX check nothing.",
    "CPU: processor time of each end for each MiB. An end that polls uses its core while it waits, too; the target of raw \
     WRITEs has nothing to do.",
    "The copy has one end and one block, which stays in its caches; a stream's bytes change cores.",
];

/// Plan of the experiment.
pub struct StreamPlan {
    /// Cores, durations, repetitions.
    pub env: ExperimentEnv,
    /// The RNIC of both ends.
    pub chosen: SelectedNic,
    /// Lengths of writes.
    pub lens_bytes: Vec<usize>,
    /// Sockets to compare with.
    pub sockets: Vec<Medium>,
    /// `true` if UCX's streams are measured as well.
    pub with_ucx: bool,
}

/// A measured quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Trips(Medium),
    Echo,
    Writes(Medium, usize),
    RawWrite(usize),
    Bound(Baseline),
    Ucx(UcxTest),
}

/// A measured quantity with its samples.
type Line = Sampled<What, Sample>;

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trips(medium) => medium.fmt(f),
            Self::Echo => write!(f, "rpc echo, {ECHO_PRESET}"),
            Self::Writes(medium, _) => medium.fmt(f),
            Self::RawWrite(_) => f.write_str("raw WRITE"),
            Self::Bound(baseline) => baseline.fmt(f),
            Self::Ucx(UcxTest::StreamLatency(_)) => f.write_str("UCX stream_lat"),
            Self::Ucx(_) => f.write_str("UCX stream_bw"),
        }
    }
}

/// Measures streams and the transports compared with them, interleaved.
///
/// # Errors
/// Returns an error if Farcall's streams cannot be measured. A missing UCX is a note.
pub fn run(plan: &StreamPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let StreamPlan { env, chosen, .. } = plan;
    pin_thread(env.client_core)?;
    let mut conditions = env.conditions();
    conditions.push("provider", format!("{} (RC)", chosen.selection.provider));
    conditions.push("threads", "1 at each end, both polling");
    if env.server_half().is_some() {
        conditions.push("streams go by", streams::path(chosen, &env.pair_plan())?.to_string());
    }
    let mut report = env.report("Byte streams between two processes", conditions, chosen.selection.provider);
    let ucx = find_ucx(plan.with_ucx && env.server_half().is_none(), &mut report);
    let server = calls::start_echo(env, &chosen.selection, 1)?;
    let title = |what: &What| match what.len_bytes() {
        Some(len_bytes) => format!("{what}, {len_bytes} B"),
        None => what.to_string(),
    };
    let lines = env.sample(plan.whats(), &mut report, progress, title, |what, _, report| {
        plan.measure(*what, &server, ucx.as_ref(), report)
    })?;
    report.tables.push(table_of_trips(&lines, ucx.is_some()));
    report.tables.push(table_of_writes(&lines, ucx.is_some()));
    report.tables.push(table_of_ratios(&lines));
    report.notes.extend(NOTES.map(str::to_owned));
    server.end(PATIENCE, &mut report);
    Ok(report)
}

impl StreamPlan {
    fn whats(&self) -> Vec<What> {
        let media = || std::iter::once(Medium::Stream).chain(self.sockets.iter().copied());
        let ucx = |test| self.with_ucx.then_some(What::Ucx(test));
        let mut whats = vec![What::Bound(Baseline::SharedMemory), What::Echo];
        whats.extend(media().map(What::Trips));
        whats.extend(ucx(UcxTest::StreamLatency(MESSAGE_LEN_BYTES)));
        whats.push(What::Bound(Baseline::CopyShared));
        for len_bytes in self.lens_bytes.iter().copied() {
            whats.push(What::RawWrite(len_bytes));
            whats.extend(media().map(|medium| What::Writes(medium, len_bytes)));
            whats.extend(ucx(UcxTest::StreamBandwidth(len_bytes)));
        }
        if self.env.server_half().is_some() {
            whats.retain(|what| !what.is_of_one_host());
        }
        whats
    }

    fn measure(
        &self,
        what: What,
        server: &ServerProcess,
        ucx: Option<&Ucx>,
        report: &mut Report,
    ) -> Result<Option<Sample>, ExperimentError> {
        let Self { env, chosen, .. } = self;
        let plan = env.pair_plan();
        Ok(match what {
            What::Trips(medium) => Some(streams::round_trips(medium, chosen, &plan)?.into()),
            What::Echo => {
                let context = SharedContext { env, nic: &chosen.selection, profile: None, server };
                Some(calls::measure(&CallTask::small(ECHO_PRESET), &context)?.figures)
            }
            What::Writes(medium, len_bytes) => {
                let result = streams::one_way(medium, len_bytes, chosen, &plan)?;
                Some(Sample {
                    per_second: result.writes_per_second,
                    bytes_per_second: result.writes_per_second * len_bytes as f64,
                    cores: result.cores,
                    count: result.writes as f64,
                    ..Sample::NONE
                })
            }
            What::RawWrite(len_bytes) => Some(rnic::measure(chosen, raw_write(len_bytes), &plan)?.into()),
            What::Bound(baseline) => Rival::Bare(baseline).measure(env, None, report)?,
            // UCX reports half of a round trip.
            What::Ucx(test) => Rival::Ucx(test)
                .measure(env, ucx, report)?
                .map(|sample| sample.stretched(if test.is_latency() { 2.0 } else { 1.0 })),
        })
    }
}

fn raw_write(len_bytes: usize) -> RnicTask {
    let tuning = if len_bytes < LONG_WRITE_BYTES { Tuning::RATE } else { Tuning::BANDWIDTH };
    RnicTask {
        operation: Operation::Write,
        transport: Transport::Rc,
        test: RnicTest::Throughput,
        len_bytes,
        tuning,
    }
}

impl What {
    fn is_of_one_host(self) -> bool {
        match self {
            Self::Trips(medium) | Self::Writes(medium, _) => medium == Medium::Unix,
            Self::Bound(_) | Self::Ucx(_) => true,
            Self::Echo | Self::RawWrite(_) => false,
        }
    }

    fn len_bytes(self) -> Option<usize> {
        match self {
            Self::Trips(_) | Self::Echo | Self::Bound(Baseline::SharedMemory) => None,
            Self::Writes(_, len_bytes) | Self::RawWrite(len_bytes) => Some(len_bytes),
            Self::Bound(_) => Some(COPY_LEN_BYTES),
            Self::Ucx(test) => (!test.is_latency()).then_some(test.message_len_bytes()),
        }
    }

    fn name(self, has_ucx: bool) -> String {
        if matches!(self, Self::Ucx(_)) && !has_ucx { format!("{self} (missing)") } else { self.to_string() }
    }
}

fn table_of_trips(lines: &[Line], has_ucx: bool) -> Table {
    let figures: [Figure<Sample>; 3] = [
        (Column::with_decimals("p50_us", "p50 µs", 3), |sample| sample.p50_us),
        (Column::median("p99_us", "p99 µs", 3), |sample| sample.p99_us),
        (Column::new("per_second", "round trips/s"), |sample| sample.per_second),
    ];
    let title = format!("Round trips, {MESSAGE_LEN_BYTES} B there and back (rpc echo: 8 B back)");
    let trips = lines.iter().filter(|line| line.subject.len_bytes().is_none());
    let rows = trips.map(|line| (vec![line.subject.name(has_ucx).into()], &line.samples[..]));
    Table::of_samples(title, vec![Column::new("what", "what")], &figures, rows)
}

fn table_of_writes(lines: &[Line], has_ucx: bool) -> Table {
    let figures: [Figure<Sample>; 4] = [
        (Column::with_decimals("gb_per_second", "GB/s", 2), |sample| sample.bytes_per_second / 1e9),
        (Column::new("per_second", "writes/s"), |sample| sample.per_second),
        (Column::median("writer_cpu_us_per_mib", "writer CPU\nµs/MiB", 0), |sample| {
            cpu_us_per_mib(sample.cores.client, sample)
        }),
        (Column::median("reader_cpu_us_per_mib", "reader CPU\nµs/MiB", 0), |sample| {
            cpu_us_per_mib(sample.cores.server, sample)
        }),
    ];
    let lead = vec![Column::new("what", "what"), Column::new("write_bytes", "write, B")];
    let rows = lines.iter().filter_map(|line| {
        let len_bytes = line.subject.len_bytes()? as u64;
        Some((vec![line.subject.name(has_ucx).into(), len_bytes.into()], &line.samples[..]))
    });
    Table::of_samples("Writes in one direction", lead, &figures, rows)
}

fn cpu_us_per_mib(cores: f64, sample: &Sample) -> f64 {
    cores * 1e6 / (sample.bytes_per_second / (1 << 20) as f64)
}

/// Returns the ratios of streams to each of the others, computed within each repetition.
fn table_of_ratios(lines: &[Line]) -> Table {
    let lead = vec![Column::new("figure", "stream's figure"), Column::new("over", "over that of")];
    let mut table =
        Table::of_ratios("Ratios, and between which bounds their true medians lie", lead, "ratio");
    let of = |what| lines.iter().find(|line| line.subject == what);
    for other in lines {
        let len_bytes = other.subject.len_bytes();
        let (ours, name, figure): (_, _, fn(&Sample) -> f64) = match len_bytes {
            None => (What::Trips(Medium::Stream), format!("p50, {MESSAGE_LEN_BYTES} B"), |it| it.p50_us),
            Some(len) => {
                (What::Writes(Medium::Stream, len), format!("rate, {len} B"), |it| it.bytes_per_second)
            }
        };
        let Some(ours) = of(ours).filter(|ours| ours.subject != other.subject) else { continue };
        let lead = vec![name.into(), other.subject.to_string().into()];
        table.push_ratio(lead, &ours.samples, &other.samples, figure);
    }
    table
}
