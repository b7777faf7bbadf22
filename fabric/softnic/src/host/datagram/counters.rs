//! Counters and flight recorder of a datagram queue pair, for `farcall stats`.

farcall_stats::counters! {
    /// Counters of a datagram queue pair. The application thread writes those of sends, the service thread those that
    /// end in `_late`, the holder of the lock of the outstanding sends those that end in `_after_wait`, and the polling
    /// thread of the receive completion queue those of receives.
    pub(crate) struct Counters {
        /// Datagrams put on their way, and their payload bytes.
        sent,
        bytes_sent,
        /// Datagrams kept until the way to their destination was found.
        queued,
        /// Datagrams dropped: too many were kept for one destination.
        dropped_queue_full,
        /// Datagrams dropped: the destination does not receive.
        dropped_not_ready,
        /// Datagrams dropped: wrong Q_Key.
        dropped_wrong_qkey,
        /// Datagrams dropped: the destination had no receive.
        dropped_no_receive,
        /// Datagrams dropped: the ring to the destination was full.
        dropped_no_room,
        /// Datagrams that held the send queue up, and what became of them: put on their way, and dropped because the
        /// destination did nothing for too long.
        held,
        sent_after_wait,
        dropped_after_wait,
        /// Questions to destinations that held it up, for an owner who sleeps, and how often an answer let some go on.
        places_asked,
        places_told,
        /// Sends that failed or were flushed.
        send_errors,
        /// Ways asked for.
        ways_asked,
        /// Ways found, and given up because the destination refused or does not exist.
        ways_found_late,
        ways_lost_late,
        /// Of the datagrams kept: put on their way, and dropped.
        sent_late,
        dropped_late,
        /// Datagrams delivered into receives, and their payload bytes.
        received,
        bytes_received,
        /// Datagrams that came and were dropped: no receive, or one that was too short.
        receive_dropped_no_receive,
        receive_dropped_too_long,
        /// Receives flushed.
        receives_flushed,
        /// Its state, as `ibv_qp_state` numbers them.
        state,
    }
}

/// Result of offering a datagram to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    Sent,
    NotReady,
    WrongQkey,
    NoReceive,
    NoRoom,
}

impl Counters {
    /// Counts a datagram that the application thread offered to its destination.
    #[inline]
    pub(crate) fn offered(&self, outcome: SendOutcome, len_bytes: u64) {
        let counter = match outcome {
            SendOutcome::Sent => {
                self.bytes_sent.add(len_bytes);
                &self.sent
            }
            SendOutcome::NotReady => &self.dropped_not_ready,
            SendOutcome::WrongQkey => &self.dropped_wrong_qkey,
            SendOutcome::NoReceive => &self.dropped_no_receive,
            SendOutcome::NoRoom => &self.dropped_no_room,
        };
        counter.increment();
    }
}
