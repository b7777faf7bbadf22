//! Handshakes in progress: their source addresses, and the choice of one to evict for a new connection.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Connections whose hello is not complete.
pub(super) struct Handshakes {
    max: usize,
    per_address_max: usize,
    /// By connection number, which is in order of age.
    incomplete: BTreeMap<u64, IpAddr>,
    by_address: HashMap<IpAddr, usize>,
}

impl Handshakes {
    pub(super) fn new(max: usize, per_address_max: usize) -> Self {
        Self { max, per_address_max, incomplete: BTreeMap::new(), by_address: HashMap::new() }
    }

    pub(super) fn count(&self) -> usize {
        self.incomplete.len()
    }

    /// Returns whether one more handshake from `address` may begin.
    pub(super) fn has_room_for(&self, address: IpAddr) -> bool {
        self.count() < self.max && self.of(address) < self.per_address_max
    }

    fn of(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or(0)
    }

    /// Returns the handshake to evict for a new connection if a limit is reached: the oldest one from the same address
    /// if that address has reached its limit, otherwise the oldest one from the address with the most handshakes.
    pub(super) fn oldest_to_evict(&self, address: IpAddr) -> Option<u64> {
        let address = match self.of(address) >= self.per_address_max {
            true => address,
            false => *self.by_address.iter().max_by_key(|(_, count)| **count)?.0,
        };
        self.incomplete.iter().find(|(_, of)| **of == address).map(|(id, _)| *id)
    }

    pub(super) fn begin(&mut self, id: u64, address: IpAddr) {
        self.incomplete.insert(id, address);
        *self.by_address.entry(address).or_default() += 1;
    }

    /// Removes a handshake whose hello is complete or whose connection has ended. Does nothing for other connections.
    pub(super) fn end(&mut self, id: u64) {
        let Some(address) = self.incomplete.remove(&id) else { return };
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_the_oldest_handshake_of_the_busiest_address() {
        let [flood, quiet, new] = [1, 2, 3].map(|last| IpAddr::from([127, 0, 0, last]));
        let mut handshakes = Handshakes::new(4, 3);
        assert_eq!(handshakes.oldest_to_evict(new), None);
        handshakes.begin(1, quiet);
        for id in 2..5 {
            assert!(handshakes.has_room_for(flood));
            handshakes.begin(id, flood);
        }
        assert!(!handshakes.has_room_for(new));
        assert_eq!(handshakes.oldest_to_evict(new), Some(2), "not that of the quiet one");
        handshakes.end(1);
        assert!(handshakes.has_room_for(new) && !handshakes.has_room_for(flood));
        assert_eq!(handshakes.oldest_to_evict(flood), Some(2), "its own");
        for id in [2, 3, 3, 4, 99] {
            handshakes.end(id);
        }
        assert!(handshakes.count() == 0 && handshakes.by_address.is_empty());
    }
}
