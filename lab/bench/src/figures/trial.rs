//! One measurement of an experiment, and the points of the curves that it yields.

use super::channels::Channel;
use super::sample::Sample;
use super::servers::Servers;
use super::tuned::TunedRate;
use crate::baseline::Baseline;
use crate::experiments::ExperimentError;
use crate::experiments::calls::CallTask;
use crate::experiments::herd::{HerdFigure, HerdPlan};
use crate::experiments::kv_main::{FrontEnd, KvTask};
use crate::experiments::subject::{self, Rival};
use crate::files::FilesTask;
use crate::grpc::ClientPoolTask;
use crate::measure::QUANTILES;
use crate::paged::{DatabaseTask, LearningTask};
use crate::remio::{RemioTask, Task, VerbsTask};
use crate::report::Report;
use crate::rnic::{Direction, Operation, RnicError, RnicTask, Tuning};
use crate::training::Training;
use farcall_link::Transport;
use std::fmt;

/// Limit of latencies and rates.
pub(super) const BARE_PING_PONG: &str = "limit: bare ping-pong of a cache line";
/// The next limit above it: one verb.
pub(super) const READ_ALONE: &str = "limit: one READ of 64 B at a time";
/// Limit of bandwidths.
pub(super) const BARE_COPY: &str = "limit: bare copy of 1 MiB";

/// Measured subject.
pub(super) enum Subject {
    /// Verbs, echoes of verbs, limits without Farcall.
    Pair(subject::Subject),
    /// Operations for which the serving end is passive, or which it issues.
    Rate(RnicTask, Direction),
    /// The same, at the window with the highest rate.
    TunedRate(TunedRate),
    /// Calls to the echo service.
    Calls(CallTask),
    /// Operations of the store.
    Kv(KvTask),
    /// One-sided I/O.
    Remio(Task),
    /// Byte streams, gRPC.
    Channel(Channel),
    /// Passes over a file.
    Files(FilesTask),
    /// A database that is partly resident.
    Database(DatabaseTask),
    /// A training whose memory is partly resident.
    Learning(LearningTask),
    /// Distributed training by TensorFlow.
    Training(Training),
}

/// A point of a curve; without an x, a level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) x: Option<f64>,
    pub(super) y: f64,
}

/// Returns the points of a run.
type PointsOf = Box<dyn Fn(&Sample) -> Vec<Point>>;

/// A measurement of one or more points of a curve.
pub struct Trial {
    /// Name of the curve.
    pub(super) series: &'static str,
    subject: Subject,
    points: PointsOf,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::Pair(subject) => subject.fmt(f),
            Subject::Rate(task, direction) => write!(f, "{task}, {} B, {direction}", task.len_bytes),
            Subject::TunedRate(rate) => rate.fmt(f),
            Subject::Calls(task) => task.fmt(f),
            Subject::Kv(task) => task.fmt(f),
            Subject::Remio(task) => task.fmt(f),
            Subject::Channel(channel) => channel.fmt(f),
            Subject::Files(task) => task.fmt(f),
            Subject::Database(task) => task.fmt(f),
            Subject::Learning(task) => task.fmt(f),
            Subject::Training(training) => training.fmt(f),
        }
    }
}

impl Subject {
    /// Returns whether its serving end may be on another host.
    fn spans_hosts(&self) -> bool {
        match self {
            Self::Pair(subject) => !matches!(subject, subject::Subject::Rival(_)),
            Self::Rate(..) | Self::TunedRate(_) | Self::Calls(_) | Self::Remio(_) => true,
            Self::Kv(task) => !matches!(task.front_end, FrontEnd::Unix | FrontEnd::Foreign(..)),
            // Their servers listen on the loopback interface.
            Self::Channel(_) | Self::Files(_) | Self::Database(_) | Self::Learning(_) | Self::Training(_) => {
                false
            }
        }
    }
}

impl Trial {
    /// Returns whether it is a limit to which others are compared.
    pub(super) fn is_limit(&self) -> bool {
        [BARE_PING_PONG, READ_ALONE, BARE_COPY].contains(&self.series)
    }

    /// Returns whether it can be measured between two hosts.
    pub(super) fn spans_hosts(&self) -> bool {
        self.subject.spans_hosts()
    }

    /// Creates a trial with one point at `x`.
    pub(super) fn at(
        series: &'static str,
        x: f64,
        subject: impl Into<Subject>,
        y: impl Fn(&Sample) -> f64 + 'static,
    ) -> Self {
        let points = Box::new(move |sample: &Sample| vec![Point { x: Some(x), y: y(sample) }]);
        Self { series, subject: subject.into(), points }
    }

    /// Creates a trial with a level.
    pub(super) fn level(
        series: &'static str,
        subject: impl Into<Subject>,
        y: impl Fn(&Sample) -> f64 + 'static,
    ) -> Self {
        let points = Box::new(move |sample: &Sample| vec![Point { x: None, y: y(sample) }]);
        Self { series, subject: subject.into(), points }
    }

    /// Creates a trial whose points have a measured x and y; each repetition is one point.
    pub(super) fn scattered(
        series: &'static str,
        subject: impl Into<Subject>,
        place: impl Fn(&Sample) -> (f64, f64) + 'static,
    ) -> Self {
        let points = Box::new(move |sample: &Sample| {
            let (x, y) = place(sample);
            vec![Point { x: Some(x), y }]
        });
        Self { series, subject: subject.into(), points }
    }

    /// Creates a trial of the latency distribution: for each share of calls, in percent, their maximum latency in µs.
    pub(super) fn distribution(series: &'static str, subject: impl Into<Subject>) -> Self {
        let points = |sample: &Sample| {
            let latency = sample.latency.iter();
            let all = latency.flat_map(|latency| QUANTILES.iter().zip(latency.quantiles_ns));
            all.map(|(share, ns)| Point { x: Some(share * 100.0), y: ns as f64 / 1e3 }).collect()
        };
        Self { series, subject: subject.into(), points: Box::new(points) }
    }

    /// Returns the limits of latencies and rates of one message at a time: a ping-pong without Farcall, and a single
    /// READ.
    pub(super) fn limits_of_one(y: fn(&Sample) -> f64) -> [Self; 2] {
        let read = RnicTask::latency(Operation::Read, Transport::Rc, 64, Tuning::LATENCY);
        [Self::level(BARE_PING_PONG, Baseline::SharedMemory, y), Self::level(READ_ALONE, read, y)]
    }

    /// Returns the limit of bandwidths, in GB/s.
    pub(super) fn limit_of_bandwidth() -> [Self; 1] {
        Self::limit_of_bandwidth_in(1.0)
    }

    /// Returns the limit of bandwidths in another unit; `units` of it are 1 GB/s.
    pub(super) fn limit_of_bandwidth_in(units: f64) -> [Self; 1] {
        [Self::level(BARE_COPY, Baseline::CopyShared, move |sample| sample.gb_per_second() * units)]
    }

    /// Returns trials of one of HERD's micro-benchmarks for the columns in `columns`: a curve per column, by message
    /// length.
    pub(super) fn herd(figure: HerdFigure, columns: &'static [&'static str]) -> Vec<Self> {
        Self::herd_of(figure, columns, Subject::Pair)
    }

    /// Returns trials of the rates of verbs in one direction, each at the window with the highest rate.
    pub(super) fn herd_rates(direction: Direction, columns: &'static [&'static str]) -> Vec<Self> {
        Self::herd_of(HerdFigure::Throughput, columns, |subject| match subject {
            subject::Subject::Verbs(task) => Subject::TunedRate(TunedRate::new(task, direction)),
            _ => Subject::Pair(subject),
        })
    }

    fn herd_of(
        figure: HerdFigure,
        columns: &'static [&'static str],
        subject: impl Fn(subject::Subject) -> Subject,
    ) -> Vec<Self> {
        let plan = HerdPlan {
            figures: vec![figure],
            lens_bytes: Vec::new(),
            window: 32,
            connections: 4,
            assumes_order: false,
        };
        let grid = figure.grid(&plan);
        let mut trials = Vec::new();
        for row in grid.rows {
            for (point, column) in row.points.into_iter().zip(&grid.columns) {
                let (Some(point), true) = (point, columns.contains(&column.heading)) else { continue };
                let y = grid.figure;
                let x = row.len_bytes as f64;
                trials.push(Self::at(column.heading, x, subject(point.subject), move |s| y(&s.common)));
            }
        }
        trials
    }

    /// Returns the rate whose window is tuned, if the subject is one.
    pub(super) fn tuned(&self) -> Option<&TunedRate> {
        match &self.subject {
            Subject::TunedRate(rate) => Some(rate),
            _ => None,
        }
    }

    /// Takes one measurement. Missing capabilities of the device are notes, and yield no point.
    pub(super) fn take(
        &mut self,
        servers: &mut Servers<'_>,
        repetition: u32,
        report: &mut Report,
    ) -> Result<Vec<Point>, ExperimentError> {
        let taken = match &mut self.subject {
            Subject::Pair(subject) => {
                let (chosen, env) = (servers.chosen, servers.env);
                let measured = subject.measure(chosen, env, servers.ucx(subject, report), report);
                unless_illegal(self.series, measured, report)?.flatten().map(Sample::of)
            }
            Subject::Rate(task, direction) => {
                let measured = servers.rate(*task, *direction);
                unless_illegal(self.series, measured, report)?
            }
            Subject::TunedRate(rate) => unless_illegal(self.series, rate.measure(servers), report)?,
            Subject::Calls(task) => Some(servers.call(task)?),
            Subject::Kv(task) => Some(servers.operate(task, repetition, report)?),
            Subject::Remio(task) => Some(servers.transfer(task, repetition)?),
            Subject::Channel(channel) => Some(channel.measure(servers.chosen, servers.env, repetition)?),
            Subject::Files(task) => servers.pass(task, report)?,
            Subject::Database(task) => servers.query(*task, repetition, report)?,
            Subject::Learning(task) => servers.learn(*task, report)?,
            Subject::Training(training) => servers.train(*training, report)?,
        };
        let mut points = taken.as_ref().map_or_else(Vec::new, &self.points);
        points.retain(|point| point.y.is_finite() && point.x.is_none_or(f64::is_finite));
        Ok(points)
    }
}

/// Converts the error that a device lacks a capability to a note.
fn unless_illegal<T>(
    series: &str,
    measured: Result<T, RnicError>,
    report: &mut Report,
) -> Result<Option<T>, RnicError> {
    if let Err(RnicError::Illegal(refusal)) = &measured {
        report.note(format!("{series}: not measured: {refusal}."));
        return Ok(None);
    }
    measured.map(Some)
}

/// Implements the conversions of tasks to subjects.
macro_rules! subjects {
    ($($task:ty => $subject:expr;)*) => {
        $(impl From<$task> for Subject {
            fn from(task: $task) -> Self {
                $subject(task)
            }
        })*
    };
}

subjects! {
    RnicTask => |task: RnicTask| Subject::Pair(task.into());
    Baseline => |baseline| Rival::Bare(baseline).into();
    Rival => |rival: Rival| Subject::Pair(rival.into());
    (RnicTask, Direction) => |(task, direction)| Subject::Rate(task, direction);
    DatabaseTask => Subject::Database;
    LearningTask => Subject::Learning;
    FilesTask => Subject::Files;
    Channel => Subject::Channel;
    ClientPoolTask => |task| Subject::Channel(Channel::ClientPool(task));
    Training => Subject::Training;
    CallTask => Subject::Calls;
    KvTask => Subject::Kv;
    RemioTask => |task| Subject::Remio(Task::Remio(task));
    VerbsTask => |task| Subject::Remio(Task::Verbs(task));
}

/// Value of a sweep, with its place on the horizontal axis.
pub(super) trait Coordinate: Copy {
    fn x(self) -> f64;
}

macro_rules! coordinates {
    ($($number:ty)*) => {
        $(impl Coordinate for $number {
            fn x(self) -> f64 {
                self as f64
            }
        })*
    };
}

coordinates! { u16 u32 usize }

/// A value without a natural number: its place is stated.
impl<T: Copy> Coordinate for (f64, T) {
    fn x(self) -> f64 {
        self.0
    }
}

/// Returns `limits`, and for each value of a sweep one trial of every curve.
pub(super) fn grid<X: Coordinate, C: Copy>(
    limits: impl IntoIterator<Item = Trial>,
    values: &[X],
    curves: &[(&'static str, C)],
    trial: impl Fn(&'static str, X, C) -> Trial,
) -> Vec<Trial> {
    let trial = &trial;
    let points = values
        .iter()
        .flat_map(|value| curves.iter().map(move |(series, curve)| trial(series, *value, *curve)));
    limits.into_iter().chain(points).collect()
}

/// Returns the limits of one message at a time, and for each value of a sweep one point of every curve: `y` of the task
/// of value and curve.
pub(super) fn sweep<X: Coordinate, C: Copy, T: Into<Subject>>(
    values: &[X],
    curves: &[(&'static str, C)],
    y: fn(&Sample) -> f64,
    task: impl Fn(X, C) -> T,
) -> Vec<Trial> {
    sweep_beside(Trial::limits_of_one(y), values, curves, y, task)
}

/// Returns `limits`, and the points of [`sweep`].
pub(super) fn sweep_beside<X: Coordinate, C: Copy, T: Into<Subject>>(
    limits: impl IntoIterator<Item = Trial>,
    values: &[X],
    curves: &[(&'static str, C)],
    y: fn(&Sample) -> f64,
    task: impl Fn(X, C) -> T,
) -> Vec<Trial> {
    grid(limits, values, curves, |series, value, curve| Trial::at(series, value.x(), task(value, curve), y))
}

/// Returns `limits`, and a level of every curve.
pub(super) fn levels<C: Copy, T: Into<Subject>>(
    limits: impl IntoIterator<Item = Trial>,
    curves: &[(&'static str, C)],
    y: fn(&Sample) -> f64,
    task: impl Fn(C) -> T,
) -> Vec<Trial> {
    limits
        .into_iter()
        .chain(curves.iter().map(|(series, curve)| Trial::level(series, task(*curve), y)))
        .collect()
}
