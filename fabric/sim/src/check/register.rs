//! Sequential specification of a register: one key of a store.

use super::Sequential;

/// One key, each of whose writes has a unique value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Register;

/// Operations of a register. A result is `None` if it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterOp {
    /// A read with its result.
    Read {
        /// The value, if there was one.
        found: Option<u64>,
    },
    /// A write.
    Write {
        /// The value.
        value: u64,
    },
    /// A removal.
    Delete {
        /// Whether there was a value.
        found: Option<bool>,
    },
    /// A write that succeeds only if the value is the expected one.
    CompareAndSwap {
        /// The expected value.
        expected: u64,
        /// The new value.
        value: u64,
        /// Whether it was stored.
        stored: Option<bool>,
    },
    /// The value may be lost at any time during this operation: an eviction, or a restart of the store.
    MayForget,
    /// An operation that is known to have had no effect.
    Nothing,
}

impl Sequential for Register {
    type State = Option<u64>;
    type Op = RegisterOp;

    fn initial(&self) -> Option<u64> {
        None
    }

    fn apply(&self, state: &Option<u64>, op: &RegisterOp) -> Option<Option<u64>> {
        match *op {
            RegisterOp::Read { found } => (found == *state).then_some(*state),
            RegisterOp::Write { value } => Some(Some(value)),
            RegisterOp::Delete { found } => {
                found.is_none_or(|found| found == state.is_some()).then_some(None)
            }
            RegisterOp::CompareAndSwap { expected, value, stored } => {
                let is_equal = *state == Some(expected);
                let next = if is_equal { Some(value) } else { *state };
                stored.is_none_or(|stored| stored == is_equal).then_some(next)
            }
            RegisterOp::MayForget => Some(None),
            RegisterOp::Nothing => Some(*state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Operation, linearizable};
    use super::*;
    use RegisterOp::{CompareAndSwap, Delete, Read, Write};

    fn check(history: &[(u64, Option<u64>, RegisterOp)]) -> bool {
        let history: Vec<_> = history
            .iter()
            .map(|(called_ns, returned_ns, op)| Operation {
                called_ns: *called_ns,
                returned_ns: *returned_ns,
                op: *op,
            })
            .collect();
        linearizable(&Register, &history).is_ok()
    }

    const fn read(found: Option<u64>) -> RegisterOp {
        Read { found }
    }

    #[test]
    fn accepts_overlapping_operations_in_any_order() {
        let write = (0, Some(10), Write { value: 1 });
        assert!(check(&[write, (1, Some(9), read(None)), (2, Some(8), read(Some(1)))]), "overlapping reads");
        assert!(check(&[write, (1, Some(2), read(None)), (3, Some(4), read(Some(1)))]));
        assert!(!check(&[write, (1, Some(2), read(Some(1))), (3, Some(4), read(None))]), "back in time");
        assert!(!check(&[write, (11, Some(12), read(None))]), "a write that returned is seen");
    }

    #[test]
    fn accepts_unreturned_operations_as_executed_or_not() {
        let lost = (0, None, Write { value: 1 });
        assert!(check(&[lost]));
        assert!(check(&[lost, (5, Some(6), read(None)), (7, Some(8), read(Some(1)))]));
        assert!(!check(&[lost, (5, Some(6), read(Some(1))), (7, Some(8), read(None))]));
        assert!(check(&[lost, (5, Some(6), Delete { found: None }), (7, Some(8), read(Some(1)))]));
    }

    #[test]
    fn results_bind() {
        let write = (0, Some(1), Write { value: 1 });
        let swap = |stored| CompareAndSwap { expected: 1, value: 2, stored };
        assert!(check(&[write, (2, Some(3), swap(Some(true))), (4, Some(5), read(Some(2)))]));
        assert!(!check(&[write, (2, Some(3), swap(Some(false)))]));
        assert!(!check(&[write, (2, Some(9), swap(Some(true))), (2, Some(9), swap(Some(true)))]), "twice");
        assert!(!check(&[write, (2, Some(3), Delete { found: Some(false) })]));
        assert!(check(&[
            write,
            (2, Some(9), Delete { found: Some(true) }),
            (2, Some(9), Delete { found: Some(false) })
        ]));
    }

    #[test]
    fn long_histories_of_many_clients_are_decided() {
        // Ten clients, each of which writes and then reads the last value, all overlapping with their neighbours.
        let mut history = Vec::new();
        for i in 0..200 {
            history.push((10 * i, Some(10 * i + 25), Write { value: i }));
            history.push((10 * i + 26, Some(10 * i + 27), read(Some(i + 1))));
        }
        // The last read would return a value that no client wrote.
        history.truncate(399);
        assert!(check(&history));
        history.push((5_000, Some(5_001), read(Some(3))));
        assert!(!check(&history));
    }
}
