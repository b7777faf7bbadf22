//! One server of Farcall's store with its records, and single runs against it under any front end over verbs.

use super::figures::{Figure, Sample};
use super::{ExperimentError, FrontEnd, KvMainPlan, ServerUnderTest, chosen_at, open};
use crate::experiments::{ExperimentEnv, Reach};
use crate::workload::{Distribution, RecordShape, Workload};
use farcall::rpc::tune::Decision;
use farcall::select::Selection;
use farcall_link::BatchSizing;
use std::fmt;

/// Configuration of one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvTask {
    pub(crate) front_end: FrontEnd,
    pub(crate) workload: Workload,
    pub(crate) distribution: Distribution,
    /// Outstanding operations on each connection.
    pub(crate) window: u32,
    /// Connections, all run by one client thread.
    pub(crate) connections: u32,
    /// Batch size, or `None` if operations are not batched.
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

/// A server of the store with loaded records.
pub(crate) struct StoreFixture {
    plan: KvMainPlan,
    tested: ServerUnderTest,
}

impl StoreFixture {
    /// Starts a server with one partition for `front_end` on the environment's server core, and loads `records` into it. The
    /// same server supports every preset.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started, or if loading fails.
    pub(crate) fn open(
        env: &ExperimentEnv,
        nic: &Selection,
        records: u64,
        shape: RecordShape,
        front_end: FrontEnd,
    ) -> Result<Self, ExperimentError> {
        let plan = KvMainPlan {
            env: env.clone(),
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
        let tested = open(&plan, front_end)?;
        Ok(Self { plan, tested })
    }

    /// Returns the library's choice at this server.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub(crate) fn chosen(&mut self) -> Result<Option<Decision>, ExperimentError> {
        self.tested.front_end = FrontEnd::Auto;
        chosen_at(&self.plan, &self.tested)
    }

    /// Connects, runs the load and disconnects. Adds detected faults to `problems`.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached, or if a connection is lost.
    pub(crate) fn run(
        &mut self,
        task: &KvTask,
        repetition: u32,
        problems: &mut Vec<String>,
    ) -> Result<Sample, ExperimentError> {
        self.tested.front_end = task.front_end;
        self.plan.connections = task.connections;
        Sample::take(&self.plan, &task.figure(), &mut self.tested, repetition, problems)
    }
}
