//! Checker of completions: exactly one per request, in order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use farcall_verbs::{Wc, WcStatus};

/// One of a queue pair's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Sends.
    Send,
    /// Receives.
    Receive,
}

/// A violation found by a checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl Violation {
    pub(super) const fn new(what: String) -> Self {
        Self(what)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// A request without a completion.
#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
    is_signalled: bool,
}

#[derive(Default)]
struct QueueAccount {
    posted: VecDeque<Posted>,
    /// A request of this queue failed: all later ones must be flushed.
    has_failed: bool,
}

/// The requests of queue pairs, by a number that the caller assigns and never reuses.
#[derive(Default)]
pub struct Ledger {
    accounts: BTreeMap<(u64, Queue), QueueAccount>,
}

impl Ledger {
    /// Records a posted request. Receives count as signalled.
    pub fn posted(&mut self, pair: u64, queue: Queue, wr_id: u64, is_signalled: bool) {
        let account = self.accounts.entry((pair, queue)).or_default();
        account.posted.push_back(Posted { wr_id, is_signalled });
    }

    /// Checks a polled completion.
    ///
    /// # Errors
    /// Returns an error if the completion belongs to no request, is a duplicate, precedes that of an older request, or
    /// reports success after a failure.
    pub fn polled(&mut self, pair: u64, queue: Queue, wc: &Wc) -> Result<(), Violation> {
        let says = format!("pair {pair}, {queue:?}: completion {:#x} ({:?})", wc.wr_id, wc.status);
        let account = self.accounts.entry((pair, queue)).or_default();
        if account.has_failed && wc.status != WcStatus::WR_FLUSH_ERR {
            return Err(Violation(format!("{says} after a failure")));
        }
        while let Some(head) = account.posted.pop_front() {
            if head.wr_id == wc.wr_id {
                account.has_failed |= !wc.status.is_success();
                if wc.status.is_success() && !head.is_signalled {
                    return Err(Violation(format!("{says}, which was not signalled")));
                }
                return Ok(());
            }
            // Only requests that are unsignalled and successful have no completion.
            if head.is_signalled || account.has_failed {
                return Err(Violation(format!("{says} before that of {:#x}", head.wr_id)));
            }
        }
        Err(Violation(format!("{says}: not posted, or completed before")))
    }

    /// Checks a drained queue pair, which is in the error state and whose completion queue is empty.
    ///
    /// # Errors
    /// Returns an error if a completion is missing.
    pub fn drained(&mut self, pair: u64) -> Result<(), Violation> {
        for queue in [Queue::Send, Queue::Receive] {
            let account = self.accounts.remove(&(pair, queue)).unwrap_or_default();
            let lost = account.posted.iter().find(|posted| posted.is_signalled || account.has_failed);
            if let Some(lost) = lost {
                let count = account.posted.len();
                return Err(Violation(format!(
                    "pair {pair}, {queue:?}: request {:#x} was lost ({count} without completion)",
                    lost.wr_id
                )));
            }
        }
        Ok(())
    }

    /// Discards a queue pair that was destroyed or reset: its completions will not arrive.
    pub fn forgotten(&mut self, pair: u64) {
        self.accounts.remove(&(pair, Queue::Send));
        self.accounts.remove(&(pair, Queue::Receive));
    }

    /// Returns the number of requests of a queue without completion.
    pub fn outstanding(&self, pair: u64, queue: Queue) -> usize {
        self.accounts.get(&(pair, queue)).map_or(0, |account| account.posted.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::WcOpcode;

    fn wc(wr_id: u64, status: WcStatus) -> Wc {
        Wc::ended(wr_id, 1, WcOpcode::SEND, status)
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for (wr_id, is_signalled) in [(1, true), (2, false), (3, true), (4, false), (5, true)] {
            ledger.posted(9, Queue::Send, wr_id, is_signalled);
        }
        ledger
    }

    const OK: WcStatus = WcStatus::SUCCESS;
    const FAILED: WcStatus = WcStatus::REM_ACCESS_ERR;
    const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

    fn polls(list: &[(u64, WcStatus)]) -> Result<(), Violation> {
        let mut ledger = ledger();
        list.iter().try_for_each(|(wr_id, status)| ledger.polled(9, Queue::Send, &wc(*wr_id, *status)))?;
        ledger.drained(9)
    }

    #[test]
    fn good_accounts_balance() {
        assert_eq!(polls(&[(1, OK), (3, OK), (5, OK)]), Ok(()));
        assert_eq!(polls(&[(1, OK), (2, FAILED), (3, FLUSHED), (4, FLUSHED), (5, FLUSHED)]), Ok(()));
        assert!(polls(&[(1, OK), (4, FAILED), (5, FLUSHED)]).is_err(), "3 was signalled");
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        assert!(polls(&[(1, OK), (3, OK)]).is_err(), "lost");
        assert!(polls(&[(1, OK), (1, OK)]).is_err(), "twice");
        assert!(polls(&[(3, OK), (1, OK)]).is_err(), "out of order");
        assert!(polls(&[(1, OK), (2, OK)]).is_err(), "not signalled");
        assert!(polls(&[(1, FAILED), (3, FLUSHED)]).is_err(), "2 must be flushed too");
        assert!(polls(&[(1, FAILED), (2, OK)]).is_err(), "success after failure");
        assert!(polls(&[(7, OK)]).is_err(), "never posted");
    }
}
