//! How many connections other hosts may have a process hold: what each costs, who asks does not pay.
//!
//! A host may have so much, and no more than is free. So a few hosts that ask without end leave room for the others.
//! Many addresses can still take all places of requests that wait; then the oldest of the host that has most of them
//! gives way.

use std::collections::HashMap;

/// Maximum numbers for a process.
struct Limits {
    /// Connections that were asked of it, until its program destroys them.
    connections: usize,
    /// Of these, requests that are not answered, and answers that are not confirmed.
    half_open: usize,
}

const OF_A_HOST: Limits = Limits { connections: 1_024, half_open: 128 };
const OF_ALL: Limits = Limits { connections: 4_096, half_open: 1_024 };

/// The connections of a host, or of all hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    connections: usize,
    half_open: usize,
}

impl Count {
    /// Counts a connection.
    pub fn add(&mut self, is_half_open: bool) {
        self.connections += 1;
        self.half_open += usize::from(is_half_open);
    }

    /// How many are half open.
    #[must_use]
    pub const fn half_open(&self) -> usize {
        self.half_open
    }

    fn is_below(&self, limits: &Limits) -> bool {
        self.connections < limits.connections && self.half_open < limits.half_open
    }
}

/// Whether a host has room for one more request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It has.
    Free,
    /// It has if a request of a host with more of them gives way ([`first_to_give_way`]).
    IfOneGivesWay,
    /// It has not.
    None,
}

impl Room {
    /// The room for a host that has so many connections, of so many of all hosts.
    #[must_use]
    pub fn for_host(host: Count, all: Count) -> Self {
        let free = OF_ALL.connections.saturating_sub(all.connections);
        if !host.is_below(&OF_A_HOST) || host.connections >= free {
            Self::None
        } else if all.half_open < OF_ALL.half_open {
            Self::Free
        } else {
            Self::IfOneGivesWay
        }
    }
}

/// The oldest request of the host that has most of them, if that is more than `most`. Each request is the network of its
/// host ([`super::host_network`]) and a number that grows with each request.
#[must_use]
pub fn first_to_give_way(waiting: &[(u128, u64)], most: usize) -> Option<u64> {
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
    fn hosts_that_take_all_they_can_leave_room_for_others() {
        let (mut all, mut hosts) = (Count::default(), Vec::new());
        for _ in 0..100 {
            let mut host = Count::default();
            while Room::for_host(host, all) == Room::Free {
                host.add(false);
                all.add(false);
            }
            hosts.push(host.connections);
        }
        assert_eq!(hosts[0], OF_A_HOST.connections);
        assert!(hosts.iter().take(6).all(|connections| *connections > 0), "{hosts:?}");
        assert!(all.connections <= OF_ALL.connections);
    }

    #[test]
    fn one_host_cannot_have_all_requests_wait() {
        let (mut all, mut host) = (Count::default(), Count::default());
        while Room::for_host(host, all) == Room::Free {
            host.add(true);
            all.add(true);
        }
        assert_eq!(host.half_open, OF_A_HOST.half_open);
        assert_eq!(Room::for_host(Count::default(), all), Room::Free);
        let full = Count { connections: OF_ALL.half_open, half_open: OF_ALL.half_open };
        assert_eq!(Room::for_host(Count::default(), full), Room::IfOneGivesWay);
    }

    #[test]
    fn the_oldest_request_of_the_host_with_most_gives_way() {
        let waiting = [(1, 10), (2, 5), (2, 6), (3, 7), (2, 4), (3, 8), (3, 9)];
        assert_eq!(first_to_give_way(&waiting, 0), Some(4));
        assert_eq!(first_to_give_way(&waiting, 3), None, "who asks has as many");
        assert_eq!(first_to_give_way(&[(1, 10), (2, 5), (3, 7)], 0), Some(5), "each has one");
        assert_eq!(first_to_give_way(&[], 0), None);
    }
}
