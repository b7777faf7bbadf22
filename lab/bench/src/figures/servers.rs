//! Services used by the experiments, each started when it is first needed.

use super::sample::Sample;
use crate::experiments::calls::{self, CallTask, SharedContext};
use crate::experiments::kv_main::{FrontEnd, KvTask, StoreFixture};
use crate::experiments::server::ServerProcess;
use crate::experiments::subject::{self, Rival};
use crate::experiments::{ExperimentEnv, ExperimentError};
use crate::files::{Files, FilesTask};
use crate::measure::pin_thread;
use crate::paged::{self, DatabaseFigures, DatabaseTask, Databases, Learning, LearningTask};
use crate::python::python_with;
use crate::remio::{self, Task};
use crate::report::Report;
use crate::rivals::Rival as StoreRival;
use crate::rnic::{self, Direction, RnicError, RnicTask};
use crate::training::{Trainers, Training};
use crate::ucx::{Ucx, UcxError};
use crate::workload::RecordShape;
use farcall::select::{SelectedNic, Selection};
use farcall_verbs::with_sources;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Number of records of the store (RF-RPC has 128 million).
const RECORDS: u64 = 20_000;
/// Length of keys in RF-RPC, section 5.1; the next line is that of values.
const KEY_LEN_BYTES: usize = 16;
const VALUE_LEN_BYTES: usize = 32;

/// Number of client processes of a rate in one direction between two hosts; on one host they would share the client's
/// core.
const CLIENTS_OF_HALVES: u32 = 2;

/// Duration of the training in each measurement.
const TRAINING: Duration = Duration::from_secs(4);

/// Running services, and where they run.
pub(super) struct Servers<'a> {
    pub(super) chosen: &'a SelectedNic,
    pub(super) env: &'a ExperimentEnv,
    /// Echo service, with its number of threads.
    echo: Option<(u16, ServerProcess)>,
    /// Stores: that of Farcall (`None`), and those of other designs.
    stores: Vec<(Option<StoreRival>, StoreFixture)>,
    trainers: Trainers,
    files: Files,
    databases: Databases,
    learning: Learning,
    ucx: Option<Result<Ucx, UcxError>>,
}

/// Starts a store with the records of the papers.
pub(super) fn open_store(
    env: &ExperimentEnv,
    nic: &Selection,
    front_end: FrontEnd,
) -> Result<StoreFixture, ExperimentError> {
    StoreFixture::open(env, nic, RECORDS, RecordShape::new(KEY_LEN_BYTES, VALUE_LEN_BYTES)?, front_end)
}

impl<'a> Servers<'a> {
    pub(super) fn new(chosen: &'a SelectedNic, env: &'a ExperimentEnv) -> Self {
        Self {
            chosen,
            env,
            echo: None,
            stores: Vec::new(),
            trainers: Trainers::default(),
            files: Files::default(),
            databases: Databases::default(),
            learning: Learning::default(),
            ucx: None,
        }
    }

    /// Returns UCX if `subject` needs it. If it is not installed, that is a note.
    pub(super) fn ucx(&mut self, subject: &subject::Subject, report: &mut Report) -> Option<&Ucx> {
        if !matches!(subject, subject::Subject::Rival(Rival::Ucx(_))) {
            return None;
        }
        match self.ucx.get_or_insert_with(Ucx::find) {
            Ok(ucx) => Some(ucx),
            Err(error) => {
                report.note(with_sources(error));
                None
            }
        }
    }

    /// Measures the rate of operations in one direction.
    pub(super) fn rate(&self, task: RnicTask, direction: Direction) -> Result<Sample, RnicError> {
        let clients = if self.env.server_half().is_some() { CLIENTS_OF_HALVES } else { 1 };
        let rate = rnic::rate(self.chosen, task, direction, clients, self.env)?;
        Ok(Sample::of(subject::Sample {
            per_second: rate.per_second,
            bytes_per_second: rate.per_second * task.len_bytes as f64,
            cores: rate.cores,
            ..subject::Sample::NONE
        }))
    }

    /// Measures calls of the echo service.
    pub(super) fn call(&mut self, task: &CallTask) -> Result<Sample, ExperimentError> {
        pin_thread(self.env.client_core)?;
        let nic = &self.chosen.selection;
        let threads = task.topology.responders();
        let server = match self.echo.take() {
            Some((same, server)) if same == threads => server,
            _ => calls::start_echo(self.env, nic, threads)?,
        };
        // A server that failed a call is not reused: the next call starts another.
        let sample =
            calls::measure(task, &SharedContext { env: self.env, nic, profile: None, server: &server })?;
        self.echo = Some((threads, server));
        Ok(Sample {
            latency: sample.latency,
            round_mean_us: sample.round_mean_us,
            verbs_per_call: sample.verbs_per_call,
            server_cpu_us_per_call: sample.server_cpu_us_per_call,
            client_cpu_us_per_call: sample.client_cpu_us_per_call,
            empty_share: sample.empty_share,
            ..Sample::of(sample.figures)
        })
    }

    /// Measures operations of the store.
    pub(super) fn operate(
        &mut self,
        task: &KvTask,
        repetition: u32,
        report: &mut Report,
    ) -> Result<Sample, ExperimentError> {
        pin_thread(self.env.client_core)?;
        let rival = task.front_end.rival();
        let place = self.stores.iter().position(|(whose, _)| *whose == rival);
        // A store that failed is not reused: the next run starts another.
        let mut store = match place {
            Some(place) => self.stores.swap_remove(place).1,
            None => open_store(self.env, &self.chosen.selection, task.front_end)?,
        };
        let sample = store.run(task, repetition, &mut report.problems)?;
        self.stores.push((rival, store));
        let latencies = subject::Sample::of_latency(&sample.load.latency, 1.0);
        Ok(Sample {
            latency: Some(sample.load.latency),
            verbs_per_call: sample.verbs_per_op,
            server_cpu_us_per_call: sample.us_per_op(sample.server_cpu),
            ..Sample::of(subject::Sample { per_second: sample.load.ops_per_second(), ..latencies })
        })
    }

    /// Ends the processes that the next experiment does not need: TensorFlow's processes never sleep for long, and
    /// file systems remain mounted only while they are used.
    pub(super) fn end_experiment(&mut self) {
        self.trainers = Trainers::default();
        self.files = Files::default();
    }

    /// Measures a pass over a file. If that is not possible here, there is a note and no point.
    pub(super) fn pass(
        &mut self,
        task: &FilesTask,
        report: &mut Report,
    ) -> Result<Option<Sample>, ExperimentError> {
        pin_thread(self.env.client_core)?;
        let rate = self.files.measure(task, &self.chosen.selection, self.env, report)?;
        Ok(rate.map(|bytes_per_second| {
            Sample::of(subject::Sample { bytes_per_second, ..subject::Sample::NONE })
        }))
    }

    /// Measures the rate of images in training. Without TensorFlow there is a note and no point.
    pub(super) fn train(
        &mut self,
        training: Training,
        report: &mut Report,
    ) -> Result<Option<Sample>, ExperimentError> {
        let python = match python_with("tensorflow", "tensorflow-cpu") {
            Ok(python) => python,
            Err(missing) => {
                report.note(format!("TensorFlow is not measured: {missing}."));
                return Ok(None);
            }
        };
        let (cores, duration) = ([self.env.server_core, self.env.client_core], self.env.scaled(TRAINING));
        let per_second = self.trainers.images_per_second(&python, training, duration, &cores)?;
        Ok(Some(Sample::of_rate(per_second)))
    }

    /// Measures operations of a database that is partly resident. If that is not possible here, there is a note and no
    /// point.
    pub(super) fn query(
        &mut self,
        task: DatabaseTask,
        repetition: u32,
        report: &mut Report,
    ) -> Result<Option<Sample>, ExperimentError> {
        let nic = &self.chosen.selection;
        let measured = self.databases.measure(task, repetition, nic, self.env, report);
        let what = format!("{}, {}", task.database, task.resident.backing);
        let figures = unless_not_here(measured, what, report)?;
        Ok(figures.map(|DatabaseFigures { per_second, p99_us }| {
            Sample::of(subject::Sample { per_second, p99_us, ..subject::Sample::NONE })
        }))
    }

    /// Measures the duration in seconds of a training whose memory is partly resident. If that is not possible here,
    /// there is a note and no point.
    pub(super) fn learn(
        &mut self,
        task: LearningTask,
        report: &mut Report,
    ) -> Result<Option<Sample>, ExperimentError> {
        let python = match python_with("numpy", "numpy") {
            Ok(python) => python,
            Err(missing) => {
                report.note(format!("Nothing is learnt: {missing}."));
                return Ok(None);
            }
        };
        let nic = &self.chosen.selection;
        let measured = self.learning.train(task, Path::new(&python), nic, self.env);
        Ok(unless_not_here(measured, task, report)?.map(|seconds| Sample::of_rate(1.0 / seconds)))
    }

    /// Measures one-sided I/O to newly started memory servers.
    pub(super) fn transfer(&self, task: &Task, repetition: u32) -> Result<Sample, ExperimentError> {
        let seed = self.env.seed.wrapping_add(repetition.into());
        let sample = remio::measure(self.chosen, task, &self.env.pair_plan(), seed)?;
        let line = subject::Sample {
            per_second: sample.per_second,
            ..subject::Sample::of_latency(&sample.latency, 1.0)
        };
        Ok(Sample { latency: Some(sample.latency), remio: Some(sample), ..Sample::of(line) })
    }
}

/// Converts the error that this machine does not support `what` to a note.
fn unless_not_here<T>(
    measured: Result<T, ExperimentError>,
    what: impl fmt::Display,
    report: &mut Report,
) -> Result<Option<T>, ExperimentError> {
    Ok(paged::supported(measured)?.map_err(|why| report.note(format!("{what}: not measured: {why}."))).ok())
}
