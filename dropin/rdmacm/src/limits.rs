//! Limits on connections of other hosts: which ones are replaced by new ones, and which new ones are refused.

use std::net::Ipv6Addr;

use farcall_wire::cm::{Connection, ConnectionCount, RequestCapacity, State, host_network, request_to_evict};

use crate::connection_manager::{ConnectionManager, End, Token};

impl ConnectionManager {
    /// Makes room for another request of a peer. Returns whether there is room.
    pub fn make_room_for(&mut self, peer: Ipv6Addr) -> bool {
        let (mut of_host, mut of_all) = (ConnectionCount::default(), ConnectionCount::default());
        let network = host_network(peer);
        for end in self.ends.values() {
            let Some(far) = end.far.as_ref().filter(|far| far.asked.is_some()) else { continue };
            let is_half_open = end.connection.as_ref().is_some_and(Connection::is_half_open);
            of_all.add(is_half_open);
            if host_network(far.peer) == network {
                of_host.add(is_half_open);
            }
        }
        match RequestCapacity::for_host(of_host, of_all) {
            RequestCapacity::Free => true,
            RequestCapacity::None => false,
            RequestCapacity::AfterEviction => {
                // Tokens ascend in the order of the requests.
                let waiting: Vec<_> = self.ends.iter().filter_map(can_give_way).collect();
                let Some(token) = request_to_evict(&waiting, of_host.half_open()) else { return false };
                self.give_way(token);
                true
            }
        }
    }

    /// Ends a connection that its peer has not confirmed, or whose request the program has not received yet.
    fn give_way(&mut self, token: Token) {
        if self.ends.get(&token).is_some_and(|end| end.id.is_none()) {
            return self.remove_end_and_notice(token);
        }
        self.wait_until(token, None);
        let Some(end) = self.ends.get_mut(&token) else { return };
        let step = end.connection.as_mut().map(Connection::timed_out).unwrap_or_default();
        self.take_step(token, step);
    }
}

/// Selects a request that the program is not working on: the program has answered it, or has not received it yet.
fn can_give_way((token, end): (&Token, &End)) -> Option<(u128, Token)> {
    let far = end.far.as_ref().filter(|far| far.asked.is_some())?;
    let connection = end.connection.as_ref().filter(|connection| connection.is_half_open())?;
    let is_left_to_peer = connection.state() == State::RepSent || end.id.is_none();
    is_left_to_peer.then(|| (host_network(far.peer), *token))
}
