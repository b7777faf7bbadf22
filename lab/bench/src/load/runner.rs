//! The loop that issues operations: closed, or open with a schedule.

use super::ledger::Ledger;
use super::result::{LoadError, LoadResult};
use super::target::{Outcome, Request, Target, TargetError};
use crate::measure::{LatencyRecorder, Schedule, Share};
use crate::workload::{Op, OpKind, RecordShape};
use farcall_verbs::{Clock, MonotonicClock, Nanos};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum number of wrong values that are described; the others are only counted.
const MISMATCHES_DESCRIBED_MAX: usize = 5;

/// Plan of a run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct LoadPlan {
    /// Outstanding operations on each connection; at least 1.
    pub window: u32,
    /// Unrecorded time at the start.
    pub warm_up: Duration,
    /// Recorded period.
    pub duration: Duration,
    /// Sizes of the records.
    pub shape: RecordShape,
    /// Records `0..loaded` exist before the run.
    pub loaded: u64,
    /// Schedule of the operations; if `None`, each begins when another has completed.
    pub share: Option<Share>,
}

/// A connection with the operations that it issues cyclically.
#[derive(Debug)]
pub struct Connection<T> {
    target: T,
    script: Vec<Op>,
    next: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose read-modify-write has read and must write next.
    to_write: Vec<u32>,
    schedule: Option<Schedule>,
}

/// An outstanding operation.
#[derive(Debug, Clone, Copy)]
struct Slot {
    op: Op,
    /// Time of submission; the scheduled time under a schedule.
    started: Nanos,
    /// For a read: the oldest version that it may find. For a write: its version.
    version: u64,
    is_write: bool,
}

impl<T: Target> Connection<T> {
    /// Creates a connection that issues `script` cyclically from its start.
    ///
    /// # Panics
    /// Panics if `script` is empty.
    pub fn new(target: T, script: Vec<Op>) -> Self {
        assert!(!script.is_empty(), "a connection has operations to issue");
        let (slots, free, to_write) = (Vec::new(), Vec::new(), Vec::new());
        Self { target, script, next: 0, slots, free, to_write, schedule: None }
    }

    /// Returns the target, for its statistics.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Returns the target, for use between runs.
    pub fn target_mut(&mut self) -> &mut T {
        &mut self.target
    }

    fn open_window(&mut self, window: u32) {
        let idle =
            Slot { op: Op { kind: OpKind::Read, record: 0 }, started: Nanos(0), version: 0, is_write: false };
        self.slots = vec![idle; window as usize];
        self.free = (0..window).rev().collect();
        self.to_write = Vec::with_capacity(window as usize);
    }

    /// Returns the start time of the next operation, if it is due at `now`.
    #[inline]
    fn next_start(&mut self, now: Nanos) -> Option<Nanos> {
        match &mut self.schedule {
            Some(schedule) => schedule.due(now),
            None => Some(now),
        }
    }

    /// Returns the number of submitted operations that have not completed. After a failed run these are the operations
    /// that failed with it.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// The state of one run over several connections.
#[derive(Debug)]
pub struct Load {
    plan: LoadPlan,
    clock: MonotonicClock,
    latencies: LatencyRecorder,
    result: LoadResult,
    key: Vec<u8>,
    value: Vec<u8>,
    is_recording: bool,
    /// Under a schedule, operations scheduled from this time on are timed, regardless of when they complete.
    record_from: Nanos,
    /// Completed operations, warm-up included, and the copy that observers read.
    completed: u64,
    observed: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
}

impl Load {
    /// Prepares a run. All memory is allocated here and by the first step.
    ///
    /// # Panics
    /// Panics if the window is 0.
    pub fn new(plan: LoadPlan) -> Self {
        assert!(plan.window > 0, "a window of 0 sends nothing");
        Self {
            plan,
            clock: MonotonicClock::new(),
            latencies: LatencyRecorder::default(),
            result: LoadResult::default(),
            key: vec![0; plan.shape.key_len_bytes()],
            value: vec![0; plan.shape.value_len_bytes()],
            is_recording: false,
            record_from: Nanos(0),
            completed: 0,
            observed: Arc::new(AtomicU64::new(0)),
            end: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Returns the counter of completed operations, warm-up included, which is updated during the run.
    pub fn completed(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.observed)
    }

    /// Returns the flag that ends the run early when it is set.
    pub fn end(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.end)
    }

    /// Runs `connections` in the calling thread. `on_recording` is called when the recorded period begins and again
    /// when it ends (with `false`, then `true`), so that the caller can read CPU clocks.
    ///
    /// # Errors
    /// Returns an error if a connection is lost.
    pub fn run<T: Target>(
        mut self,
        connections: &mut [Connection<T>],
        ledger: &mut Ledger,
        mut on_recording: impl FnMut(bool),
    ) -> Result<LoadResult, LoadError> {
        let start = self.clock.now();
        self.record_from = start + self.plan.warm_up;
        for (number, connection) in (0..).zip(&mut *connections) {
            connection.open_window(self.plan.window);
            connection.schedule = self.plan.share.map(|share| share.schedule(number, start));
        }
        let ended = self.run_stretches(connections, ledger, &mut on_recording);
        self.publish();
        self.result.latency = self.latencies.summary();
        self.result.latencies = self.latencies.into();
        match ended {
            Ok(()) => Ok(self.result),
            Err(error) => Err(LoadError { error, so_far: Box::new(self.result) }),
        }
    }

    fn run_stretches<T: Target>(
        &mut self,
        connections: &mut [Connection<T>],
        ledger: &mut Ledger,
        on_recording: &mut impl FnMut(bool),
    ) -> Result<(), TargetError> {
        self.turn_until(self.record_from, connections, ledger)?;
        on_recording(false);
        self.is_recording = true;
        let start = self.clock.now();
        let planned = if self.plan.share.is_some() { self.record_from } else { start } + self.plan.duration;
        let mut end = self.turn_until(planned, connections, ledger)?;
        // However short the period is, at least one operation must complete in it. Only a schedule may have none.
        while self.result.ops == 0 && self.plan.share.is_none() && !self.end.load(Ordering::Relaxed) {
            end = self.turn_until(end + Duration::from_millis(1), connections, ledger)?;
        }
        self.is_recording = false;
        on_recording(true);
        self.result.elapsed_ns = end.0.saturating_sub(start.0);
        self.drain(connections, ledger)?;
        self.record_unsent(connections, end.min(planned));
        Ok(())
    }

    /// Records scheduled operations that could not begin before `end`: they have waited at least until now.
    fn record_unsent<T>(&mut self, connections: &mut [Connection<T>], end: Nanos) {
        let now = self.clock.now();
        for schedule in connections.iter_mut().filter_map(|connection| connection.schedule.as_mut()) {
            while let Some(intended) = schedule.due(end) {
                if (self.record_from..end).contains(&intended) {
                    self.latencies.record_ns(now.0.saturating_sub(intended.0));
                    self.result.unsent += 1;
                }
            }
        }
    }

    /// Runs the loop until `deadline`, or until the end flag is set. Returns the time at which it stopped.
    fn turn_until<T: Target>(
        &mut self,
        deadline: Nanos,
        connections: &mut [Connection<T>],
        ledger: &mut Ledger,
    ) -> Result<Nanos, TargetError> {
        let mut now = self.clock.now();
        while now < deadline && !self.end.load(Ordering::Relaxed) {
            // All connections send before the first one is polled, which may block.
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

    /// Waits for the outstanding operations; submits only the writes of read-modify-writes.
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

    /// Publishes the progress for observers in other threads.
    #[inline]
    fn publish(&self) {
        self.observed.store(self.completed, Ordering::Relaxed);
    }

    fn submit_all<T: Target>(
        &mut self,
        connection: &mut Connection<T>,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<(), TargetError> {
        self.submit_second_halves(connection, ledger)?;
        while let Some(&slot) = connection.free.last()
            && let Some(started) = connection.next_start(now)
        {
            connection.free.pop();
            let op = connection.script[connection.next];
            connection.next += 1;
            if connection.next == connection.script.len() {
                connection.next = 0;
            }
            let is_write = matches!(op.kind, OpKind::Update | OpKind::Insert);
            connection.slots[slot as usize] = Slot { op, started, version: 0, is_write };
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
        // Read at the first outcome of a poll: all its outcomes became known at the same time.
        let mut now = None;
        target.poll(|slot_number, outcome| {
            let Some(slot) = slots.get(slot_number as usize) else { return };
            self.check(slot, outcome, ledger);
            let was_read = !slot.is_write && slot.op.kind == OpKind::ReadModifyWrite;
            if was_read && matches!(outcome, Outcome::Value(_)) {
                to_write.push(slot_number);
                return;
            }
            free.push(slot_number);
            self.completed += 1;
            self.result.ops += u64::from(self.is_recording);
            let is_timed = match self.plan.share {
                Some(_) => slot.started >= self.record_from,
                None => self.is_recording,
            };
            if is_timed {
                let now = *now.get_or_insert_with(|| self.clock.now());
                self.latencies.record_ns(now.0.saturating_sub(slot.started.0));
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
                // An inserted record must exist only if its write was acknowledged before this read began.
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
mod tests;
