//! Random requests, with the expected result of each.

#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::{Arc, Mutex};

use farcall_io::*;
use farcall_link::{Nic, Region, SplitMix64};
use farcall_verbs::Access;

/// Context of a request: its number, and the bytes that it must read.
#[derive(Debug)]
pub struct RequestContext {
    pub id: usize,
    pub wanted: Vec<u8>,
    /// Slot of the attached memory that it uses.
    slot: Option<usize>,
}

/// Handler that collects completed requests.
#[derive(Clone, Default)]
pub struct CompletionLog(Arc<Mutex<Vec<TransferCompletion<RequestContext>>>>);

impl Handler for CompletionLog {
    type Context = RequestContext;

    fn on_completion(&self, completion: TransferCompletion<RequestContext>) {
        self.0.lock().unwrap().push(completion);
    }
}

impl CompletionLog {
    pub fn take(&self) -> Vec<TransferCompletion<RequestContext>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

pub const GRANTED: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// Small sizes, so that every case occurs often.
pub const SMALL: Config = Config {
    connections: 4,
    combining: Combining::MergeAndChain,
    chain: 8,
    look_ahead: 32,
    work_max_bytes: 12_000,
    pool_bytes: 32 << 10,
    register_from_bytes: 3_000,
    outstanding: 64,
    send_depth: 16,
};

/// Length in bytes of the remote memory that random requests access.
pub const SPAN: usize = 40_000;
const LONGEST: u64 = 5_000;
const SLOTS: usize = 16;

/// Both sides of a session in one process.
pub struct Ends {
    pub session: Session<CompletionLog>,
    pub poller: Poller<CompletionLog>,
    pub target: Target,
    pub memory: Arc<Region>,
    pub completions: CompletionLog,
}

pub fn granted(nic: &Nic) -> Arc<Region> {
    Arc::new(Region::alloc(&**nic.pd(), SPAN, GRANTED).unwrap())
}

pub fn ends(nic: &Nic, config: Config, admission: impl Admission + 'static) -> Ends {
    let memory = granted(nic);
    let mut target = Target::new(nic, memory.clone(), config.connections).unwrap();
    let mut poller = Poller::new(nic, PollerConfig::default()).unwrap();
    let completions = CompletionLog::default();
    let session = poller.open(config, admission, completions.clone()).unwrap();
    target.connect(&session.infos()).unwrap();
    session.connect(&target.infos(), &[target.grant()]).unwrap();
    Ends { session, poller, target, memory, completions }
}

pub fn window(bytes: u64) -> Window {
    Window { bytes }
}

pub fn context_of(id: usize, wanted: Vec<u8>) -> RequestContext {
    RequestContext { id, wanted, slot: None }
}

/// Creates random requests, and executes them one after another on a model of the remote memory.
pub struct Load {
    rng: SplitMix64,
    model: Vec<u8>,
    /// Offset of the model in the remote memory.
    first: usize,
    last_end: usize,
    next: usize,
    attached: Attached,
    slots: Vec<usize>,
}

impl Load {
    /// Creates a load of requests in the range from `first` to `first + len_bytes`.
    pub fn new(
        seed: u64,
        nic: &Nic,
        session: &Session<CompletionLog>,
        first: usize,
        len_bytes: usize,
    ) -> Self {
        let region = Region::alloc(&**nic.pd(), SLOTS * LONGEST as usize, Access::LOCAL_WRITE).unwrap();
        Self {
            rng: SplitMix64::new(seed),
            model: vec![0; len_bytes],
            first,
            last_end: 0,
            next: 0,
            attached: session.attach(Arc::new(region)),
            slots: (0..SLOTS).collect(),
        }
    }

    /// Returns the number of requests created.
    pub fn count(&self) -> usize {
        self.next
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    /// Creates the next request.
    pub fn request(&mut self) -> Request<RequestContext> {
        let all = self.model.len();
        // Half of them begin at the end of the previous one; some are concentrated on a few bytes.
        let at = match self.rng.below(4) {
            0 | 1 => self.last_end,
            2 => self.rng.below(2_000) as usize,
            _ => self.rng.below(all as u64) as usize,
        } % all;
        let longest = if self.chance(70) { 600 } else { LONGEST };
        let end = (at + 1 + self.rng.below(longest) as usize).min(all);
        self.last_end = end;
        let range = at..end;
        let direction = if self.chance(50) { Direction::Read } else { Direction::Write };
        let slot = if self.chance(30) { self.slots.pop() } else { None };
        let (id, seed) = (self.next, self.rng.next_u64());
        self.next += 1;
        let written: Vec<u8> =
            range.clone().map(|at| (SplitMix64::mix(seed ^ at as u64) >> 56) as u8).collect();
        let wanted = match direction {
            Direction::Read => self.model[range.clone()].to_vec(),
            Direction::Write => {
                self.model[range.clone()].copy_from_slice(&written);
                Vec::new()
            }
        };
        let buffer = match slot {
            Some(slot) => {
                let offset = slot * LONGEST as usize;
                self.attached.region().copy_in(offset, &written);
                self.attached.slice(offset, range.len()).into()
            }
            None => written.into(),
        };
        let offset = (self.first + at) as u64;
        Request { direction, grant: 0, offset, buffer, context: RequestContext { id, wanted, slot } }
    }

    /// Checks the result of a request that has completed.
    pub fn check(&mut self, completion: TransferCompletion<RequestContext>) -> Result<(), TransferFailure> {
        let RequestContext { id, wanted, slot } = completion.context;
        let len_bytes = completion.buffer.len_bytes();
        assert!(len_bytes > 0, "request {id} came back without its memory");
        self.slots.extend(slot);
        completion.result?;
        if !wanted.is_empty() {
            let found = match slot {
                None => completion.buffer.into_owned().unwrap(),
                Some(slot) => {
                    let mut found = vec![0; len_bytes];
                    self.attached.region().copy_out(slot * LONGEST as usize, &mut found);
                    found
                }
            };
            let wrong = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
            assert!(wrong.is_none(), "request {id} read something else at {wrong:?} of {len_bytes}");
        }
        Ok(())
    }

    /// Checks the peer's memory after all requests have completed.
    pub fn check_memory(&self, memory: &Region) {
        let mut found = vec![0; self.model.len()];
        memory.copy_out(self.first, &mut found);
        let wrong = found.iter().zip(&self.model).position(|(found, wanted)| found != wanted);
        assert!(wrong.is_none(), "the memory holds something else at {wrong:?}");
    }
}
