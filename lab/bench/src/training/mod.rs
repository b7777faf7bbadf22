//! Training by TensorFlow with a parameter server, as a program of another project: over TCP, and unmodified under
//! `farcall run`.
//!
//! One parameter server, [`WORKERS`] workers and the chief, a process each, run on this host. They execute
//! `training.py` with the interpreter of [`crate::python`]. Both transports must produce the same training: the losses
//! of the first steps are compared bit by bit.

mod cluster;

use crate::peer::PeerError;
use cluster::Cluster;
use std::fmt;
use std::time::Duration;

/// Number of computing processes.
const WORKERS: usize = 2;
/// Number of steps whose losses are compared.
const COMPARED_STEPS: u32 = 5;

/// Trained model: a small one similar to one of the paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Model {
    Inception,
    AlexNet,
    ResNet,
}

names! { Model { Inception => "inception", AlexNet => "alexnet", ResNet => "resnet" } }

/// Transport of the processes' connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// TCP over loopback.
    Tcp,
    /// `farcall run`.
    FarcallRun,
}

/// Configuration of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Training {
    pub(crate) model: Model,
    pub(crate) carrier: Carrier,
}

/// Reason why it could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrainingError {
    /// A process could not be started, or did not reply.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A TensorFlow process failed.
    #[error("TensorFlow's {role} {what}; its own message is on standard error")]
    Part {
        /// Role of the process.
        role: &'static str,
        /// Description of the failure.
        what: String,
    },
    /// The results of the two transports differ.
    #[error("{model} trained otherwise under farcall run: losses {moved:?} instead of {tcp:?}")]
    OtherResult { model: Model, tcp: Vec<f64>, moved: Vec<f64> },
    /// No bytes were transferred through shared memory.
    #[error("no connection of the parameter server went through shared memory under farcall run")]
    NothingMoved,
}

impl fmt::Display for Training {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let carrier = match self.carrier {
            Carrier::Tcp => "TCP",
            Carrier::FarcallRun => "farcall run",
        };
        write!(f, "TensorFlow, {}, {carrier}", self.model)
    }
}

/// Processes for both transports, started when they are first needed.
#[derive(Default)]
pub(crate) struct Trainers {
    tcp: Option<Cluster>,
    moved: Option<Cluster>,
    compared: Vec<Model>,
}

impl Trainers {
    /// Returns the images a second in training with `python` for `duration` on these cores. Compares the results of
    /// both transports first, once per model.
    ///
    /// # Errors
    /// Returns an error if a process fails, if the results of the transports differ, or if no bytes were transferred
    /// through shared memory.
    pub(crate) fn images_per_second(
        &mut self,
        python: &str,
        training: Training,
        duration: Duration,
        cores: &[usize],
    ) -> Result<f64, TrainingError> {
        let Self { tcp, moved, compared } = self;
        let tcp = started(tcp, || Cluster::start(python, Carrier::Tcp, cores))?;
        let moved = started(moved, || Cluster::start(python, Carrier::FarcallRun, cores))?;
        let model = training.model;
        if !compared.contains(&model) {
            let [tcp, moved] = [&mut *tcp, &mut *moved].map(|cluster| cluster.losses(model, COMPARED_STEPS));
            let (tcp, moved) = (tcp?, moved?);
            if tcp != moved {
                return Err(TrainingError::OtherResult { model, tcp, moved });
            }
            compared.push(model);
        }
        match training.carrier {
            Carrier::Tcp => tcp.images_per_second(model, duration),
            Carrier::FarcallRun => {
                let measured = moved.images_per_second(model, duration);
                if moved.moved_bytes() == Some(0) { Err(TrainingError::NothingMoved) } else { measured }
            }
        }
    }
}

fn started(
    cluster: &mut Option<Cluster>,
    start: impl FnOnce() -> Result<Cluster, TrainingError>,
) -> Result<&mut Cluster, TrainingError> {
    match cluster {
        Some(cluster) => Ok(cluster),
        None => Ok(cluster.insert(start()?)),
    }
}
