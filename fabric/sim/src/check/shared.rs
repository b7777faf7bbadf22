//! Shared receive queues: each receive consumed at most once, all accounted for, and limits told once.

use std::collections::BTreeSet;

use super::Violation;

/// The account of one shared receive queue.
#[derive(Debug, Default)]
pub struct SharedReceives {
    posted: BTreeSet<u64>,
    /// The limit that is armed; 0: none.
    limit: u32,
}

impl SharedReceives {
    /// A receive was posted; its number is new.
    pub fn posted(&mut self, wr_id: u64) {
        assert!(self.posted.insert(wr_id), "receive {wr_id:#x} is posted twice");
    }

    /// A receive completed, at whatever queue pair, in whatever way.
    ///
    /// # Errors
    /// If it was not posted, or completed before.
    pub fn completed(&mut self, wr_id: u64) -> Result<(), Violation> {
        if self.posted.remove(&wr_id) {
            return Ok(());
        }
        Err(Violation::new(format!("shared receive {wr_id:#x} completed: not posted, or completed before")))
    }

    /// Receives that have not completed.
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }

    /// A limit was armed (0: taken back).
    pub fn armed(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// The event came.
    ///
    /// # Errors
    /// If no limit was armed, or it was told before.
    pub fn told(&mut self) -> Result<(), Violation> {
        match std::mem::take(&mut self.limit) {
            0 => Err(Violation::new("a limit was told that is not armed, or was told before".into())),
            _ => Ok(()),
        }
    }

    /// No queue pair has taken a receive that it has not completed, and all events were polled: what the queue says of
    /// itself must be so.
    ///
    /// # Errors
    /// If a limit is due that was not told, or `srq_limit` is not what is armed.
    pub fn at_rest(&self, srq_limit: u32) -> Result<(), Violation> {
        if self.posted.len() < self.limit as usize {
            let what =
                format!("{} receives are left, and the limit {} was not told", self.posted.len(), self.limit);
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
    fn a_limit_is_told_once_for_each_arming() {
        let mut queue = three();
        assert!(queue.told().is_err(), "not armed");
        queue.armed(3);
        assert_eq!(queue.at_rest(3), Ok(()), "three are not fewer than three");
        assert!(queue.at_rest(0).is_err(), "disarmed without a word");
        queue.completed(1).unwrap();
        assert!(queue.at_rest(3).is_err(), "due");
        assert_eq!(queue.told(), Ok(()));
        assert_eq!(queue.at_rest(0), Ok(()));
        assert!(queue.told().is_err(), "twice");
    }
}
