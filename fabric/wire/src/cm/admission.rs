//! Limits on the connections of a process that other hosts request: each costs memory of this process and nothing of
//! the requesting host.
//!
//! The connections of one host are limited to a fixed number and to the number that is free, so a few hosts that send
//! requests without end leave capacity for others. Requests from many addresses can still fill the table of waiting
//! requests. Then the oldest request of the host with the most waiting requests is dropped.

use std::collections::HashMap;

/// Maximum numbers for a process.
struct Limits {
    /// Requested connections, until the program destroys them.
    connections: usize,
    /// Half-open ones among them: requests without a reply, and replies without a confirmation.
    half_open: usize,
}

const HOST_LIMITS: Limits = Limits { connections: 1_024, half_open: 128 };
const TOTAL_LIMITS: Limits = Limits { connections: 4_096, half_open: 1_024 };

/// Number of connections of one host, or of all hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionCount {
    connections: usize,
    half_open: usize,
}

impl ConnectionCount {
    /// Counts a connection.
    pub fn add(&mut self, is_half_open: bool) {
        self.connections += 1;
        self.half_open += usize::from(is_half_open);
    }

    /// Returns the number of half-open connections.
    #[must_use]
    pub const fn half_open(&self) -> usize {
        self.half_open
    }

    fn is_below(&self, limits: &Limits) -> bool {
        self.connections < limits.connections && self.half_open < limits.half_open
    }
}

/// Capacity for one more request of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCapacity {
    /// There is capacity.
    Free,
    /// There is capacity if a waiting request of a host with more of them is dropped ([`request_to_evict`]).
    AfterEviction,
    /// There is no capacity.
    None,
}

impl RequestCapacity {
    /// Returns the capacity for a host with `host` connections, if all hosts have `all`.
    #[must_use]
    pub fn for_host(host: ConnectionCount, all: ConnectionCount) -> Self {
        let free = TOTAL_LIMITS.connections.saturating_sub(all.connections);
        if !host.is_below(&HOST_LIMITS) || host.connections >= free {
            Self::None
        } else if all.half_open < TOTAL_LIMITS.half_open {
            Self::Free
        } else {
            Self::AfterEviction
        }
    }
}

/// Returns the oldest request of the host that has the most waiting requests, if it has more than `most`. Each request
/// is given as the network of its host ([`super::host_network`]) and a number that increases with each request.
#[must_use]
pub fn request_to_evict(waiting: &[(u128, u64)], most: usize) -> Option<u64> {
    let mut hosts: HashMap<u128, (usize, u64)> = HashMap::new();
    for (host, number) in waiting {
        let (count, oldest) = hosts.entry(*host).or_insert((0, *number));
        *count += 1;
        *oldest = (*oldest).min(*number);
    }
    let richer = hosts.into_values().filter(|(count, _)| *count > most);
    richer.min_by_key(|(count, oldest)| (std::cmp::Reverse(*count), *oldest)).map(|(_, oldest)| oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_capacity_for_other_hosts_under_a_flood() {
        let (mut all, mut hosts) = (ConnectionCount::default(), Vec::new());
        for _ in 0..100 {
            let mut host = ConnectionCount::default();
            while RequestCapacity::for_host(host, all) == RequestCapacity::Free {
                host.add(false);
                all.add(false);
            }
            hosts.push(host.connections);
        }
        assert_eq!(hosts[0], HOST_LIMITS.connections);
        assert!(hosts.iter().take(6).all(|connections| *connections > 0), "{hosts:?}");
        assert!(all.connections <= TOTAL_LIMITS.connections);
    }

    #[test]
    fn one_host_cannot_have_all_requests_wait() {
        let (mut all, mut host) = (ConnectionCount::default(), ConnectionCount::default());
        while RequestCapacity::for_host(host, all) == RequestCapacity::Free {
            host.add(true);
            all.add(true);
        }
        assert_eq!(host.half_open, HOST_LIMITS.half_open);
        assert_eq!(RequestCapacity::for_host(ConnectionCount::default(), all), RequestCapacity::Free);
        let full = ConnectionCount { connections: TOTAL_LIMITS.half_open, half_open: TOTAL_LIMITS.half_open };
        assert_eq!(
            RequestCapacity::for_host(ConnectionCount::default(), full),
            RequestCapacity::AfterEviction
        );
    }

    #[test]
    fn evicts_the_oldest_request_of_the_busiest_host() {
        let waiting = [(1, 10), (2, 5), (2, 6), (3, 7), (2, 4), (3, 8), (3, 9)];
        assert_eq!(request_to_evict(&waiting, 0), Some(4));
        assert_eq!(request_to_evict(&waiting, 3), None, "who asks has as many");
        assert_eq!(request_to_evict(&[(1, 10), (2, 5), (3, 7)], 0), Some(5), "each has one");
        assert_eq!(request_to_evict(&[], 0), None);
    }
}
