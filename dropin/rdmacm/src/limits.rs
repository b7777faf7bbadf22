//! Which connections of other hosts give way to new ones, and which new ones are refused.

use std::net::Ipv6Addr;

use farcall_wire::cm::{Connection, Count, Room, State, first_to_give_way, host_network};

use crate::connection_manager::{ConnectionManager, End, Token};

impl ConnectionManager {
    /// Makes room for one more request of a peer. Returns whether there is.
    pub fn make_room_for(&mut self, peer: Ipv6Addr) -> bool {
        let (mut of_host, mut of_all) = (Count::default(), Count::default());
        let network = host_network(peer);
        for end in self.ends.values() {
            let Some(far) = end.far.as_ref().filter(|far| far.asked.is_some()) else { continue };
            let is_half_open = end.connection.as_ref().is_some_and(Connection::is_half_open);
            of_all.add(is_half_open);
            if host_network(far.peer) == network {
                of_host.add(is_half_open);
            }
        }
        match Room::for_host(of_host, of_all) {
            Room::Free => true,
            Room::None => false,
            Room::IfOneGivesWay => {
                // Ends are numbered in the order of their requests.
                let waiting: Vec<_> = self.ends.iter().filter_map(can_give_way).collect();
                let Some(token) = first_to_give_way(&waiting, of_host.half_open()) else { return false };
                self.give_way(token);
                true
            }
        }
    }

    /// Ends a connection that its peer has not confirmed, or that the program has not been told of.
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

/// A request whose program has nothing to do with it now: it has answered, or has not been told.
fn can_give_way((token, end): (&Token, &End)) -> Option<(u128, Token)> {
    let far = end.far.as_ref().filter(|far| far.asked.is_some())?;
    let connection = end.connection.as_ref().filter(|connection| connection.is_half_open())?;
    let is_left_to_peer = connection.state() == State::RepSent || end.id.is_none();
    is_left_to_peer.then(|| (host_network(far.peer), *token))
}
