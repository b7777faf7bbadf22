//! The closed loop.

use super::ledger::Ledger;
use super::target::{Outcome, Request, Target, TargetError};
use crate::measure::{LatencyRecorder, LatencySummary, TscClock};
use crate::workload::{Op, OpKind, RecordShape};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest keys and values a run can handle; larger shapes are refused.
const RECORD_PART_LEN_BYTES_MAX: usize = 1 << 16;
/// So many wrong values are described; the others are only counted.
const MISMATCHES_DESCRIBED_MAX: usize = 5;

/// How a run goes.
#[derive(Debug, Clone, Copy)]
pub struct LoadPlan {
    /// Outstanding operations on each connection; at least 1.
    pub window: u32,
    /// Unrecorded start.
    pub warm_up: Duration,
    /// Recorded stretch.
    pub duration: Duration,
    /// Sizes of the records.
    pub shape: RecordShape,
    /// Records `0..loaded` exist before the run.
    pub loaded: u64,
}

/// A run could not go on.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A connection was lost.
    #[error("{error}")]
    Lost {
        /// What happened.
        #[source]
        error: TargetError,
        /// What the run had found until then.
        so_far: Box<LoadResult>,
    },
    /// The plan makes no sense.
    #[error("{0}")]
    Plan(&'static str),
}

/// What a run found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Operations completed in the recorded stretch; a read-modify-write is one.
    pub ops: u64,
    /// Requests to the service completed in it; a read-modify-write makes two.
    pub requests: u64,
    /// Length of the recorded stretch.
    pub elapsed_ns: u64,
    /// Latencies of operations, from submission to the poll that found them ended.
    pub latency: LatencySummary,
    /// Values that were checked, over the whole run.
    pub verified: u64,
    /// Reads that found nothing where a record must be, over the whole run.
    pub absent: u64,
    /// Requests that the service refused, over the whole run.
    pub refused: u64,
    /// Requests whose outcome is unknown, over the whole run.
    pub unknown: u64,
    /// Values that were wrong, over the whole run.
    pub mismatched: u64,
    /// The first few wrong values.
    pub mismatches: Vec<String>,
}

impl LoadResult {
    /// Operations a second in the recorded stretch.
    #[must_use]
    pub fn ops_per_second(&self) -> f64 {
        self.ops as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Everything that was not as it must be, one sentence each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut count = |count: u64, what: &str| {
            if count > 0 {
                problems.push(format!("{count} {what}"));
            }
        };
        count(self.absent, "reads found no record although one was stored");
        count(self.refused, "requests were refused");
        count(self.unknown, "requests ended with their outcome unknown");
        count(self.mismatched, "values read were wrong");
        count(u64::from(self.ops == 0), "operations: none completed");
        problems.extend(self.mismatches.iter().cloned());
        problems
    }
}

/// A connection with the operations it is to issue, over and over.
#[derive(Debug)]
pub struct Connection<T> {
    target: T,
    script: Vec<Op>,
    next: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose read-modify-write has read and is to write now.
    to_write: Vec<u32>,
}

/// An outstanding operation.
#[derive(Debug, Clone, Copy)]
struct Slot {
    op: Op,
    started: u64,
    /// A read: the oldest version it may find. A write: the version it carries.
    version: u64,
    is_write: bool,
}

impl<T: Target> Connection<T> {
    /// A connection that issues `script` from the start, again and again.
    #[must_use]
    pub fn new(target: T, script: Vec<Op>) -> Self {
        Self { target, script, next: 0, slots: Vec::new(), free: Vec::new(), to_write: Vec::new() }
    }

    /// The target itself, for its statistics.
    pub fn target(&mut self) -> &mut T {
        &mut self.target
    }

    /// Takes the target back.
    pub fn into_target(self) -> T {
        self.target
    }

    fn open_window(&mut self, window: u32) {
        let idle = Slot { op: Op { kind: OpKind::Read, record: 0 }, started: 0, version: 0, is_write: false };
        self.slots = vec![idle; window as usize];
        self.free = (0..window).rev().collect();
        self.to_write = Vec::with_capacity(window as usize);
    }

    /// Operations that were submitted and have not ended. After a failed run: those that failed with it.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// The state of one run over several connections.
#[derive(Debug)]
pub struct Load {
    plan: LoadPlan,
    clock: TscClock,
    latencies: LatencyRecorder,
    result: LoadResult,
    key: Vec<u8>,
    value: Vec<u8>,
    is_recording: bool,
    /// Operations completed, warm-up included, and where observers read them.
    completed: u64,
    observed: Arc<AtomicU64>,
}

impl Load {
    /// Prepares a run; everything it needs is allocated here and by the first step.
    ///
    /// # Errors
    /// When the plan makes no sense.
    pub fn new(plan: LoadPlan) -> Result<Self, LoadError> {
        let shape = plan.shape;
        if plan.window == 0 {
            return Err(LoadError::Plan("a window of 0 sends nothing; use at least 1"));
        }
        if shape.key_len_bytes().max(shape.value_len_bytes()) > RECORD_PART_LEN_BYTES_MAX {
            return Err(LoadError::Plan("keys and values of a benchmark have at most 65536 bytes"));
        }
        Ok(Self {
            plan,
            clock: TscClock::calibrated(),
            latencies: LatencyRecorder::new(),
            result: LoadResult::default(),
            key: vec![0; shape.key_len_bytes()],
            value: vec![0; shape.value_len_bytes()],
            is_recording: false,
            completed: 0,
            observed: Arc::new(AtomicU64::new(0)),
        })
    }

    /// The number of operations completed so far, warm-up included; kept up to date while the run goes on.
    #[must_use]
    pub fn completed(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.observed)
    }

    /// Runs `connections` in the calling thread. `on_recording` runs when the recorded stretch begins and again when
    /// it ends (with `false`, then `true`), so that the caller can read CPU clocks there.
    ///
    /// # Errors
    /// When a connection is lost.
    pub fn run<T: Target>(
        mut self,
        connections: &mut [Connection<T>],
        ledger: &mut Ledger,
        mut on_recording: impl FnMut(bool),
    ) -> Result<LoadResult, LoadError> {
        if connections.iter().any(|connection| connection.script.is_empty()) {
            return Err(LoadError::Plan("a connection has no operations to issue"));
        }
        connections.iter_mut().for_each(|connection| connection.open_window(self.plan.window));
        let ended = self.run_stretches(connections, ledger, &mut on_recording);
        self.publish();
        self.result.latency = self.latencies.summary();
        match ended {
            Ok(()) => Ok(self.result),
            Err(error) => Err(LoadError::Lost { error, so_far: Box::new(self.result) }),
        }
    }

    fn run_stretches<T: Target>(
        &mut self,
        connections: &mut [Connection<T>],
        ledger: &mut Ledger,
        on_recording: &mut impl FnMut(bool),
    ) -> Result<(), TargetError> {
        self.turn_until(self.clock.now() + self.clock.ticks_in(self.plan.warm_up), connections, ledger)?;
        on_recording(false);
        self.is_recording = true;
        let start = self.clock.now();
        let end = self.turn_until(start + self.clock.ticks_in(self.plan.duration), connections, ledger)?;
        self.is_recording = false;
        on_recording(true);
        self.result.elapsed_ns = self.clock.ns_between(start, end);
        self.drain(connections, ledger)
    }

    /// Turns the loop until `deadline`; returns when it stopped.
    fn turn_until<T: Target>(
        &mut self,
        deadline: u64,
        connections: &mut [Connection<T>],
        ledger: &mut Ledger,
    ) -> Result<u64, TargetError> {
        let mut now = self.clock.now();
        while now < deadline {
            // All connections send before the first is waited for.
            for connection in &mut *connections {
                self.submit_all(connection, ledger, now)?;
            }
            for connection in &mut *connections {
                self.poll(connection, ledger)?;
            }
            now = self.clock.now();
            self.publish();
        }
        Ok(now)
    }

    /// Waits for what is outstanding, submitting only the second halves of read-modify-writes.
    fn drain<T: Target>(
        &mut self,
        connections: &mut [Connection<T>],
        ledger: &mut Ledger,
    ) -> Result<(), TargetError> {
        for connection in connections {
            while connection.outstanding() > 0 {
                self.submit_second_halves(connection, ledger)?;
                connection.target.flush()?;
                self.poll(connection, ledger)?;
            }
        }
        Ok(())
    }

    /// Lets observers in other threads see how far the run is.
    #[inline]
    fn publish(&self) {
        self.observed.store(self.completed, Ordering::Relaxed);
    }

    fn submit_all<T: Target>(
        &mut self,
        connection: &mut Connection<T>,
        ledger: &mut Ledger,
        now: u64,
    ) -> Result<(), TargetError> {
        self.submit_second_halves(connection, ledger)?;
        while let Some(slot) = connection.free.pop() {
            let op = connection.script[connection.next];
            connection.next += 1;
            if connection.next == connection.script.len() {
                connection.next = 0;
            }
            let is_write = matches!(op.kind, OpKind::Update | OpKind::Insert);
            connection.slots[slot as usize] = Slot { op, started: now, version: 0, is_write };
            self.submit(connection, ledger, slot)?;
        }
        connection.target.flush()
    }

    fn submit_second_halves<T: Target>(
        &mut self,
        connection: &mut Connection<T>,
        ledger: &mut Ledger,
    ) -> Result<(), TargetError> {
        while let Some(slot) = connection.to_write.pop() {
            connection.slots[slot as usize].is_write = true;
            self.submit(connection, ledger, slot)?;
        }
        Ok(())
    }

    #[inline]
    fn submit<T: Target>(
        &mut self,
        connection: &mut Connection<T>,
        ledger: &mut Ledger,
        slot_number: u32,
    ) -> Result<(), TargetError> {
        let slot = &mut connection.slots[slot_number as usize];
        let record = slot.op.record;
        let key = self.plan.shape.key(record, &mut self.key);
        if slot.is_write {
            slot.version = ledger.begin_write(record);
            let value = self.plan.shape.value(record, slot.version, &mut self.value);
            connection.target.submit(slot_number, Request::Put { key, value })
        } else {
            slot.version = ledger.oldest(record);
            connection.target.submit(slot_number, Request::Get { key })
        }
    }

    #[inline]
    fn poll<T: Target>(
        &mut self,
        connection: &mut Connection<T>,
        ledger: &mut Ledger,
    ) -> Result<(), TargetError> {
        let Connection { target, slots, free, to_write, .. } = connection;
        // Read at the first outcome of a batch: all of it became known at the same moment.
        let mut now = None;
        target.poll(|slot_number, outcome| {
            let Some(slot) = slots.get(slot_number as usize) else { return };
            self.check(slot, outcome, ledger);
            self.result.requests += u64::from(self.is_recording);
            let was_read = !slot.is_write && slot.op.kind == OpKind::ReadModifyWrite;
            if was_read && matches!(outcome, Outcome::Value(_)) {
                to_write.push(slot_number);
                return;
            }
            free.push(slot_number);
            self.completed += 1;
            if self.is_recording {
                let now = *now.get_or_insert_with(|| self.clock.now());
                self.latencies.record_ns(self.clock.ns_between(slot.started, now));
                self.result.ops += 1;
            }
        })
    }

    #[inline]
    fn check(&mut self, slot: &Slot, outcome: Outcome<'_>, ledger: &mut Ledger) {
        let record = slot.op.record;
        if slot.is_write {
            ledger.end_write(record, slot.version, outcome == Outcome::Stored);
        }
        match (outcome, slot.is_write) {
            (Outcome::Value(value), false) => {
                let expected = ledger.expected(record, slot.version);
                let verdict =
                    self.plan.shape.verify_between(record, value, *expected.start(), *expected.end());
                self.result.verified += 1;
                if let Err(mismatch) = verdict {
                    self.note_mismatch(mismatch.to_string());
                }
            }
            (Outcome::Absent, false) => {
                // Inserted records must be there only if their write was acknowledged when this read began.
                let must_exist = record < self.plan.loaded || slot.version > 0;
                self.result.absent += u64::from(must_exist);
            }
            (Outcome::Stored, true) => {}
            (Outcome::Refused, _) => self.result.refused += 1,
            (Outcome::Unknown, _) => self.result.unknown += 1,
            (Outcome::Value(_) | Outcome::Absent, true) | (Outcome::Stored, false) => {
                self.note_mismatch(format!("record {record}: the answer belongs to another kind of request"));
            }
        }
    }

    #[cold]
    fn note_mismatch(&mut self, description: String) {
        self.result.mismatched += 1;
        if self.result.mismatches.len() < MISMATCHES_DESCRIBED_MAX {
            self.result.mismatches.push(description);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{OpStream, StreamConfig, Workload};
    use std::collections::{HashMap, VecDeque};

    /// What a [`MapTarget`] does wrong.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Fault {
        None,
        /// Every hundredth value has a flipped bit.
        FlipsBits,
        /// Writes are acknowledged but not executed.
        LosesWrites,
        /// Every hundredth read finds nothing.
        LosesRecords,
        /// The connection is lost at the five hundredth request.
        Dies,
    }

    /// A store in memory that ends requests out of order.
    struct MapTarget {
        records: HashMap<Vec<u8>, Vec<u8>>,
        waiting: VecDeque<(u32, Option<Vec<u8>>, bool)>,
        fault: Fault,
        requests: u64,
        outstanding_max: usize,
    }

    impl MapTarget {
        fn loaded(shape: RecordShape, records: u64, fault: Fault) -> Self {
            let (mut key, mut value) = (vec![0; shape.key_len_bytes()], vec![0; shape.value_len_bytes()]);
            let load =
                |record| (shape.key(record, &mut key).to_vec(), shape.value(record, 0, &mut value).to_vec());
            Self {
                records: (0..records).map(load).collect(),
                waiting: VecDeque::new(),
                fault,
                requests: 0,
                outstanding_max: 0,
            }
        }
    }

    impl Target for MapTarget {
        fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
            self.requests += 1;
            if self.fault == Fault::Dies && self.requests == 500 {
                return Err(TargetError::Lost("test".to_owned()));
            }
            let (found, is_write) = match request {
                Request::Get { key } => {
                    let mut found = self.records.get(key).cloned();
                    let is_hundredth = self.requests.is_multiple_of(100);
                    match (&mut found, self.fault) {
                        (Some(value), Fault::FlipsBits) if is_hundredth => value[9] ^= 4,
                        (found, Fault::LosesRecords) if is_hundredth => *found = None,
                        _ => {}
                    }
                    (found, false)
                }
                Request::Put { key, value } => {
                    if self.fault != Fault::LosesWrites {
                        self.records.insert(key.to_vec(), value.to_vec());
                    }
                    (None, true)
                }
            };
            self.waiting.push_back((slot, found, is_write));
            self.outstanding_max = self.outstanding_max.max(self.waiting.len());
            Ok(())
        }

        fn flush(&mut self) -> Result<(), TargetError> {
            Ok(())
        }

        fn poll(&mut self, mut done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
            // The newest half ends first.
            for _ in 0..self.waiting.len().div_ceil(2) {
                let Some((slot, found, is_write)) = self.waiting.pop_back() else { break };
                match (found, is_write) {
                    (Some(value), _) => done(slot, Outcome::Value(&value)),
                    (None, true) => done(slot, Outcome::Stored),
                    (None, false) => done(slot, Outcome::Absent),
                }
            }
            Ok(())
        }
    }

    const RECORDS: u64 = 500;

    fn run(workload: Workload, window: u32, fault: Fault) -> (Result<LoadResult, LoadError>, usize) {
        let shape = RecordShape::default();
        let plan = LoadPlan {
            window,
            warm_up: Duration::from_millis(1),
            duration: Duration::from_millis(30),
            shape,
            loaded: RECORDS,
        };
        let stream = OpStream::new(StreamConfig {
            workload,
            distribution: workload.distribution(),
            records: RECORDS,
            seed: 3,
            stream: 0,
            streams: 1,
        });
        let script = { stream }.script(4096);
        let mut connections = [Connection::new(MapTarget::loaded(shape, RECORDS, fault), script)];
        let mut marks = Vec::new();
        let result =
            Load::new(plan).unwrap().run(&mut connections, &mut Ledger::new(RECORDS), |end| marks.push(end));
        assert!(result.is_err() || marks == [false, true]);
        (result, connections[0].target().outstanding_max)
    }

    #[test]
    fn every_workload_verifies_on_a_correct_store_at_both_windows() {
        for workload in Workload::ALL {
            for window in [1, 16] {
                let (result, outstanding_max) = run(workload, window, Fault::None);
                let result = result.unwrap();
                assert_eq!(result.problems(), [""; 0], "{workload} at window {window}");
                assert_eq!(outstanding_max, window as usize);
                assert_eq!(result.latency.count, result.ops);
                assert!(result.verified > 0 && result.ops_per_second() > 0.0);
                // A read-modify-write at the very end of the stretch may have its halves on both sides.
                if workload == Workload::F {
                    assert!(result.requests > result.ops, "{result:?}");
                }
            }
        }
    }

    #[test]
    fn wrong_values_lost_writes_and_lost_records_are_found() {
        let found = |workload, fault| run(workload, 16, fault).0.unwrap();
        assert!(found(Workload::C, Fault::FlipsBits).mismatched > 0);
        assert!(found(Workload::A, Fault::LosesWrites).mismatched > 0);
        assert!(found(Workload::D, Fault::LosesWrites).absent > 0);
        let lost = found(Workload::C, Fault::LosesRecords);
        assert!(lost.absent > 0 && lost.problems().iter().any(|problem| problem.contains("no record")));
    }

    #[test]
    fn a_lost_connection_ends_the_run() {
        let (result, _) = run(Workload::C, 4, Fault::Dies);
        assert!(
            matches!(result, Err(LoadError::Lost { error: TargetError::Lost(_), so_far }) if so_far.verified > 0)
        );
    }

    #[test]
    fn senseless_plans_are_refused() {
        let shape = RecordShape::default();
        let plan =
            LoadPlan { window: 0, warm_up: Duration::ZERO, duration: Duration::ZERO, shape, loaded: 1 };
        assert!(matches!(Load::new(plan), Err(LoadError::Plan(_))));
        let huge = LoadPlan { window: 1, shape: RecordShape::new(16, 1 << 20).unwrap(), ..plan };
        assert!(matches!(Load::new(huge), Err(LoadError::Plan(_))));
    }
}
