//! Fault decisions: a function of the seed, of the object, and of the number of its earlier decisions.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farcall_stats::Block;
use farcall_verbs::Error;

use crate::spec::{Chance, Spec, SpecError, VARIABLE};

farcall_stats::counters! {
    /// Faults that happened, for `farcall stats`.
    struct Counters {
        /// Requests that found the receiver not ready at least once.
        receiver_not_ready,
        /// Messages lost over UC and UD, and requests retransmitted over RC.
        dropped,
        /// Connections broken.
        qps_killed,
        /// Queue pairs broken.
        qps_fatal,
        /// Requests refused.
        posts_refused,
        /// Registrations of memory refused.
        regions_refused,
        /// Queue pairs refused.
        qps_refused,
        /// Completion queues refused.
        cqs_refused,
    }
}

/// Kind of a decision. Each has random numbers of its own, so that enabling one does not change another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rnr,
    Drop,
    KillQp,
    QpFatal,
    QpFatalReceive,
    PostFull,
    RegMr,
    CreateQp,
    CreateCq,
    DelaySend,
    DelayReceive,
}

impl Kind {
    /// Returns its key in the specification.
    const fn key(self) -> &'static str {
        match self {
            Self::Rnr => "rnr",
            Self::Drop => "drop",
            Self::KillQp => "kill_qp",
            Self::QpFatal | Self::QpFatalReceive => "qp_fatal",
            Self::PostFull => "post_full",
            Self::RegMr => "reg_mr",
            Self::CreateQp => "create_qp",
            Self::CreateCq => "create_cq",
            Self::DelaySend | Self::DelayReceive => "delay",
        }
    }
}

/// A fault that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its key in the specification.
    pub key: &'static str,
    /// The queue pair's number, and its index in the process's order of creation, from 0. `None`: the fault concerns no
    /// queue pair.
    pub pair: Option<(u32, u64)>,
    /// Index of the request of the queue pair, or of the call of the process, from 0.
    pub number: u64,
}

/// Callback for every fault when it happens.
pub type Observer = fn(&Fault);

/// Fault injection state of a process.
pub(crate) struct Plan {
    pub(crate) spec: Spec,
    seed: u64,
    qp_states: AtomicU64,
    calls: [AtomicU64; 3],
    counters: Mutex<Block<Counters>>,
    observer: Option<Observer>,
}

/// Spreads a number over all bits (the finalizer of SplitMix64).
const fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Plan {
    /// Returns 64 random bits: those of decision `n` of a kind for an object.
    pub(crate) fn bits(&self, kind: Kind, object: u64, n: u64) -> u64 {
        mix(mix(mix(self.seed ^ mix(kind as u64)).wrapping_add(object)).wrapping_add(n))
    }

    /// Returns the index of a new queue pair.
    pub(crate) fn next_qp_index(&self) -> u64 {
        self.qp_states.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a fault and reports it to the observer.
    pub(crate) fn record_fault(&self, kind: Kind, pair: Option<(u32, u64)>, number: u64) {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = match kind {
            Kind::Rnr => &counters.receiver_not_ready,
            Kind::Drop => &counters.dropped,
            Kind::KillQp => &counters.qps_killed,
            Kind::QpFatal | Kind::QpFatalReceive => &counters.qps_fatal,
            Kind::PostFull => &counters.posts_refused,
            Kind::RegMr => &counters.regions_refused,
            Kind::CreateQp => &counters.qps_refused,
            Kind::CreateCq => &counters.cqs_refused,
            Kind::DelaySend | Kind::DelayReceive => return,
        };
        counter.increment();
        drop(counters);
        if let Some(observer) = self.observer {
            observer(&Fault { key: kind.key(), pair, number });
        }
    }

    /// Decides whether a call of the process is refused.
    ///
    /// # Errors
    /// Returns [`Error::Exhausted`], which becomes `ENOMEM`, if it is refused.
    pub(crate) fn admit(&self, kind: Kind, operation: &'static str) -> Result<(), Error> {
        let (chance, calls) = match kind {
            Kind::RegMr => (self.spec.reg_mr, &self.calls[0]),
            Kind::CreateQp => (self.spec.create_qp, &self.calls[1]),
            Kind::CreateCq => (self.spec.create_cq, &self.calls[2]),
            _ => (Chance::NEVER, &self.calls[0]),
        };
        let number = calls.fetch_add(1, Ordering::Relaxed);
        if !chance.hits(self.bits(kind, 0, number)) {
            return Ok(());
        }
        self.record_fault(kind, None, number);
        Err(refused(operation, "memory"))
    }
}

/// Returns the error of an injected refusal because a resource is exhausted.
pub(crate) fn refused(operation: &'static str, what: &'static str) -> Error {
    Error::Exhausted { operation, what, limit: 0, remedy: "this failure was asked for by FARCALL_FAULTS" }
}

/// Fault injection for everything that a process does through the wrapped devices.
#[derive(Clone)]
pub struct Faults(Arc<Plan>);

impl Faults {
    /// Injects the faults of `spec` and reports each to `observer`. Chooses a seed if there is none.
    pub fn new(spec: Spec, observer: Option<Observer>) -> Self {
        // Short enough to be typed.
        let seed = spec.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()) >> 40);
        let counters = Mutex::new(Block::new(&format!("faults, seed {seed}"), 0));
        let (qp_states, calls) = Default::default();
        Self(Arc::new(Plan { spec, seed, qp_states, calls, counters, observer }))
    }

    /// Injects the faults that [`VARIABLE`] specifies; returns `None` if it specifies none. A chosen seed is printed on
    /// standard error.
    ///
    /// # Errors
    /// Returns an error if the variable cannot be parsed.
    pub fn from_env(observer: Option<Observer>) -> Result<Option<Self>, SpecError> {
        let text = farcall_shm::trusted_variable(VARIABLE).unwrap_or_default();
        let spec: Spec = text.to_string_lossy().parse()?;
        if spec == Spec::default() {
            return Ok(None);
        }
        let had_seed = spec.seed.is_some();
        let faults = Self::new(spec, observer);
        if !had_seed {
            eprintln!("farcall: faults: {VARIABLE}={} repeats this run", faults.text());
        }
        Ok(Some(faults))
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Returns the specification text of the same faults, including the seed.
    pub fn text(&self) -> String {
        Spec { seed: Some(self.0.seed), ..self.0.spec.clone() }.to_string()
    }

    pub(crate) fn plan(&self) -> &Arc<Plan> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Arc<Plan> {
        Faults::new(text.parse().unwrap(), None).0
    }

    #[test]
    fn decisions_follow_from_seed_object_and_number_alone() {
        let (one, same, other) = (plan("seed=7"), plan("seed=7,rnr=0.5"), plan("seed=8"));
        let row = |plan: &Plan, kind, object| [0, 1, 2].map(|n| plan.bits(kind, object, n));
        assert_eq!(row(&one, Kind::Rnr, 3), row(&same, Kind::Rnr, 3));
        for different in [row(&other, Kind::Rnr, 3), row(&one, Kind::Drop, 3), row(&one, Kind::Rnr, 4)] {
            assert_ne!(row(&one, Kind::Rnr, 3), different);
        }
    }

    #[test]
    fn chances_come_true_as_often_as_they_say() {
        let plan = plan("seed=1");
        let chance = Chance::new(0.25).unwrap();
        let hits = (0..10_000).filter(|n| chance.hits(plan.bits(Kind::Rnr, 0, *n))).count();
        assert!((2_300..2_700).contains(&hits), "{hits}");
    }

    #[test]
    fn a_chosen_seed_repeats_the_run() {
        let chosen = Faults::new("rnr=0.5".parse().unwrap(), None);
        let again = Faults::new(chosen.text().parse().unwrap(), None);
        assert_eq!((chosen.seed(), chosen.text()), (again.seed(), again.text()));
    }
}
