//! Counters and flight recorder of a datagram queue pair, for `farcall stats`.

farcall_stats::counters! {
    /// Counters of a datagram queue pair. The application thread writes those of sends, the service thread those that
    /// end in `_late`, the holder of the lock of the outstanding sends those that end in `_after_wait`, and the polling
    /// thread of the receive completion queue those of receives.
    pub(crate) struct Counters {
        /// Datagrams sent, and their payload bytes.
        sent,
        bytes_sent,
        /// Datagrams kept until the path to their destination was found.
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
        /// Datagrams that blocked the send queue; of these, datagrams sent, and datagrams dropped because the
        /// destination made no progress for too long.
        held,
        sent_after_wait,
        dropped_after_wait,
        /// Requests to destinations that blocked the send queue, made for an application thread that sleeps, and
        /// replies that unblocked datagrams.
        places_asked,
        places_told,
        /// Sends that failed or were flushed.
        send_errors,
        /// Paths requested from destinations.
        ways_asked,
        /// Paths found, and paths abandoned because the destination refused or does not exist.
        ways_found_late,
        ways_lost_late,
        /// Kept datagrams that were sent later, and that were dropped.
        sent_late,
        dropped_late,
        /// Datagrams delivered into receives, and their payload bytes.
        received,
        bytes_received,
        /// Datagrams that arrived and were dropped, because there was no receive, or because it was too short.
        receive_dropped_no_receive,
        receive_dropped_too_long,
        /// Receives flushed.
        receives_flushed,
        /// State, numbered as in `ibv_qp_state`.
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
