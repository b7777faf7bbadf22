//! The reaction point of congestion control: the sending rate of a queue pair after congestion notifications of its
//! peer.

/// Determines the rate of one queue pair, from the first congestion notification until the limit ends. Implementations
/// neither block nor read a clock: the caller passes the time in nanoseconds since an arbitrary start.
pub trait RateControl: Send {
    /// Handles a congestion notification packet (CNP) of the peer.
    fn notified(&mut self, now_ns: u64);

    /// Records that `len_bytes` were sent, headers included.
    fn sent(&mut self, len_bytes: u64);

    /// Returns the rate at this time; `None` if the queue pair has recovered its full rate and this control ends.
    fn rate_bytes_per_s(&mut self, now_ns: u64) -> Option<u64>;
}

/// Creates the rate control of a queue pair at the time of its first congestion notification.
pub type NewRateControl = fn(now_ns: u64) -> Box<dyn RateControl>;

/// Minimum and maximum rate of a paced queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateBounds {
    /// Minimum rate, regardless of the number of notifications.
    pub min_bytes_per_s: u64,
    /// Rate of the link, at which a queue pair begins and at which the limit ends.
    pub max_bytes_per_s: u64,
}

impl RateBounds {
    /// From 100 Mbit/s, at which a packet of 4096 bytes takes a third of a millisecond, to 40 Gbit/s, the link of the
    /// paper and more than software sends for one queue pair.
    pub const DEFAULT: Self = Self { min_bytes_per_s: 12_500_000, max_bytes_per_s: 5_000_000_000 };
}

/// Weight of one notification in `alpha`: g (section 5.2).
const G: f64 = 1.0 / 256.0;
/// Period after which, without a notification, `alpha` decreases and the rate increases: K and the timer T, which are
/// equal (section 5.2). A notification restarts both.
const PERIOD_NS: u64 = 55_000;
/// Number of sent bytes after which the rate increases, too: B (section 5.2).
const BYTE_COUNTER_BYTES: u64 = 10_000_000;
/// Number of increases by one cause that only recover the decrease of the last notification: F (section 3.1).
const FAST_RECOVERY_ROUNDS: u32 = 5;
/// Additive increase, R_AI (section 5.2): 40 Mbit/s.
const ADDITIVE_BYTES_PER_S: f64 = 5_000_000.0;
/// Hyper increase, R_HAI: ten times the additive one, since the paper gives no value.
const HYPER_BYTES_PER_S: f64 = 10.0 * ADDITIVE_BYTES_PER_S;

/// Rate control of the reaction point of DCQCN ("Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015,
/// section 3.1). Its timers are computed lazily: their effects up to the present are applied when the rate is queried.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    bounds: RateBounds,
    /// R_C, in bytes per second.
    current: f64,
    /// R_T: the rate to recover, in bytes per second.
    target: f64,
    /// Estimated congestion of the path, from 0 to 1.
    alpha: f64,
    /// End of the present period.
    period_ends_ns: u64,
    sent_bytes: u64,
    /// Increases since the last notification: T and BC.
    timer_rounds: u32,
    byte_rounds: u32,
}

/// Creates DCQCN with the default bounds.
#[must_use]
pub fn dcqcn(now_ns: u64) -> Box<dyn RateControl> {
    Box::new(Dcqcn::new(RateBounds::DEFAULT, now_ns))
}

impl Dcqcn {
    /// Creates the control of a queue pair that has sent at the maximum rate until now.
    #[must_use]
    pub fn new(bounds: RateBounds, now_ns: u64) -> Self {
        Self {
            bounds,
            current: bounds.max_bytes_per_s as f64,
            target: bounds.max_bytes_per_s as f64,
            alpha: 1.0,
            period_ends_ns: now_ns + PERIOD_NS,
            sent_bytes: 0,
            timer_rounds: 0,
            byte_rounds: 0,
        }
    }

    /// Returns whether the rate is less than one additive step below the maximum.
    fn has_recovered(&self) -> bool {
        self.current + ADDITIVE_BYTES_PER_S >= self.bounds.max_bytes_per_s as f64
    }

    /// Applies the effects of the periods that have ended. The loop terminates: each period increases the rate by at
    /// least half an additive step, or halves the difference to the target.
    fn catch_up(&mut self, now_ns: u64) {
        while self.period_ends_ns <= now_ns && !self.has_recovered() {
            self.alpha *= 1.0 - G;
            self.period_ends_ns += PERIOD_NS;
            self.timer_rounds += 1;
            self.raise();
        }
    }

    /// Fast recovery, additive or hyper increase (section 3.1, figure 7).
    fn raise(&mut self) {
        let (timer, bytes) = (self.timer_rounds, self.byte_rounds);
        if timer.min(bytes) > FAST_RECOVERY_ROUNDS {
            self.target += f64::from(timer.min(bytes) - FAST_RECOVERY_ROUNDS) * HYPER_BYTES_PER_S;
        } else if timer.max(bytes) >= FAST_RECOVERY_ROUNDS {
            self.target += ADDITIVE_BYTES_PER_S;
        }
        self.target = self.target.min(self.bounds.max_bytes_per_s as f64);
        self.current = f64::midpoint(self.current, self.target);
    }
}

impl RateControl for Dcqcn {
    fn notified(&mut self, now_ns: u64) {
        self.catch_up(now_ns);
        self.target = self.current;
        self.current *= 1.0 - self.alpha / 2.0;
        self.current = self.current.max(self.bounds.min_bytes_per_s as f64);
        self.alpha = (1.0 - G) * self.alpha + G;
        self.period_ends_ns = now_ns + PERIOD_NS;
        (self.sent_bytes, self.timer_rounds, self.byte_rounds) = (0, 0, 0);
    }

    fn sent(&mut self, len_bytes: u64) {
        self.sent_bytes += len_bytes;
        if self.sent_bytes >= BYTE_COUNTER_BYTES {
            self.sent_bytes -= BYTE_COUNTER_BYTES;
            self.byte_rounds += 1;
            self.raise();
        }
    }

    fn rate_bytes_per_s(&mut self, now_ns: u64) -> Option<u64> {
        self.catch_up(now_ns);
        (!self.has_recovered()).then_some(self.current as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: RateBounds = RateBounds { min_bytes_per_s: 10_000_000, max_bytes_per_s: 1_000_000_000 };

    fn rates_of_periods(control: &mut Dcqcn, from_ns: u64, periods: u64) -> Vec<Option<u64>> {
        (1..=periods).map(|nth| control.rate_bytes_per_s(from_ns + nth * PERIOD_NS)).collect()
    }

    #[test]
    fn a_notification_halves_the_rate_and_periods_bring_it_back() {
        let mut control = Dcqcn::new(BOUNDS, 0);
        control.notified(0);
        assert_eq!(control.rate_bytes_per_s(PERIOD_NS - 1), Some(500_000_000));
        // Fast recovery halves the difference until it is less than one step.
        let rates = rates_of_periods(&mut control, 0, 7);
        let expected = [750_000_000, 875_000_000, 937_500_000, 968_750_000, 984_375_000, 992_187_500];
        assert_eq!(rates[..6], expected.map(Some));
        assert_eq!(rates[6], None);
    }

    #[test]
    fn the_rate_follows_the_formulas_of_the_paper() {
        let mut control = Dcqcn::new(BOUNDS, 0);
        // R_C = R_C (1 - alpha/2), alpha = (1 - g) alpha + g, with alpha 1 at first: it stays 1.
        control.notified(0);
        control.notified(50_000);
        assert_eq!(control.rate_bytes_per_s(50_000), Some(250_000_000));
        // Five periods approach R_T = 500 MB/s; in the fifth, T = F, R_T grows by R_AI.
        let rates = rates_of_periods(&mut control, 50_000, 6);
        let approached = [375_000_000, 437_500_000, 468_750_000, 484_375_000];
        assert_eq!(rates[..4], approached.map(Some));
        assert_eq!(rates[4], Some((484_375_000 + 505_000_000) / 2));
        assert_eq!(rates[5], Some((494_687_500 + 510_000_000) / 2));
        // alpha has become (255/256)^6, so the next notification decreases the rate less.
        let alpha = (255.0_f64 / 256.0).powi(6);
        let before = f64::midpoint(494_687_500.0, 510_000_000.0);
        control.notified(50_000 + 6 * PERIOD_NS);
        assert_eq!(
            control.rate_bytes_per_s(50_000 + 6 * PERIOD_NS),
            Some((before * (1.0 - alpha / 2.0)) as u64)
        );
    }

    #[test]
    fn bytes_raise_the_rate_and_with_time_the_increase_is_hyper() {
        let mut control = Dcqcn::new(BOUNDS, 0);
        for _ in 0..8 {
            control.notified(0);
        }
        assert_eq!(control.current, 10_000_000.0);
        for _ in 0..4 {
            control.sent(BYTE_COUNTER_BYTES);
        }
        assert_eq!((control.target, control.byte_rounds), (10_000_000.0, 4));
        control.sent(BYTE_COUNTER_BYTES);
        control.sent(BYTE_COUNTER_BYTES);
        assert_eq!(control.target, 20_000_000.0, "two additive steps");
        rates_of_periods(&mut control, 0, 5);
        assert_eq!(control.target, 45_000_000.0, "five more");
        rates_of_periods(&mut control, 5 * PERIOD_NS, 1);
        assert_eq!(control.target, 95_000_000.0, "both have passed F: one hyper step");
    }

    #[test]
    fn a_flood_of_notifications_leaves_the_lowest_rate() {
        let mut control = Dcqcn::new(BOUNDS, 0);
        for at_ns in 0..1_000_000 {
            control.notified(at_ns);
        }
        assert_eq!(control.rate_bytes_per_s(1_000_000), Some(BOUNDS.min_bytes_per_s));
        assert_eq!(control.rate_bytes_per_s(u64::MAX / 2), None, "and it is over some day");
    }
}
