//! Training by TensorFlow with a parameter server, as a program of others: over TCP, and unmodified under `farcall run`.
//!
//! One parameter server, [`WORKERS`] workers and the chief, a process each, on this host. `training.py` is what they run,
//! by the interpreter of [`crate::python`]. Both ways must train the same: the losses of the first steps are
//! compared to the last bit.

mod cluster;

use crate::peer::PeerError;
use cluster::Cluster;
use std::fmt;
use std::time::Duration;

/// Processes that compute.
const WORKERS: usize = 2;
/// Of these the losses are compared.
const COMPARED_STEPS: u32 = 5;

/// What is trained: a small model like one of the paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Model {
    Inception,
    AlexNet,
    ResNet,
}

/// What the connections of the processes go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// TCP over loopback.
    Tcp,
    /// `farcall run`.
    FarcallRun,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Training {
    pub(crate) model: Model,
    pub(crate) carrier: Carrier,
}

/// It could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrainingError {
    /// A process could not be started or asked.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A process of TensorFlow's did not do its part.
    #[error("TensorFlow's {role} {what}; its own message is on standard error")]
    Part {
        /// Of the process.
        role: &'static str,
        /// What is wrong.
        what: String,
    },
    /// The two ways do not train the same.
    #[error("{model} trained otherwise under farcall run: losses {moved:?} instead of {tcp:?}")]
    OtherResult { model: Model, tcp: Vec<f64>, moved: Vec<f64> },
    /// Nothing to compare.
    #[error("no connection of the parameter server went through shared memory under farcall run")]
    NothingMoved,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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

impl Model {
    pub(crate) const ALL: [Self; 3] = [Self::Inception, Self::AlexNet, Self::ResNet];

    /// In `training.py`.
    const fn name(self) -> &'static str {
        match self {
            Self::Inception => "inception",
            Self::AlexNet => "alexnet",
            Self::ResNet => "resnet",
        }
    }
}

/// The processes of both ways, started when they are first needed.
#[derive(Default)]
pub(crate) struct Trainers {
    tcp: Option<Cluster>,
    moved: Option<Cluster>,
    compared: Vec<Model>,
}

impl Trainers {
    /// Images a second that `python` trains with, for so long, on these cores. Of each model the results of both ways are
    /// compared first.
    ///
    /// # Errors
    /// When a process fails, when both ways do not give the same result, or when nothing went through shared memory.
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
