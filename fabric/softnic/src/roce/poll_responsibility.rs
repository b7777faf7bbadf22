//! Detection of whether the application thread polls the port continuously, so that the service thread need not.

/// Maximum time between two polls of a thread that polls. After a longer pause it has done other work.
const PAUSE_NS: u64 = 10_000;
/// Minimum number of polls per pause at which pauses count as preemption (by another program or the service thread) and
/// not as work of the application thread.
const POLLS_PER_PAUSE_MIN: u64 = 16;
/// Time for which an application thread is observed before it is evaluated.
const OBSERVATION_NS: u64 = 100_000;
/// Intervals at which the service thread checks whether an application thread that polled still does: at first, and
/// after it has polled for long. Packets that arrive in the meantime wait at most that long.
const POLL_LEASE_NS: [u64; 2] = [250_000, 1_000_000];

/// Thread that is responsible for polling for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollResponsibility {
    /// Service thread, when packets arrive.
    ServiceThread,
    /// Application thread, which polls continuously. It is evaluated again at `until_ns`.
    Application { until_ns: u64 },
}

/// Activity of the application thread since the last evaluation.
#[derive(Debug, Default)]
pub(super) struct PollActivity {
    last_poll_ns: u64,
    /// Time at which it, or the service thread, last left the port.
    last_exit_ns: u64,
    polls: u64,
    pauses: u64,
    /// Time that it, or the service thread, spent in the port.
    busy_ns: u64,
    evaluated_ns: u64,
    /// `true` if the application thread polls and the service thread does not.
    app_polls: bool,
    poll_lease_ns: u64,
}

impl PollActivity {
    /// Returns the time of its last poll.
    pub(super) fn last_poll_ns(&self) -> u64 {
        self.last_poll_ns
    }

    /// Returns whether the application thread is responsible for polling, and the service thread does not poll.
    pub(super) fn app_polls(&self) -> bool {
        self.app_polls
    }

    /// Records a poll of the port by the application thread, which found no completion.
    pub(super) fn on_poll(&mut self, now_ns: u64) {
        self.polls += 1;
        self.pauses += u64::from(now_ns.saturating_sub(self.last_exit_ns) > PAUSE_NS);
        self.last_poll_ns = now_ns;
    }

    /// Records that the application thread posted or polled from `entered_ns` to `now_ns`, or that the service thread
    /// worked and may have delayed it. During that time the application thread could not poll.
    pub(super) fn on_exit(&mut self, entered_ns: u64, now_ns: u64) {
        self.last_exit_ns = now_ns;
        self.busy_ns += now_ns.saturating_sub(entered_ns);
    }

    /// Records that the application thread goes to sleep. Returns whether it was responsible for polling until now.
    pub(super) fn on_sleep(&mut self) -> bool {
        (self.polls, self.pauses, self.busy_ns) = (0, 0, 0);
        std::mem::take(&mut self.app_polls)
    }

    /// Returns which thread polls from now on. The service thread calls it when it was woken.
    pub(super) fn evaluate(&mut self, now_ns: u64) -> PollResponsibility {
        let age_ns = now_ns.saturating_sub(self.evaluated_ns);
        if age_ns >= OBSERVATION_NS {
            let idle_ns = age_ns.saturating_sub(self.busy_ns);
            let polls_continuously = self.polls > 0
                && self.pauses * POLLS_PER_PAUSE_MIN <= self.polls
                && idle_ns <= self.polls * PAUSE_NS;
            let app_polled = std::mem::replace(&mut self.app_polls, polls_continuously);
            let [first_ns, longest_ns] = POLL_LEASE_NS;
            self.poll_lease_ns = if app_polled { longest_ns.min(2 * self.poll_lease_ns) } else { first_ns };
            (self.polls, self.pauses, self.busy_ns, self.evaluated_ns) = (0, 0, 0, now_ns);
        }
        if self.app_polls {
            PollResponsibility::Application { until_ns: self.evaluated_ns + self.poll_lease_ns }
        } else {
            PollResponsibility::ServiceThread
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls at intervals of `period_ns` from `from_ns` to `to_ns`.
    fn poll_every(activity: &mut PollActivity, period_ns: u64, from_ns: u64, to_ns: u64) {
        for now_ns in (from_ns..to_ns).step_by(period_ns as usize) {
            activity.on_poll(now_ns);
            activity.on_exit(now_ns, now_ns + period_ns / 2);
        }
    }

    #[test]
    fn relies_on_an_application_thread_while_it_polls() {
        let mut activity = PollActivity::default();
        poll_every(&mut activity, 1_500, 0, OBSERVATION_NS);
        assert_eq!(
            activity.evaluate(OBSERVATION_NS - 1),
            PollResponsibility::ServiceThread,
            "not tried for long enough"
        );
        let (mut from_ns, mut until_ns) = (OBSERVATION_NS, OBSERVATION_NS + 250_000);
        assert_eq!(activity.evaluate(from_ns), PollResponsibility::Application { until_ns });
        for next_ns in [500_000, 1_000_000, 1_000_000] {
            poll_every(&mut activity, 1_500, from_ns, until_ns);
            (from_ns, until_ns) = (until_ns, until_ns + next_ns);
            assert_eq!(activity.evaluate(from_ns), PollResponsibility::Application { until_ns });
        }
        assert_eq!(activity.evaluate(until_ns), PollResponsibility::ServiceThread, "it looked no more");
        let now_ns = until_ns + OBSERVATION_NS;
        poll_every(&mut activity, 1_500, until_ns, now_ns);
        assert_eq!(
            activity.evaluate(now_ns),
            PollResponsibility::Application { until_ns: now_ns + 250_000 },
            "as at first"
        );
    }

    #[test]
    fn the_service_threads_own_turns_are_not_taken_for_pauses() {
        let mut activity = PollActivity::default();
        for turn in 0..4 {
            let begin_ns = turn * POLL_LEASE_NS[0];
            poll_every(&mut activity, 1_500, begin_ns + 2 * PAUSE_NS, begin_ns + POLL_LEASE_NS[0]);
            assert_ne!(
                activity.evaluate(begin_ns + POLL_LEASE_NS[0]),
                PollResponsibility::ServiceThread,
                "turn {turn}"
            );
        }
    }

    #[test]
    fn serves_a_thread_that_waits_for_memory_between_polls() {
        let mut activity = PollActivity::default();
        for trip in 0..20 {
            poll_every(&mut activity, 1_500, trip * 30_000, trip * 30_000 + 15_000);
        }
        assert_eq!(activity.evaluate(20 * 30_000), PollResponsibility::ServiceThread);
    }

    #[test]
    fn a_post_that_takes_long_is_no_pause() {
        let mut activity = PollActivity::default();
        for trip in 1..=20 {
            let ns = trip * 30_000;
            poll_every(&mut activity, 1_500, ns, ns + 12_000);
            // The post wakes another thread.
            activity.on_exit(ns + 12_000, ns + 29_000);
        }
        assert_ne!(activity.evaluate(21 * 30_000), PollResponsibility::ServiceThread);
    }

    #[test]
    fn relies_on_a_thread_only_if_polls_take_most_of_its_time() {
        for (busy_ns, is_relied_on) in [(58_000, true), (20_000, false)] {
            let mut activity = PollActivity::default();
            for from_ns in (0..4 * OBSERVATION_NS).step_by(60_000) {
                activity.on_poll(from_ns);
                activity.on_exit(from_ns, from_ns + busy_ns);
            }
            let responsible = activity.evaluate(4 * OBSERVATION_NS);
            assert_eq!(
                responsible != PollResponsibility::ServiceThread,
                is_relied_on,
                "{busy_ns} of 60,000 ns"
            );
        }
    }

    #[test]
    fn serves_a_sleeping_thread_at_once_and_tries_it_again() {
        let mut activity = PollActivity::default();
        poll_every(&mut activity, 1_500, 0, OBSERVATION_NS);
        activity.evaluate(OBSERVATION_NS);
        assert!(activity.on_sleep() && !activity.on_sleep());
        assert_eq!(activity.evaluate(OBSERVATION_NS + 1), PollResponsibility::ServiceThread);
    }
}
