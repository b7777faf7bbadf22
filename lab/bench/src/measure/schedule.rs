//! Schedule of an open loop: operations begin at fixed intervals, independently of the completion of earlier ones.
//!
//! A closed loop stops sending requests while a service stalls. Its latencies therefore omit the delay that other
//! requests would have experienced (coordinated omission). Under a schedule, each latency is counted from the
//! scheduled time.

use farcall_verbs::Nanos;

/// Scheduled times of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    first: Nanos,
    interval_ns: f64,
    given: u64,
}

/// Share of a client process in a schedule that several processes execute together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Share {
    /// Operations a second of all processes together.
    pub per_second: u32,
    /// Number of connections before those of this process.
    pub before: u32,
    /// Number of connections of all processes.
    pub connections: u32,
}

impl Share {
    /// Returns the schedule of connection `number` of this process, starting at `start`. Operations are assigned to
    /// all connections in turn.
    pub fn schedule(&self, number: u32, start: Nanos) -> Schedule {
        let each_ns = 1e9 / f64::from(self.per_second.max(1));
        let offset_ns = each_ns * f64::from(self.before + number);
        let interval_ns = each_ns * f64::from(self.connections.max(1));
        Schedule { first: Nanos(start.0 + offset_ns as u64), interval_ns, given: 0 }
    }
}

impl Schedule {
    /// Returns the scheduled time of the next operation if it is due at `now`. Each time is returned once.
    #[inline]
    pub fn due(&mut self, now: Nanos) -> Option<Nanos> {
        let next = Nanos(self.first.0 + (self.given as f64 * self.interval_ns) as u64);
        if next > now {
            return None;
        }
        self.given += 1;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaves_connections_and_keeps_intended_times() {
        // Two processes with two connections each, together one operation per microsecond.
        let mut times = Vec::new();
        for before in [0, 2] {
            let share = Share { per_second: 1_000_000, before, connections: 4 };
            for number in 0..2 {
                let mut schedule = share.schedule(number, Nanos(500));
                // All times are requested late: all are returned, none is left out.
                times.extend(
                    std::iter::from_fn(|| schedule.due(Nanos(500 + 99_999))).map(|time| time.0 - 500),
                );
            }
        }
        times.sort_unstable();
        assert_eq!(times, (0..100).map(|at| at * 1000).collect::<Vec<_>>());
    }
}
