//! Detection of whether the application thread polls the port continuously, so that the service thread need not.

/// Maximum time between two polls of a thread that polls. After a longer pause it has done other work.
const PAUSE_NS: u64 = 10_000;
/// Minimum number of polls per pause at which pauses count as preemption (by another program or the service thread) and
/// not as work of the application thread.
const LOOKS_A_PAUSE: u64 = 16;
/// Time for which an application thread is observed before it is evaluated.
const TRIAL_NS: u64 = 100_000;
/// Intervals at which the service thread checks whether an application thread that polled still does: at first, and
/// after it has polled for long. Packets that arrive in the meantime wait at most that long.
const LEFT_ALONE_NS: [u64; 2] = [250_000, 1_000_000];

/// Thread that is responsible for polling for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Service thread, when packets arrive.
    Service,
    /// Application thread, which polls continuously. It is evaluated again at `until_ns`.
    Owner { until_ns: u64 },
}

/// Activity of the application thread since the last evaluation.
#[derive(Debug, Default)]
pub(super) struct Owner {
    looked_ns: u64,
    /// Time at which it, or the service thread, last left the port.
    left_ns: u64,
    looks: u64,
    pauses: u64,
    /// Time that it, or the service thread, spent in the port.
    busy_ns: u64,
    judged_ns: u64,
    /// `true` if the application thread polls and the service thread does not.
    is_trusted: bool,
    left_alone_ns: u64,
}

impl Owner {
    /// Returns the time of its last poll.
    pub(super) fn looked_ns(&self) -> u64 {
        self.looked_ns
    }

    /// Returns whether the application thread is responsible for polling, and the service thread does not poll.
    pub(super) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Records a poll of the port by the application thread, which found no completion.
    pub(super) fn looks(&mut self, now_ns: u64) {
        self.looks += 1;
        self.pauses += u64::from(now_ns.saturating_sub(self.left_ns) > PAUSE_NS);
        self.looked_ns = now_ns;
    }

    /// Records that the application thread posted or polled from `came_ns` to `now_ns`, or that the service thread
    /// worked and may have delayed it. During that time the application thread could not poll.
    pub(super) fn leaves(&mut self, came_ns: u64, now_ns: u64) {
        self.left_ns = now_ns;
        self.busy_ns += now_ns.saturating_sub(came_ns);
    }

    /// Records that the application thread goes to sleep. Returns whether it was responsible for polling until now.
    pub(super) fn sleeps(&mut self) -> bool {
        (self.looks, self.pauses, self.busy_ns) = (0, 0, 0);
        std::mem::take(&mut self.is_trusted)
    }

    /// Returns which thread polls from now on. The service thread calls it when it was woken.
    pub(super) fn judge(&mut self, now_ns: u64) -> Who {
        let age_ns = now_ns.saturating_sub(self.judged_ns);
        if age_ns >= TRIAL_NS {
            let idle_ns = age_ns.saturating_sub(self.busy_ns);
            let polls = self.looks > 0
                && self.pauses * LOOKS_A_PAUSE <= self.looks
                && idle_ns <= self.looks * PAUSE_NS;
            let was_trusted = std::mem::replace(&mut self.is_trusted, polls);
            let [first_ns, most_ns] = LEFT_ALONE_NS;
            self.left_alone_ns = if was_trusted { most_ns.min(2 * self.left_alone_ns) } else { first_ns };
            (self.looks, self.pauses, self.busy_ns, self.judged_ns) = (0, 0, 0, now_ns);
        }
        if self.is_trusted {
            Who::Owner { until_ns: self.judged_ns + self.left_alone_ns }
        } else {
            Who::Service
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls at intervals of `period_ns` from `from_ns` to `to_ns`.
    fn look_every(owner: &mut Owner, period_ns: u64, from_ns: u64, to_ns: u64) {
        for now_ns in (from_ns..to_ns).step_by(period_ns as usize) {
            owner.looks(now_ns);
            owner.leaves(now_ns, now_ns + period_ns / 2);
        }
    }

    #[test]
    fn relies_on_an_application_thread_while_it_polls() {
        let mut owner = Owner::default();
        look_every(&mut owner, 1_500, 0, TRIAL_NS);
        assert_eq!(owner.judge(TRIAL_NS - 1), Who::Service, "not tried for long enough");
        let (mut from_ns, mut until_ns) = (TRIAL_NS, TRIAL_NS + 250_000);
        assert_eq!(owner.judge(from_ns), Who::Owner { until_ns });
        for next_ns in [500_000, 1_000_000, 1_000_000] {
            look_every(&mut owner, 1_500, from_ns, until_ns);
            (from_ns, until_ns) = (until_ns, until_ns + next_ns);
            assert_eq!(owner.judge(from_ns), Who::Owner { until_ns });
        }
        assert_eq!(owner.judge(until_ns), Who::Service, "it looked no more");
        let now_ns = until_ns + TRIAL_NS;
        look_every(&mut owner, 1_500, until_ns, now_ns);
        assert_eq!(owner.judge(now_ns), Who::Owner { until_ns: now_ns + 250_000 }, "as at first");
    }

    #[test]
    fn the_service_threads_own_turns_are_not_taken_for_pauses() {
        let mut owner = Owner::default();
        for turn in 0..4 {
            let begin_ns = turn * LEFT_ALONE_NS[0];
            look_every(&mut owner, 1_500, begin_ns + 2 * PAUSE_NS, begin_ns + LEFT_ALONE_NS[0]);
            assert_ne!(owner.judge(begin_ns + LEFT_ALONE_NS[0]), Who::Service, "turn {turn}");
        }
    }

    #[test]
    fn serves_a_thread_that_waits_for_memory_between_polls() {
        let mut owner = Owner::default();
        for trip in 0..20 {
            look_every(&mut owner, 1_500, trip * 30_000, trip * 30_000 + 15_000);
        }
        assert_eq!(owner.judge(20 * 30_000), Who::Service);
    }

    #[test]
    fn a_post_that_takes_long_is_no_pause() {
        let mut owner = Owner::default();
        for trip in 1..=20 {
            let ns = trip * 30_000;
            look_every(&mut owner, 1_500, ns, ns + 12_000);
            // The post wakes another thread.
            owner.leaves(ns + 12_000, ns + 29_000);
        }
        assert_ne!(owner.judge(21 * 30_000), Who::Service);
    }

    #[test]
    fn relies_on_a_thread_only_if_polls_take_most_of_its_time() {
        for (busy_ns, is_relied_on) in [(58_000, true), (20_000, false)] {
            let mut owner = Owner::default();
            for from_ns in (0..4 * TRIAL_NS).step_by(60_000) {
                owner.looks(from_ns);
                owner.leaves(from_ns, from_ns + busy_ns);
            }
            let who = owner.judge(4 * TRIAL_NS);
            assert_eq!(who != Who::Service, is_relied_on, "{busy_ns} of 60,000 ns");
        }
    }

    #[test]
    fn serves_a_sleeping_thread_at_once_and_tries_it_again() {
        let mut owner = Owner::default();
        look_every(&mut owner, 1_500, 0, TRIAL_NS);
        owner.judge(TRIAL_NS);
        assert!(owner.sleeps() && !owner.sleeps());
        assert_eq!(owner.judge(TRIAL_NS + 1), Who::Service);
    }
}
