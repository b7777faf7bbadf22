//! Linearizability of a history (Herlihy and Wing), by the search of Wing and Gong with the memory of Lowe: states seen
//! before with the same operations behind them are not searched again.

use std::collections::BTreeSet;
use std::fmt;

/// What an object would do if operations came one after the other.
pub trait Sequential {
    /// The object's state.
    type State: Clone + Ord;
    /// An operation together with its result, if that is known.
    type Op: fmt::Debug;

    /// The state at first.
    fn initial(&self) -> Self::State;

    /// The state after an operation; `None` if its result is impossible in this state.
    fn apply(&self, state: &Self::State, op: &Self::Op) -> Option<Self::State>;
}

/// An operation of a history.
#[derive(Clone, Debug)]
pub struct Operation<O> {
    /// When it was called.
    pub called_ns: u64,
    /// When its result came; `None` if it never did: then it may have been executed at any time since, or not at all.
    pub returned_ns: Option<u64>,
    /// What it was and, if it returned, what it returned.
    pub op: O,
}

/// There is no order that explains a history.
#[derive(Clone, Debug)]
pub struct NotLinearizable {
    /// As many operations as could be explained together.
    pub explained: usize,
    /// The history, in the order of calls.
    pub history: Vec<String>,
}

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no order of these operations explains their results ({} could be):", self.explained)?;
        self.history.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl std::error::Error for NotLinearizable {}

/// Which operations are behind us.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Done(Vec<u64>);

impl Done {
    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn with(&self, at: usize) -> Self {
        let mut done = self.clone();
        done.0[at / 64] |= 1 << (at % 64);
        done
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// Whether one object at a time could have answered this history.
///
/// # Errors
/// The history, if not.
pub fn linearizable<S: Sequential>(
    object: &S,
    history: &[Operation<S::Op>],
) -> Result<(), Box<NotLinearizable>> {
    let mut order: Vec<&Operation<S::Op>> = history.iter().collect();
    order.sort_by_key(|operation| operation.called_ns);
    let mut seen = BTreeSet::new();
    let mut explained = 0;
    let mut open = vec![(Done(vec![0; order.len().div_ceil(64)]), object.initial())];
    while let Some((done, state)) = open.pop() {
        if !seen.insert((done.clone(), state.clone())) {
            continue;
        }
        explained = explained.max(done.count());
        let waiting = || order.iter().enumerate().filter(|(at, _)| !done.has(*at));
        // Nothing called after this was before what returned then.
        let Some(horizon_ns) = waiting().filter_map(|(_, operation)| operation.returned_ns).min() else {
            return Ok(());
        };
        for (at, operation) in waiting().take_while(|(_, operation)| operation.called_ns <= horizon_ns) {
            if let Some(next) = object.apply(&state, &operation.op) {
                open.push((done.with(at), next));
            }
        }
    }
    let line = |operation: &&Operation<S::Op>| {
        let returned = operation.returned_ns.map_or("never".into(), |ns| ns.to_string());
        format!("{}..{returned} {:?}", operation.called_ns, operation.op)
    };
    Err(Box::new(NotLinearizable { explained, history: order.iter().map(line).collect() }))
}
