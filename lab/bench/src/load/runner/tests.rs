use super::*;
use crate::measure::Share;
use crate::workload::{OpStream, StreamConfig, Workload};
use std::collections::{HashMap, VecDeque};

/// Injected fault of a [`MapTarget`].
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

/// A store in memory that completes requests out of order.
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
        // The newest half completes first.
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

fn plan(window: u32) -> LoadPlan {
    LoadPlan {
        window,
        warm_up: Duration::from_millis(1),
        duration: Duration::from_millis(30),
        shape: RecordShape::default(),
        loaded: RECORDS,
        share: None,
    }
}

fn run(workload: Workload, window: u32, fault: Fault) -> (Result<LoadResult, LoadError>, usize) {
    let plan = plan(window);
    let stream = OpStream::new(StreamConfig {
        workload,
        distribution: workload.distribution(),
        records: RECORDS,
        seed: 3,
        stream: 0,
        streams: 1,
    });
    let script = { stream }.script(4096);
    let mut connections = [Connection::new(MapTarget::loaded(plan.shape, RECORDS, fault), script)];
    let mut marks = Vec::new();
    let result = Load::new(plan).run(&mut connections, &mut Ledger::new(RECORDS), |end| marks.push(end));
    assert!(result.is_err() || marks == [false, true]);
    (result, connections[0].target().outstanding_max)
}

#[test]
fn every_workload_verifies_on_a_correct_store_at_both_windows() {
    for workload in Workload::UNORDERED {
        for window in [1, 16] {
            let (result, outstanding_max) = run(workload, window, Fault::None);
            let result = result.unwrap();
            assert_eq!(result.problems(), [""; 0], "{workload} at window {window}");
            assert_eq!(outstanding_max, window as usize);
            assert_eq!(result.latency.count, result.ops);
            assert!(result.verified > 0 && result.ops_per_second() > 0.0);
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
fn however_short_a_run_is_an_operation_ends_in_it() {
    let plan = LoadPlan { duration: Duration::ZERO, ..plan(1) };
    let target = MapTarget::loaded(plan.shape, RECORDS, Fault::None);
    let mut connections = [Connection::new(target, vec![Op { kind: OpKind::Read, record: 0 }])];
    let result = Load::new(plan).run(&mut connections, &mut Ledger::new(RECORDS), |_| {}).unwrap();
    assert!(result.ops > 0 && result.latency.count > 0 && result.elapsed_ns > 0);
}

/// Without the end flag this run would take an hour.
#[test]
fn ends_a_run_on_request() {
    let plan = LoadPlan { duration: Duration::from_secs(3_600), ..plan(1) };
    let load = Load::new(plan);
    let (completed, end) = (load.completed(), load.end());
    let ending = std::thread::spawn(move || {
        while completed.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        end.store(true, Ordering::Relaxed);
    });
    let target = MapTarget::loaded(plan.shape, RECORDS, Fault::None);
    let mut connections = [Connection::new(target, vec![Op { kind: OpKind::Read, record: 0 }])];
    let result = load.run(&mut connections, &mut Ledger::new(RECORDS), |_| {}).unwrap();
    ending.join().unwrap();
    assert!(result.verified > 0 && connections[0].outstanding() == 0);
}

#[test]
fn a_lost_connection_ends_the_run() {
    let (result, _) = run(Workload::C, 4, Fault::Dies);
    assert!(matches!(result, Err(LoadError { error: TargetError::Lost(_), so_far }) if so_far.verified > 0));
}

/// A store that stalls once.
struct StallingTarget(MapTarget);

const STALLS_AT_REQUEST: u64 = 50;
const STALL: Duration = Duration::from_millis(60);

impl Target for StallingTarget {
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        self.0.submit(slot, request)
    }

    fn flush(&mut self) -> Result<(), TargetError> {
        self.0.flush()
    }

    fn poll(&mut self, done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        if self.0.requests == STALLS_AT_REQUEST && !self.0.waiting.is_empty() {
            std::thread::sleep(STALL);
        }
        self.0.poll(done)
    }
}

#[test]
fn charges_a_stall_to_all_scheduled_operations() {
    // One operation per millisecond over one connection, one at a time.
    let share = Some(Share { per_second: 1_000, before: 0, connections: 1 });
    let plan = LoadPlan { share, duration: Duration::from_millis(200), ..plan(1) };
    let target = StallingTarget(MapTarget::loaded(plan.shape, RECORDS, Fault::None));
    let mut connections = [Connection::new(target, vec![Op { kind: OpKind::Read, record: 0 }])];
    let result = Load::new(plan).run(&mut connections, &mut Ledger::new(RECORDS), |_| {}).unwrap();
    // Warm-up takes the first millisecond; each later millisecond has one operation, begun or not.
    assert_eq!(result.latency.count, 200);
    // Operations of the first half of the stall waited for the second half. A closed loop would have had a single
    // outstanding operation during the stall.
    let half = STALL.as_nanos() as u64 / 2;
    let long: u64 = result.latencies.iter().filter(|(ns, _)| *ns >= half).map(|(_, count)| count).sum();
    assert!(long >= 29, "{long}");
}
