//! One server with its records, and single runs against it: of our store under any front end over verbs.

use super::figures::{Figure, Sample};
use super::{ExperimentError, FrontEnd, KvMainPlan, Post, chosen_at, open};
use crate::experiments::{Reach, Stage};
use crate::workload::{Distribution, RecordShape, Workload};
use farcall::select::Selection;
use farcall_link::BatchSizing;
use farcall_rpc::tune::Decision;
use std::fmt;

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvTask {
    pub(crate) front_end: FrontEnd,
    pub(crate) workload: Workload,
    pub(crate) distribution: Distribution,
    /// Operations under way on each connection.
    pub(crate) window: u32,
    /// Connections, all run by one client thread.
    pub(crate) connections: u32,
    /// Whether operations travel in batches, and in which.
    pub(crate) batch: Option<BatchSizing>,
}

impl fmt::Display for KvTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figure().fmt(f)?;
        write!(f, ", {} connections", self.connections)
    }
}

impl KvTask {
    const fn figure(&self) -> Figure {
        let &Self { front_end, workload, distribution, window, batch, .. } = self;
        Figure { front_end, workload, distribution, window, batch, samples: Vec::new() }
    }
}

/// A server of the store, filled.
pub(crate) struct Stand {
    plan: KvMainPlan,
    post: Post,
}

impl Stand {
    /// Starts a server for `front_end` on the stage's server core, of one partition, and loads `records` into it. The same
    /// server speaks under every preset.
    ///
    /// # Errors
    /// When it cannot be started or filled.
    pub(crate) fn open(
        stage: &Stage,
        nic: &Selection,
        records: u64,
        shape: RecordShape,
        front_end: FrontEnd,
    ) -> Result<Self, ExperimentError> {
        let plan = KvMainPlan {
            stage: stage.clone(),
            records,
            shape,
            workloads: Vec::new(),
            windows: Vec::new(),
            batches: Vec::new(),
            clients: 1,
            connections: 1,
            rate: None,
            front_ends: Vec::new(),
            reach: Reach { nic: nic.clone(), profile: None },
        };
        let post = open(&plan, front_end)?;
        Ok(Self { plan, post })
    }

    /// What the library chooses at this server.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub(crate) fn chosen(&mut self) -> Result<Option<Decision>, ExperimentError> {
        self.post.front_end = FrontEnd::Auto;
        chosen_at(&self.plan, &self.post)
    }

    /// Connects, runs, disconnects. What was wrong goes into `problems`.
    ///
    /// # Errors
    /// When the server cannot be reached, or a connection is lost.
    pub(crate) fn run(
        &mut self,
        task: &KvTask,
        repetition: u32,
        problems: &mut Vec<String>,
    ) -> Result<Sample, ExperimentError> {
        self.post.front_end = task.front_end;
        self.plan.connections = task.connections;
        Sample::take(&self.plan, &task.figure(), &mut self.post, repetition, problems)
    }
}
