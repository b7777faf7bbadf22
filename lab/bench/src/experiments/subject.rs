//! Subjects of measurements between two processes without calls, and the figures of one measurement.

use super::env::ExperimentEnv;
use crate::baseline::{self, Baseline, BaselineResult};
use crate::libfabric;
use crate::measure::{LatencySummary, RoundTrips};
use crate::peer::{BothEnds, PeerError};
use crate::report::Report;
use crate::rnic::echo::{self, EchoResult, EchoTask};
use crate::rnic::{self, RnicError, RnicResult, RnicTask, RnicTest};
use crate::ucx::{Ucx, UcxResult, UcxTest};
use farcall::select::SelectedNic;
use farcall_verbs::with_sources;
use std::fmt;

/// Figures of one measurement; NaN if the measurement does not provide them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) p50_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) lost_percent: f64,
    pub(crate) cores: BothEnds,
    pub(crate) count: f64,
}

/// A limit of what Farcall can achieve, or another program with the same function.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rival {
    Bare(Baseline),
    Ucx(UcxTest),
    /// Ping-pong of messages with the given number of bytes.
    Libfabric(usize),
}

/// A measured subject.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject {
    Rival(Rival),
    Verbs(RnicTask),
    Echo(EchoTask),
}

impl Sample {
    pub(crate) const NONE: Self = Self {
        p50_us: f64::NAN,
        mean_us: f64::NAN,
        p99_us: f64::NAN,
        p999_us: f64::NAN,
        per_second: f64::NAN,
        bytes_per_second: f64::NAN,
        lost_percent: f64::NAN,
        cores: BothEnds::NONE,
        count: f64::NAN,
    };

    /// Creates a sample with each latency multiplied by `factor`.
    pub(crate) fn of_latency(latency: &LatencySummary, factor: f64) -> Self {
        let us = |ns: u64| ns as f64 / 1e3 * factor;
        Self {
            p50_us: us(latency.p50_ns),
            mean_us: latency.mean_ns / 1e3 * factor,
            p99_us: us(latency.p99_ns),
            p999_us: us(latency.p999_ns),
            ..Self::NONE
        }
    }

    /// Returns the sample with latencies multiplied by `factor`, which converts between round trips and one direction.
    pub(crate) fn stretched(self, factor: f64) -> Self {
        Self {
            p50_us: self.p50_us * factor,
            mean_us: self.mean_us * factor,
            p99_us: self.p99_us * factor,
            p999_us: self.p999_us * factor,
            per_second: self.per_second / factor,
            ..self
        }
    }
}

/// Latencies are round trips.
impl From<RoundTrips> for Sample {
    fn from(trips: RoundTrips) -> Self {
        let (per_second, count) = (trips.per_second, trips.count as f64);
        Self { per_second, count, ..Self::of_latency(&trips.latency, 1.0) }
    }
}

/// Latencies are round trips.
impl From<BaselineResult> for Sample {
    fn from(result: BaselineResult) -> Self {
        Self { bytes_per_second: result.bytes_per_second.unwrap_or(f64::NAN), ..result.round_trips.into() }
    }
}

/// Latencies are of one direction.
impl From<UcxResult> for Sample {
    fn from(result: UcxResult) -> Self {
        Self {
            p50_us: result.median_us,
            mean_us: result.mean_us,
            per_second: result.messages_per_second,
            bytes_per_second: result.mib_per_second * 1_048_576.0,
            count: result.iterations as f64,
            ..Self::NONE
        }
    }
}

/// Latencies are of one direction, or until the completion.
impl From<RnicResult> for Sample {
    fn from(result: RnicResult) -> Self {
        let task = result.task;
        let can_lose = task.is_unreliable() && task.operation.consumes_receive();
        let lost_percent = 100.0 * result.lost as f64 / result.sent.max(1) as f64;
        let latency = result.latency.as_ref();
        Self {
            per_second: result.messages_per_second,
            bytes_per_second: result.bytes_per_second(),
            lost_percent: if can_lose { lost_percent } else { f64::NAN },
            cores: result.cores,
            count: result.samples as f64,
            ..latency.map_or(Self::NONE, |latency| Self::of_latency(latency, 1.0 / task.ways()))
        }
    }
}

impl From<EchoResult> for Sample {
    fn from(result: EchoResult) -> Self {
        let (per_second, cores, count) = (result.echoes_per_second, result.cores, result.samples as f64);
        Self { per_second, cores, count, ..Self::NONE }
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bare(baseline) => baseline.fmt(f),
            Self::Ucx(test) => test.fmt(f),
            Self::Libfabric(len_bytes) => write!(f, "libfabric, fi_pingpong, {len_bytes} B"),
        }
    }
}

impl Rival {
    /// Takes one measurement. A failure of UCX or libfabric is a note.
    pub(crate) fn measure(
        self,
        env: &ExperimentEnv,
        ucx: Option<&Ucx>,
        report: &mut Report,
    ) -> Result<Option<Sample>, PeerError> {
        match self {
            Self::Bare(baseline) => Ok(Some(baseline::measure(baseline, &env.pair_plan())?.into())),
            Self::Ucx(test) => {
                let result = ucx.map(|ucx| ucx.run(test, env.server_core, env.client_core)).transpose();
                Ok(result
                    .unwrap_or_else(|error| {
                        report.note(with_sources(&error));
                        None
                    })
                    .map(|result| match test.is_latency() {
                        true => result.into(),
                        false => Sample { p50_us: f64::NAN, mean_us: f64::NAN, ..result.into() },
                    }))
            }
            Self::Libfabric(len_bytes) => {
                let measured = libfabric::ping_pong(len_bytes, env.server_core, env.client_core);
                let sample = |bytes_per_second| Sample { bytes_per_second, ..Sample::NONE };
                Ok(measured.map(sample).map_err(|error| report.note(error.to_string())).ok())
            }
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rival(rival) => rival.fmt(f),
            Self::Verbs(task) => write!(f, "{task}, {} B", task.len_bytes),
            Self::Echo(task) => write!(f, "{task}, {} B", task.len_bytes),
        }
    }
}

impl From<RnicTask> for Subject {
    fn from(task: RnicTask) -> Self {
        Self::Verbs(task)
    }
}

impl From<EchoTask> for Subject {
    fn from(task: EchoTask) -> Self {
        Self::Echo(task)
    }
}

impl From<Rival> for Subject {
    fn from(rival: Rival) -> Self {
        Self::Rival(rival)
    }
}

impl Subject {
    /// Takes one measurement. Messages lost over an unreliable transport, and WRITEs that cannot be detected by their
    /// last byte, are notes.
    pub(crate) fn measure(
        &mut self,
        chosen: &SelectedNic,
        env: &ExperimentEnv,
        ucx: Option<&Ucx>,
        report: &mut Report,
    ) -> Result<Option<Sample>, RnicError> {
        let plan = env.pair_plan();
        let measured = match self {
            Self::Rival(rival) => return Ok(rival.measure(env, ucx, report)?),
            Self::Echo(task) => echo::measure(chosen, *task, &plan).map(Sample::from),
            Self::Verbs(task) => match rnic::measure(chosen, *task, &plan) {
                Err(error @ RnicError::NotInOrder) if !task.is_unreliable() => {
                    // This and later repetitions measure the completion instead.
                    task.test = RnicTest::Completion;
                    report.note(format!("{}: {error}. Measured until its completion.", task.operation));
                    rnic::measure(chosen, *task, &plan).map(Sample::from)
                }
                measured => measured.map(Sample::from),
            },
        };
        match measured {
            Err(error)
                if matches!(error, RnicError::NotInOrder | RnicError::Silence(_))
                    || (matches!(error, RnicError::Bytes(_)) && self.is_unreliable()) =>
            {
                report.note(format!("{self}: {error}."));
                Ok(None)
            }
            measured => measured.map(Some),
        }
    }

    fn is_unreliable(&self) -> bool {
        match self {
            Self::Rival(_) => false,
            Self::Verbs(task) => task.is_unreliable(),
            Self::Echo(task) => task.is_unreliable(),
        }
    }
}
