//! The table of docs/semantics/memory-nodes.md: the state of a volume after nodes, a witness, workers and mounts have
//! exited. Each row is a test.

mod support;

use std::sync::{Arc, Mutex};

use farcall_memory::wire::MembershipView;
use farcall_memory::*;
use farcall_verbs::Nanos;
use support::table::{Row, Then, row, rows};
use support::volumes::*;

/// Number of engine iterations after which a request is taken to wait for nodes.
const PATIENT_TURNS: u32 = 5_000;

/// The supervisor's record, which outlives a worker.
#[derive(Default)]
struct History(Mutex<RecordedViews>);

/// The committed view, and those proposed since.
type RecordedViews = (Option<MembershipView>, Vec<MembershipView>);

impl ViewHistory for History {
    fn views(&self) -> RecordedViews {
        self.0.lock().unwrap().clone()
    }

    fn propose(&self, _: Option<&MembershipView>, view: &MembershipView) -> std::io::Result<()> {
        self.0.lock().unwrap().1.push(view.clone());
        Ok(())
    }

    fn commit(&self, view: &MembershipView) {
        *self.0.lock().unwrap() = (Some(view.clone()), Vec::new());
    }
}

struct Run {
    row: Row,
    nodes: Nodes,
    /// Nodes that have exited, with their state if they are only unreachable.
    exited: Vec<(usize, Option<Node>)>,
    history: Arc<History>,
    bytes: Vec<u8>,
}

impl Run {
    fn config(&self) -> ClientConfig {
        ClientConfig { replicas: self.row.replicas, ..config(self.nodes.nodes.len()) }
    }

    /// Creates a volume with all replicas in sync.
    fn new(row: &Row, first: usize) -> (Self, Engine) {
        let count = row.nodes + usize::from(row.has_witness);
        let nodes = Nodes::with_witness(count, row.has_witness.then_some(row.nodes), 1 + 100 * first as u64);
        let (exited, history) = (Vec::new(), Arc::new(History::default()));
        let mut run = Self { row: row.clone(), nodes, exited, history, bytes: Vec::new() };
        let volume = volume(1).with_history(Arc::clone(&run.history) as _);
        let (mut engine, _) = run.nodes.claim(run.config(), &volume).unwrap();
        run.bytes = fill(&mut run.nodes, &mut engine, 1);
        run.nodes.write_metadata(&mut engine, 0, b"told").unwrap();
        run.nodes.until(&mut engine, "all is in sync", |engine| {
            let status = engine.status();
            status.degraded == 0 && status.nodes.iter().all(|node| node.link == LinkStatus::Up)
        });
        (run, engine)
    }

    /// Makes the nodes of the row exit, starting with `first`.
    fn exits(&mut self, first: usize) {
        let data_nodes = self.row.nodes;
        let mut exits: Vec<usize> = (0..self.row.exits.nodes).map(|at| (first + at) % data_nodes).collect();
        exits.extend(self.row.exits.witness.then_some(data_nodes));
        for at in exits {
            let node = self.nodes.nodes[at].take();
            self.exited.push((at, node.filter(|_| self.row.exits.is_out_of_reach)));
        }
    }

    fn are_back(&mut self) {
        for (at, node) in std::mem::take(&mut self.exited) {
            match node {
                Some(node) => self.nodes.nodes[at] = Some(node),
                None => self.nodes.start(at),
            }
        }
        self.nodes.tick();
    }

    /// Claims the volume for the successor: another worker of the same supervisor, or another mount.
    fn claim(&mut self, how: impl FnOnce(VolumeConfig) -> VolumeConfig) -> Result<Engine, OpenError> {
        let volume = match self.row.exits.mount {
            true => volume(2),
            false => volume(1).with_history(Arc::clone(&self.history) as _),
        };
        self.nodes.wait_for_leases();
        let (engine, takeover) = self.nodes.claim(self.config(), &how(volume))?;
        assert!(takeover.metadata.iter().all(|metadata| metadata.starts_with(b"told")), "{:?}", self.row);
        Ok(engine)
    }

    /// Returns the result of a request; `None` if it does not complete within `turns` iterations.
    fn ended(&mut self, engine: &mut Engine, turns: u32) -> Option<Result<Vec<u8>, IoError>> {
        for _ in 0..turns {
            self.nodes.drive_once(engine);
            if let Some(ended) = engine.next_completed() {
                return Some(ended.result);
            }
        }
        None
    }

    fn use_it(&mut self, engine: &mut Engine) -> Then {
        let request = Request { token: 1, offset: 0, work: Work::Read { len_bytes: SIZE_BYTES } };
        engine.submit(request, self.nodes.now).unwrap();
        match self.ended(engine, PATIENT_TURNS) {
            Some(Ok(found)) => {
                assert!(found == self.bytes, "{:?}: other bytes", self.row);
                self.nodes.write_metadata(engine, 4, b" more").unwrap();
                self.nodes.write(engine, 0, &found[..PAGE_BYTES]).unwrap();
                Then::Available
            }
            Some(Err(IoError::Lost { .. })) => Then::Lost,
            Some(Err(error)) => panic!("{:?}: {error}", self.row),
            None => {
                self.are_back();
                match self.ended(engine, STEPS_MAX).expect("an outcome in time") {
                    Ok(found) => {
                        assert!(found == self.bytes, "{:?}: other bytes", self.row);
                        Then::Waits
                    }
                    Err(IoError::Lost { .. }) => Then::Lost,
                    Err(error) => panic!("{:?}: {error}", self.row),
                }
            }
        }
    }

    /// Returns the state of the volume when a new client is needed.
    fn claimed(&mut self) -> Then {
        match self.claim(|volume| volume) {
            Ok(mut engine) => return self.use_it(&mut engine),
            Err(OpenError::Incomplete { .. }) => return Then::Lost,
            Err(OpenError::Volume { .. }) => {}
            Err(error) => panic!("{:?}: {error}", self.row),
        }
        let survivor = self.nodes.nodes.iter().take(self.row.nodes).position(Option::is_some);
        self.are_back();
        match self.claim(|volume| volume) {
            Ok(mut engine) => {
                assert_eq!(self.use_it(&mut engine), Then::Available, "{:?}", self.row);
                assert!(self.row.exits.is_out_of_reach, "{:?}: empty nodes are believed", self.row);
                return Then::Waits;
            }
            Err(OpenError::Incomplete { .. }) => return Then::Lost,
            Err(OpenError::Volume { .. }) => {}
            Err(error) => panic!("{:?}: {error}", self.row),
        }
        let Some(survivor) = survivor else { return Then::Lost };
        match self.claim(|volume| volume.survivor(survivor.to_string())) {
            Ok(mut engine) => {
                assert_eq!(self.use_it(&mut engine), Then::Available, "{:?}", self.row);
                Then::Refused
            }
            Err(OpenError::Incomplete { .. }) => Then::Lost,
            Err(error) => panic!("{:?}: {error}", self.row),
        }
    }
}

/// Gives a mount that still runs the time to continue without what has exited.
fn settle(run: &mut Run, engine: &mut Engine) {
    for _ in 0..15 {
        run.nodes.now = Nanos(run.nodes.now.0 + TERM.as_nanos() as u64 / 10);
        (0..50).for_each(|_| run.nodes.drive_once(engine));
    }
}

#[test]
fn keeps_each_row_of_the_table_of_what_exits() {
    let rows = rows();
    assert!(rows.len() >= 20, "{} rows", rows.len());
    for row in &rows {
        // The result does not depend on the node.
        for first in 0..row.nodes {
            println!("{} first {first}", row.text);
            let (mut run, mut engine) = Run::new(row, first);
            run.exits(first);
            let mount_lives = !row.exits.worker && !row.exits.mount;
            if mount_lives {
                settle(&mut run, &mut engine);
            }
            let then = if mount_lives && !engine.is_fenced() {
                run.use_it(&mut engine)
            } else {
                drop(engine);
                run.claimed()
            };
            assert_eq!(then, row.then, "{}, first {first}", row.text);
        }
    }
    for then in [Then::Available, Then::Waits, Then::Refused, Then::Lost] {
        assert!(rows.iter().any(|row| row.then == then), "{then:?}");
    }
}

#[test]
fn vouches_for_the_last_committed_view_only() {
    let alone = row("| 2 | no | 2 | a node and the worker | available |");
    let changes: [fn(&mut RecordedViews); 3] = [
        // The other node may have a later view.
        |(committed, proposed)| {
            let view = committed.clone().unwrap();
            proposed.push(MembershipView { change: view.change + 1, ..view });
        },
        // The node has an older view.
        |(committed, _)| committed.as_mut().unwrap().change += 1,
        |(committed, _)| *committed = None,
    ];
    for (change, number) in changes.into_iter().zip(0..) {
        let (mut run, engine) = Run::new(&alone, 0);
        run.exits(0);
        drop(engine);
        change(&mut run.history.0.lock().unwrap());
        let refused = run.claim(|volume| volume).err().unwrap().to_string();
        assert!(refused.contains("1 of its 2 nodes answer"), "{number}: {refused}");
    }
    // One of three nodes does not suffice: the history stands in for a majority only with half of the nodes.
    let (mut run, engine) = Run::new(&row("| 3 | no | 3 | two nodes and the worker | refused |"), 0);
    run.exits(0);
    drop(engine);
    let refused = run.claim(|volume| volume).err().unwrap().to_string();
    assert!(refused.contains("1 of its 3 nodes answer"), "{refused}");
    // Nodes that have lost the volume do not create a new one.
    let (mut run, engine) = Run::new(&alone, 0);
    drop(engine);
    (0..2).for_each(|at| run.nodes.start(at));
    let refused = run.claim(|volume| volume).err().unwrap().to_string();
    assert!(refused.contains("has a part of it"), "{refused}");
}
