//! Linearizability of a history (Herlihy and Wing), by the search of Wing and Gong with the cache of Lowe: a state that
//! was reached before with the same set of operations is not searched again.

use std::collections::BTreeSet;
use std::fmt;

/// Sequential specification of an object.
pub trait Sequential {
    /// The object's state.
    type State: Clone + Ord;
    /// An operation together with its result, if known.
    type Op: fmt::Debug;

    /// Returns the initial state.
    fn initial(&self) -> Self::State;

    /// Returns the state after an operation; `None` if its result is impossible in `state`.
    fn apply(&self, state: &Self::State, op: &Self::Op) -> Option<Self::State>;
}

/// An operation of a history.
#[derive(Clone, Debug)]
pub struct Operation<O> {
    /// Time of the call.
    pub called_ns: u64,
    /// Time of the result; `None` if there was none. Then the operation may have been executed at any time since its
    /// call, or not at all.
    pub returned_ns: Option<u64>,
    /// The operation and, if it returned, its result.
    pub op: O,
}

/// Error: no order explains a history.
#[derive(Clone, Debug)]
pub struct NotLinearizable {
    /// Maximum number of operations that can be explained together.
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

/// Set of the operations that have been ordered.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OrderedSet(Vec<u64>);

impl OrderedSet {
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

/// Checks whether some sequential execution explains this history.
///
/// # Errors
/// Returns the history if none does.
pub fn linearizable<S: Sequential>(
    object: &S,
    history: &[Operation<S::Op>],
) -> Result<(), Box<NotLinearizable>> {
    let mut order: Vec<&Operation<S::Op>> = history.iter().collect();
    order.sort_by_key(|operation| operation.called_ns);
    let mut seen = BTreeSet::new();
    let mut explained = 0;
    let mut open = vec![(OrderedSet(vec![0; order.len().div_ceil(64)]), object.initial())];
    while let Some((done, state)) = open.pop() {
        if !seen.insert((done.clone(), state.clone())) {
            continue;
        }
        explained = explained.max(done.count());
        let waiting = || order.iter().enumerate().filter(|(at, _)| !done.has(*at));
        // Operations called after this time were not executed before the operation that returned then.
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
