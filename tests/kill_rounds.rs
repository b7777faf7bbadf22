//! Rounds of random kills and stops of memory nodes, a witness, workers, supervisors and mounts, while a program
//! writes files of a volume and syncs them. After each round what was synced is there, or the outcome is one that the
//! table of docs/semantics/memory-nodes.md allows for what has exited. Needs root, /dev/fuse and Linux 6.9.
//!
//! `FARCALL_TEST_SEED` repeats a run as far as the scheduling of processes does, `FARCALL_KILL_ROUNDS` is the number of
//! rounds with each set of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use farcall::Nic;
use farcall::memory::wire::{NodeStatus, Reply, Request, StoredVolume, VERSION};
use farcall::memory::{VolumeConfig, call_node};
use farcall_softnic::SoftNic;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::process::{Pid, Signal, kill_process};

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

#[path = "support/mounted.rs"]
mod mounted;
use mounted::{LOST, Process, Starting, can_mount, worker_of};
#[path = "support/mounted_volumes.rs"]
mod mounted_volumes;
use mounted_volumes::VolumeMount;
#[path = "support/recorded_files.rs"]
mod recorded_files;
use recorded_files::{RecordedFiles, SharedFiles, Writer, write_files};
#[path = "../memory/space/tests/support/table.rs"]
mod table;
use table::{Exits, Row, Then};

/// Nodes of a volume, and its replicas.
#[derive(Clone, Copy, Debug)]
struct Shape {
    nodes: usize,
    has_witness: bool,
    replicas: usize,
}

const LEASE: &str = "2000";
/// Time after which a request is taken to wait for nodes, where it may.
const PATIENCE: Duration = Duration::from_secs(8);
/// Longer than the interval of a client's reports to nodes.
const REPORTED: Duration = Duration::from_millis(500);

/// A memory node or a witness.
struct Voter {
    address: String,
    is_witness: bool,
    /// `None` if it has exited.
    process: Option<Process>,
    is_stopped: bool,
}

impl Voter {
    fn new(is_witness: bool) -> Self {
        let mut voter =
            Self { address: "127.0.0.1:0".to_owned(), is_witness, process: None, is_stopped: false };
        voter.start();
        voter
    }

    /// Starts it, empty.
    fn start(&mut self) {
        let kind: &[&str] = if self.is_witness { &["--witness"] } else { &["--size", "64M", "--slab", "1M"] };
        let serve = ["memory", "serve", "--lease-ms", LEASE, "--listen", &self.address];
        let arguments = [&serve, kind].concat();
        let begun = Instant::now();
        let process = loop {
            match Process::try_start(&arguments) {
                Ok(process) => break process,
                // Another process may use the port for a short time.
                Err(said) => assert!(begun.elapsed() < LOST && said.contains("in use"), "{said}"),
            }
            sleep(Duration::from_millis(50));
        };
        self.address = process.ready["rpc"].as_str().unwrap().to_owned();
        self.process = Some(process);
    }

    fn kill(&mut self) {
        self.process = None;
        self.is_stopped = false;
    }

    fn stop(&mut self, is_stopped: bool) {
        if let Some(process) = &self.process {
            process.signal(if is_stopped { Signal::STOP } else { Signal::CONT });
            self.is_stopped = is_stopped;
        }
    }

    fn ask(&self, request: &Request) -> Option<Reply> {
        call_node(&nic(), &self.address, request).ok()
    }
}

/// A mount that has not claimed its volume yet.
struct Claiming {
    dir: PathBuf,
    pid: Pid,
    /// `None` after the outcome was received.
    outcome: Option<Receiver<Result<Process, String>>>,
}

impl Claiming {
    /// Returns the mount if it serves, or its messages if it has exited; `None` after a timeout.
    fn wait(&mut self, timeout: Duration) -> Option<Result<VolumeMount, String>> {
        let outcome = self.outcome.as_ref()?.recv_timeout(timeout).ok()?;
        self.outcome = None;
        Some(outcome.map(|mount| VolumeMount { dir: self.dir.clone(), mount }))
    }

    /// Waits until the mount serves. Returns its messages instead if it exits.
    fn end(mut self) -> Result<VolumeMount, String> {
        self.wait(LOST).expect("in time: the mount serves or is refused")
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        if self.outcome.is_some() {
            let worker = worker_of(self.pid);
            for pid in [Some(self.pid), worker].into_iter().flatten() {
                let _ = kill_process(pid, Signal::KILL);
            }
            // It may have served in the meantime.
            drop(self.wait(LOST));
        }
    }
}

enum Mount {
    None,
    Claiming(Claiming),
    Serves(VolumeMount),
}

/// Which processes may exit or be stopped in a round.
struct Plan {
    voters: Vec<usize>,
    may_kill_voters: bool,
    may_kill_worker: bool,
    may_kill_mount: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    KillWorker,
    KillSupervisor,
    KillMount,
    StopMount,
    ContinueMount,
    Claim,
    Kill(usize),
    Start(usize),
    Stop(usize),
    Continue(usize),
}

/// Processes that have exited or were stopped in a round.
#[derive(Default)]
struct Happened {
    killed: BTreeSet<usize>,
    stopped: BTreeSet<usize>,
    worker: bool,
    mount: bool,
}

/// Result of a check of all files.
enum Check {
    Right,
    Failed(io::Error),
    NotInTime,
}

struct Run {
    shape: Shape,
    rows: Vec<Row>,
    root: PathBuf,
    voters: Vec<Voter>,
    /// Number of volumes so far.
    volumes: u32,
    /// Number of mounts so far.
    mounts: u32,
    mount: Mount,
    is_mount_stopped: bool,
    files: SharedFiles,
    writer: Option<Writer>,
    /// Workers whose supervisor was killed. They end when no program uses their files.
    orphans: Vec<Pid>,
    happened: Happened,
    /// Number of rounds by the worst outcome that was allowed.
    bounds: BTreeMap<Then, u32>,
    rng: Pcg64Mcg,
    begun: Instant,
}

impl Run {
    fn new(shape: Shape, seed: u64) -> Self {
        let root = std::env::temp_dir().join(format!("farcall-kills-{}-{seed}", std::process::id()));
        fs::create_dir(&root).unwrap();
        let witness = shape.has_witness.then(|| Voter::new(true));
        let voters = (0..shape.nodes).map(|_| Voter::new(false)).chain(witness).collect();
        let is_of_shape = |row: &Row| {
            (row.nodes, row.has_witness, row.replicas) == (shape.nodes, shape.has_witness, shape.replicas)
        };
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let files = Arc::new(Mutex::new(RecordedFiles::empty()));
        let mut run = Self {
            shape,
            rows: table::rows().into_iter().filter(is_of_shape).collect(),
            root,
            voters,
            volumes: 0,
            mounts: 0,
            mount: Mount::None,
            is_mount_stopped: false,
            files,
            writer: None,
            orphans: Vec::new(),
            happened: Happened::default(),
            bounds: BTreeMap::new(),
            rng: Pcg64Mcg::seed_from_u64(rng.next_u64()),
            begun: Instant::now(),
        };
        run.new_volume();
        run
    }

    fn note(&self, what: &str) {
        println!("  {:7.3} s {what}", self.begun.elapsed().as_secs_f64());
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    /// Starts again with nodes that have nothing.
    fn new_volume(&mut self) {
        for voter in &mut self.voters {
            voter.kill();
            voter.start();
        }
        self.volumes += 1;
        assert_eq!(self.claim(&[]).map_err(|said| panic!("a new volume is refused: {said}")), Ok(()));
        let dir = self.serving().unwrap().dir.clone();
        let files = RecordedFiles::create(&dir, &mut self.rng);
        self.files = Arc::new(Mutex::new(files));
    }

    fn serving(&self) -> Option<&VolumeMount> {
        match &self.mount {
            Mount::Serves(mount) => Some(mount),
            _ => None,
        }
    }

    /// Starts a mount of the volume.
    fn begin_claim(&mut self, more: &[&str]) -> Claiming {
        self.mounts += 1;
        let dir = self.root.join(format!("mount{}", self.mounts));
        fs::create_dir(&dir).unwrap();
        let addresses: Vec<&str> = self.voters.iter().map(|voter| &*voter.address).collect();
        let (nodes, replicas) = (addresses.join(","), self.shape.replicas.to_string());
        let (name, key) = (format!("files {}", self.volumes), self.root.join("key"));
        let (at, key) = (dir.to_str().unwrap(), key.to_str().unwrap());
        let options = ["--nodes", &nodes, "--replicas", &replicas, "--size", "48M", "--slab", "1M"];
        let volume = ["--volume", &name, "--volume-key", key, "--log", "info"];
        let starting = Starting::new(&[&["mount", at], &options[..], &volume, more].concat());
        let (pid, (sender, outcome)) = (starting.pid(), channel());
        // The receiver waits for it unless the test fails.
        std::thread::spawn(move || sender.send(starting.ready()).map_err(drop));
        Claiming { dir, pid, outcome: Some(outcome) }
    }

    /// Mounts the volume when the leases of earlier mounts have ended. Returns the messages of the mount if it is
    /// refused for another reason.
    fn claim(&mut self, more: &[&str]) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            match self.begin_claim(more).end() {
                Ok(mount) => {
                    self.note(&format!("{} serves", mount.dir.display()));
                    self.mount = Mount::Serves(mount);
                    return Ok(());
                }
                Err(said) if said.contains("is mounted by") || said.contains("meanwhile") => {
                    assert!(begun.elapsed() < LOST, "{said}");
                }
                Err(said) => return Err(said),
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// Kills supervisor and worker, as if the machine lost power.
    fn kill_mount(&mut self) {
        self.is_mount_stopped = false;
        let had_mount = match std::mem::replace(&mut self.mount, Mount::None) {
            Mount::None => false,
            Mount::Claiming(_) => true,
            Mount::Serves(mut mount) => {
                mount.kill();
                true
            }
        };
        self.happened.mount |= had_mount;
        if let Some(writer) = self.writer.take() {
            // Its last operation may have failed.
            let _ = writer.end();
        }
    }

    /// Kills the supervisor. The worker takes the file system off, and ends when no program uses it.
    fn kill_supervisor(&mut self) {
        let Mount::Serves(mut mount) = std::mem::replace(&mut self.mount, Mount::None) else { return };
        self.happened.mount = true;
        let worker = mount.mount.worker();
        let _ = mount.mount.child.kill();
        let _ = mount.mount.child.wait();
        if std::mem::take(&mut self.is_mount_stopped)
            && let Some(worker) = worker
        {
            let _ = kill_process(worker, Signal::CONT);
        }
        sleep(Duration::from_millis(self.rng.random_range(0..300)));
        self.orphans.extend(worker);
        if self.chance(50) {
            self.kill_orphans();
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.end();
        }
    }

    fn kill_orphans(&mut self) {
        for worker in self.orphans.drain(..) {
            let _ = kill_process(worker, Signal::KILL);
        }
    }

    fn plan(&mut self) -> Plan {
        let count = self.voters.len();
        let (may_kill_worker, may_kill_mount) = (self.chance(80), self.chance(60));
        let kind = self.rng.random_range(0..100);
        if kind < 70 {
            let voters = vec![self.rng.random_range(0..count)];
            return Plan { voters, may_kill_voters: true, may_kill_worker, may_kill_mount };
        }
        let mut voters: Vec<usize> = (0..count).collect();
        let may_kill_voters = kind >= 85;
        if may_kill_voters || self.chance(50) {
            // Two of them.
            while voters.len() > 2 {
                let at = self.rng.random_range(0..voters.len());
                voters.swap_remove(at);
            }
        }
        Plan { voters, may_kill_voters, may_kill_worker, may_kill_mount }
    }

    /// Returns the events that may be next.
    fn events(&self, plan: &Plan) -> Vec<Event> {
        let mut events = Vec::new();
        match &self.mount {
            Mount::None => events.extend([Event::Claim; 4]),
            Mount::Claiming(_) if plan.may_kill_mount => events.push(Event::KillMount),
            Mount::Claiming(_) => {}
            Mount::Serves(_) => {
                if plan.may_kill_worker {
                    let stop = if self.is_mount_stopped { Event::ContinueMount } else { Event::StopMount };
                    events.extend([Event::KillWorker, Event::KillWorker, stop]);
                }
                if plan.may_kill_mount {
                    events.extend([Event::KillSupervisor, Event::KillMount]);
                }
            }
        }
        for at in plan.voters.iter().copied() {
            let voter = &self.voters[at];
            match (&voter.process, voter.is_stopped) {
                (None, _) => events.extend([Event::Start(at); 2]),
                (Some(_), true) => events.push(Event::Continue(at)),
                (Some(_), false) => events.push(Event::Stop(at)),
            }
            if plan.may_kill_voters && voter.process.is_some() {
                events.extend([Event::Kill(at); 2]);
            }
        }
        events
    }

    fn execute(&mut self, event: Event) {
        self.note(&format!("{event:?}"));
        match event {
            Event::KillWorker => {
                let worker = self.serving().and_then(|mount| mount.mount.worker());
                self.happened.worker = true;
                if let Some(worker) = worker {
                    let _ = kill_process(worker, Signal::KILL);
                }
            }
            Event::KillSupervisor => self.kill_supervisor(),
            Event::KillMount => self.kill_mount(),
            Event::StopMount | Event::ContinueMount => self.stop_mount(matches!(event, Event::StopMount)),
            Event::Claim => {
                let claiming = self.begin_claim(&[]);
                self.mount = Mount::Claiming(claiming);
            }
            Event::Kill(at) => {
                self.happened.killed.insert(at);
                self.voters[at].kill();
            }
            Event::Start(at) => self.voters[at].start(),
            Event::Stop(at) => {
                self.happened.stopped.insert(at);
                self.voters[at].stop(true);
            }
            Event::Continue(at) => self.voters[at].stop(false),
        }
    }

    fn stop_mount(&mut self, is_stopped: bool) {
        // The next process takes over from one that was stopped beyond its lease.
        self.happened.worker = true;
        self.is_mount_stopped = is_stopped;
        let signal = if is_stopped { Signal::STOP } else { Signal::CONT };
        let Some(mount) = self.serving() else { return };
        let worker = mount.mount.worker();
        for pid in [Some(Pid::from_child(&mount.mount.child)), worker].into_iter().flatten() {
            let _ = kill_process(pid, signal);
        }
    }

    fn pause(&mut self) {
        let bound = match self.rng.random_range(0..20) {
            0..10 => 50,
            10..17 => 500,
            _ => 4_000,
        };
        sleep(Duration::from_millis(self.rng.random_range(0..bound)));
    }

    /// Adopts a mount that has claimed the volume in the meantime.
    fn poll_claim(&mut self) {
        if let Mount::Claiming(claiming) = &mut self.mount
            && let Some(outcome) = claiming.wait(Duration::ZERO)
        {
            self.finish_claim(outcome);
        }
    }

    fn finish_claim(&mut self, outcome: Result<VolumeMount, String>) {
        self.mount = match outcome {
            Ok(mount) => {
                self.note(&format!("{} serves", mount.dir.display()));
                Mount::Serves(mount)
            }
            Err(said) => {
                self.note(&format!("a mount ends: {}", said.trim_end()));
                Mount::None
            }
        };
        if self.serving().is_none() {
            return;
        }
        let bound = self.bound();
        let limit = if bound == Then::Available { LOST } else { PATIENCE };
        match self.check(limit) {
            Check::Right => self.write(),
            Check::Failed(error) if bound == Then::Lost => self.note(&format!("{error}")),
            Check::Failed(error) => panic!("{bound:?}: {error}"),
            Check::NotInTime if bound > Then::Available => {
                self.note("it does not serve in time");
                self.kill_mount();
            }
            Check::NotInTime => panic!("not in time: a program reads all files"),
        }
    }

    fn write(&mut self) {
        let seed = self.rng.next_u64();
        if let Some(mount) = self.serving() {
            self.writer =
                Some(Writer::start(&mount.dir, &self.files, seed, "writes_the_files_of_other_tests"));
        }
    }

    /// Reads and checks all files. If their program has written to this mount, its result must be there in full.
    fn check(&mut self, limit: Duration) -> Check {
        let Some(mount) = self.serving() else { panic!("there is no mount") };
        let (dir, files, writer) = (mount.dir.clone(), Arc::clone(&self.files), self.writer.take());
        let (sender, receiver) = channel();
        let thread = std::thread::spawn(move || {
            let is_now = writer.is_some();
            let checked = writer.map_or(Ok(()), Writer::end).and_then(|()| {
                let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
                if is_now { files.check_now(&dir) } else { files.check_synced(&dir) }
            });
            // The receiver may not wait any longer.
            let _ = sender.send(());
            checked
        });
        match receiver.recv_timeout(limit) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                    Ok(()) => Check::Right,
                    Err(error) => Check::Failed(error),
                }
            }
            Err(RecvTimeoutError::Timeout) => Check::NotInTime,
        }
    }

    /// Returns the worst outcome that the table allows for what has happened in this round.
    fn bound(&self) -> Then {
        let Happened { killed, stopped, worker, mount } = &self.happened;
        let away: BTreeSet<usize> = killed.union(stopped).copied().collect();
        let nodes = away.iter().filter(|at| !self.voters[**at].is_witness).count();
        let exits = Exits {
            nodes: nodes.min(2),
            witness: nodes < away.len(),
            is_out_of_reach: killed.is_empty(),
            worker: *worker,
            mount: *mount,
        };
        // Rows do not list clients that make no difference.
        let without_clients = Exits { worker: false, mount: false, ..exits };
        let bound =
            |exits: &Exits| self.rows.iter().filter(|row| row.exits.include(exits)).map(|row| row.then).min();
        bound(&exits).or_else(|| bound(&without_clients)).unwrap_or(match killed.is_empty() {
            true => Then::Waits,
            false => Then::Lost,
        })
    }

    fn start_all(&mut self) {
        for voter in &mut self.voters {
            voter.stop(false);
            if voter.process.is_none() {
                voter.start();
            }
        }
    }

    /// Claims the volume and checks all files. Returns the message of the mount if it is refused.
    fn claim_and_check(&mut self, bound: Then, more: &[&str]) -> Result<Then, String> {
        self.claim(more)?;
        match self.check(LOST) {
            Check::Right => Ok(Then::Available),
            Check::Failed(error) => {
                assert_eq!(bound, Then::Lost, "{error}");
                panic!("an incomplete volume is mounted as if it were complete: {error}");
            }
            Check::NotInTime => panic!("not in time: a program reads all files"),
        }
    }

    /// Determines the state of the volume after a round, which must be `bound` or better.
    fn outcome(&mut self, bound: Then) -> Then {
        if self.is_mount_stopped {
            self.stop_mount(false);
        }
        if bound >= Then::Waits || self.chance(50) {
            self.start_all();
        }
        if let Mount::Claiming(_) = self.mount
            && let Mount::Claiming(claiming) = std::mem::replace(&mut self.mount, Mount::None)
        {
            let outcome = claiming.end();
            self.finish_claim(outcome);
        }
        if self.serving().is_some() {
            let limit = if bound <= Then::Waits { LOST } else { PATIENCE };
            match self.check(limit) {
                Check::Right => return Then::Available.max(bound.min(Then::Waits)),
                Check::Failed(error) => assert_eq!(bound, Then::Lost, "{error}"),
                Check::NotInTime => assert!(bound > Then::Waits, "not in time: a program reads all files"),
            }
            self.kill_mount();
        }
        let said = match self.claim_and_check(bound, &[]) {
            Ok(_) => return Then::Available.max(bound.min(Then::Waits)),
            Err(said) => said,
        };
        self.note(said.trim_end());
        let is_incomplete = said.contains("is incomplete");
        assert!(bound >= if is_incomplete { Then::Lost } else { Then::Refused }, "{bound:?}: {said}");
        assert!(is_incomplete || said.contains("answer"), "refused for another reason: {said}");
        let survivor = (0..self.shape.nodes).find(|at| !self.happened.killed.contains(at));
        let survivor = survivor.map(|at| self.voters[at].address.clone());
        let named: Vec<&str> = survivor.iter().flat_map(|survivor| ["--survivor", survivor]).collect();
        if !is_incomplete && !named.is_empty() {
            match self.claim_and_check(bound, &named) {
                Ok(_) => return Then::Refused,
                Err(said) => {
                    self.note(said.trim_end());
                    assert!(bound == Then::Lost && said.contains("is incomplete"), "{bound:?}: {said}");
                }
            }
        }
        assert_eq!(bound, Then::Lost);
        match self.claim(&[&["--read-only"], &*named].concat()) {
            Ok(()) => {
                let dir = self.serving().unwrap().dir.clone();
                let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                let left = files.check_left(&dir).unwrap();
                drop(files);
                // None may be missing: the volume does not know which pages no file uses any more.
                self.note(&format!("{left:?}"));
            }
            Err(said) => assert!(said.contains("no node that answers has a part of it"), "{said}"),
        }
        Then::Lost
    }

    /// Waits until each voter is a member of the volume and all replicas are in sync.
    fn until_whole(&self) {
        let begun = Instant::now();
        while !(self.is_whole() && self.is_whole_for(REPORTED)) {
            assert!(begun.elapsed() < LOST, "not in time: all is in sync; {:?}", self.statuses());
            sleep(Duration::from_millis(50));
        }
    }

    fn is_whole_for(&self, time: Duration) -> bool {
        sleep(time);
        self.is_whole()
    }

    fn statuses(&self) -> Vec<(Option<StoredVolume>, Option<NodeStatus>)> {
        let key = fs::read(self.root.join("key")).unwrap().try_into().unwrap();
        let volume = VolumeConfig::new(format!("files {}", self.volumes), key, [0; 16], 0).to_ref();
        let query = Request::QueryVolume { version: VERSION, volume };
        let status = |voter: &Voter| {
            let stored = match voter.ask(&query) {
                Some(Reply::VolumeState { volume: stored }) => stored,
                _ => None,
            };
            let status = match voter.ask(&Request::Status) {
                Some(Reply::Status(status)) => Some(status),
                _ => None,
            };
            (stored, status)
        };
        self.voters.iter().map(status).collect()
    }

    fn is_whole(&self) -> bool {
        let statuses = self.statuses();
        let is_member = |stored: &StoredVolume| {
            stored.view.as_ref().is_some_and(|view| {
                let all = [&view.nodes, &view.members];
                all.iter().all(|ids| ids.len() == self.voters.len() && ids.contains(&stored.node))
            })
        };
        let is_in_sync = |status: &NodeStatus| {
            let reports = status.holders.iter().zip(&status.reports);
            let redundancy =
                reports.filter(|(holder, _)| holder.is_connected).filter_map(|(_, it)| it.redundancy);
            let mut redundancy = redundancy.peekable();
            redundancy.peek().is_some()
                && redundancy.all(|it| it.slabs > 0 && (it.degraded, it.copying, it.lost) == (0, 0, 0))
        };
        let view = |at: usize| statuses[at].0.as_ref().and_then(|stored| stored.view.as_ref());
        statuses.iter().all(|(stored, status)| {
            stored.as_ref().is_some_and(is_member) && status.as_ref().is_some_and(is_in_sync)
        }) && (0..statuses.len()).all(|at| view(at) == view(0))
    }

    /// Returns the outcome of a round.
    fn round(&mut self) -> Then {
        self.until_whole();
        self.happened = Happened::default();
        self.write();
        self.pause();
        let plan = self.plan();
        for _ in 0..self.rng.random_range(1..=8) {
            let events = self.events(&plan);
            let Some(event) = events.choose(&mut self.rng).copied() else { break };
            self.execute(event);
            self.pause();
            self.poll_claim();
        }
        let bound = self.bound();
        self.note(&format!("the events are over; {bound:?} is allowed"));
        *self.bounds.entry(bound).or_insert(0) += 1;
        let outcome = self.outcome(bound);
        assert!(outcome <= bound, "{outcome:?}, not {bound:?}");
        self.kill_orphans();
        if outcome == Then::Lost {
            self.kill_mount();
            self.new_volume();
        }
        self.start_all();
        outcome
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.kill_mount();
        self.kill_orphans();
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().unwrap())
}

/// Runs rounds with a volume on these nodes. `number_of_test` makes the seeds of tests differ.
fn run_rounds(shape: Shape, number_of_test: u64) {
    if !can_mount() {
        return;
    }
    let seed = number("FARCALL_TEST_SEED").unwrap_or(1);
    let rounds = number("FARCALL_KILL_ROUNDS").unwrap_or(30);
    println!("FARCALL_TEST_SEED={seed} FARCALL_KILL_ROUNDS={rounds}");
    let mut run = Run::new(shape, 10 * seed + number_of_test);
    let mut outcomes = BTreeMap::new();
    for round in 0..rounds {
        println!("{shape:?}: round {round}");
        *outcomes.entry(run.round()).or_insert(0) += 1;
        println!("{shape:?}: {outcomes:?} of what was allowed at worst: {:?}", run.bounds);
    }
    run.until_whole();
    let files = run.files.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{shape:?}: {} syncs, {} bytes checked", files.syncs, files.bytes_checked);
}

#[test]
#[ignore = "takes minutes"]
fn keeps_a_volume_of_two_nodes_in_rounds_of_kills() {
    run_rounds(Shape { nodes: 2, has_witness: false, replicas: 2 }, 0);
}

#[test]
#[ignore = "takes minutes"]
fn keeps_a_volume_with_a_witness_in_rounds_of_kills() {
    run_rounds(Shape { nodes: 2, has_witness: true, replicas: 2 }, 1);
}

#[test]
#[ignore = "takes minutes"]
fn keeps_a_volume_of_three_nodes_in_rounds_of_kills() {
    run_rounds(Shape { nodes: 3, has_witness: false, replicas: 2 }, 2);
}

#[test]
#[ignore = "takes minutes"]
fn keeps_three_replicas_in_rounds_of_kills() {
    run_rounds(Shape { nodes: 3, has_witness: false, replicas: 3 }, 3);
}

/// The program that writes files, in a process that other tests start.
#[test]
#[ignore = "is a program of other tests"]
fn writes_the_files_of_other_tests() {
    write_files();
}
