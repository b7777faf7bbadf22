//! Limits on connections of other hosts: which ones are replaced by new ones, and which new ones are refused.

use std::net::Ipv6Addr;

use farcall_wire::cm::{Connection, ConnectionCount, RequestCapacity, State, host_network, request_to_evict};

use super::{CmEndpoint, ConnectionManager};
use crate::token::Token;

impl ConnectionManager {
    /// Makes room for another request of a peer. Returns whether there is room.
    pub(super) fn make_room_for(&mut self, peer: Ipv6Addr) -> bool {
        let (mut of_host, mut of_all) = (ConnectionCount::default(), ConnectionCount::default());
        let network = host_network(peer);
        for end in self.ends.values() {
            let Some(remote_end) = end.remote_end.as_ref().filter(|remote_end| remote_end.asked.is_some())
            else {
                continue;
            };
            let is_half_open = end.connection.as_ref().is_some_and(Connection::is_half_open);
            of_all.add(is_half_open);
            if host_network(remote_end.peer) == network {
                of_host.add(is_half_open);
            }
        }
        match RequestCapacity::for_host(of_host, of_all) {
            RequestCapacity::Free => true,
            RequestCapacity::None => false,
            RequestCapacity::AfterEviction => {
                // Tokens ascend in the order of the requests.
                let waiting: Vec<_> = self.ends.iter().filter_map(eviction_candidate).collect();
                let Some(token) = request_to_evict(&waiting, of_host.half_open()) else { return false };
                self.evict(token);
                true
            }
        }
    }

    /// Ends a connection that its peer has not confirmed, or whose request the program has not received yet.
    fn evict(&mut self, token: Token) {
        if self.ends.get(&token).is_some_and(|end| end.id.is_none()) {
            return self.remove_end_and_event(token);
        }
        self.wait_until(token, None);
        let Some(end) = self.ends.get_mut(&token) else { return };
        let step = end.connection.as_mut().map(Connection::timed_out).unwrap_or_default();
        self.apply_step(token, step);
    }
}

/// Selects a request that the program is not working on: the program has replied to it, or has not received it yet.
fn eviction_candidate((token, end): (&Token, &CmEndpoint)) -> Option<(u128, Token)> {
    let remote_end = end.remote_end.as_ref().filter(|remote_end| remote_end.asked.is_some())?;
    let connection = end.connection.as_ref().filter(|connection| connection.is_half_open())?;
    let is_left_to_peer = connection.state() == State::RepSent || end.id.is_none();
    is_left_to_peer.then(|| (host_network(remote_end.peer), *token))
}
