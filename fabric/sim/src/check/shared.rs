//! Checker of shared receive queues: each receive is consumed at most once, none is lost, and each limit raises one
//! event.

use std::collections::BTreeSet;

use super::Violation;

/// The receives of one shared receive queue.
#[derive(Debug, Default)]
pub struct SharedReceives {
    posted: BTreeSet<u64>,
    /// The armed limit; 0 means none.
    limit: u32,
}

impl SharedReceives {
    /// Records a posted receive, whose number must be new.
    pub fn posted(&mut self, wr_id: u64) {
        assert!(self.posted.insert(wr_id), "receive {wr_id:#x} is posted twice");
    }

    /// Records a completed receive, at any queue pair and with any status.
    ///
    /// # Errors
    /// Returns an error if the receive was not posted, or has completed before.
    pub fn completed(&mut self, wr_id: u64) -> Result<(), Violation> {
        if self.posted.remove(&wr_id) {
            return Ok(());
        }
        Err(Violation::new(format!("shared receive {wr_id:#x} completed: not posted, or completed before")))
    }

    /// Returns the number of receives that have not completed.
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }

    /// Records an armed limit (0: disarmed).
    pub fn armed(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Records the limit event.
    ///
    /// # Errors
    /// Returns an error if no limit was armed, or its event was raised before.
    pub fn limit_event(&mut self) -> Result<(), Violation> {
        match std::mem::take(&mut self.limit) {
            0 => Err(Violation::new("a limit event came that is not armed, or came before".into())),
            _ => Ok(()),
        }
    }

    /// Checks the queue's attributes at a time when no queue pair has a consumed receive without a completion, and all
    /// events have been polled.
    ///
    /// # Errors
    /// Returns an error if the event of a reached limit is missing, or if `srq_limit` differs from the armed limit.
    pub fn at_rest(&self, srq_limit: u32) -> Result<(), Violation> {
        if self.posted.len() < self.limit as usize {
            let what =
                format!("{} receives are left, and no limit event of {} came", self.posted.len(), self.limit);
            return Err(Violation::new(what));
        }
        if srq_limit != self.limit {
            return Err(Violation::new(format!("the limit is {srq_limit}, armed was {}", self.limit)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> SharedReceives {
        let mut queue = SharedReceives::default();
        (1..=3).for_each(|wr_id| queue.posted(wr_id));
        queue
    }

    #[test]
    fn a_receive_completes_once() {
        let mut queue = three();
        assert_eq!(queue.completed(2), Ok(()));
        assert!(queue.completed(2).is_err(), "twice");
        assert!(queue.completed(4).is_err(), "not posted");
        assert_eq!(queue.outstanding(), 2);
    }

    #[test]
    fn accepts_one_limit_event_per_arming() {
        let mut queue = three();
        assert!(queue.limit_event().is_err(), "not armed");
        queue.armed(3);
        assert_eq!(queue.at_rest(3), Ok(()), "three are not fewer than three");
        assert!(queue.at_rest(0).is_err(), "disarmed without a word");
        queue.completed(1).unwrap();
        assert!(queue.at_rest(3).is_err(), "due");
        assert_eq!(queue.limit_event(), Ok(()));
        assert_eq!(queue.at_rest(0), Ok(()));
        assert!(queue.limit_event().is_err(), "twice");
    }
}
