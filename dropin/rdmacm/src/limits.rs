//! How many connections other hosts may have us hold: what each costs, who asks does not pay.

use std::net::Ipv6Addr;

use farcall_wire::cm::Connection;

use crate::connection_manager::ConnectionManager;

/// What a process takes on at the most.
struct Limits {
    /// Connections that were asked of it, until its program destroys them.
    connections: usize,
    /// Of these, requests that are not answered, and answers that are not confirmed.
    half_open: usize,
}

const OF_A_PEER: Limits = Limits { connections: 1_024, half_open: 128 };
const OF_ALL: Limits = Limits { connections: 4_096, half_open: 1_024 };

#[derive(Default)]
struct Count {
    connections: usize,
    half_open: usize,
}

impl Count {
    fn add(&mut self, is_half_open: bool) {
        self.connections += 1;
        self.half_open += usize::from(is_half_open);
    }

    fn is_below(&self, limits: &Limits) -> bool {
        self.connections < limits.connections && self.half_open < limits.half_open
    }
}

impl ConnectionManager {
    /// Whether there is room for one more request of a peer.
    pub fn has_room_for(&self, peer: Ipv6Addr) -> bool {
        let (mut of_peer, mut of_all) = (Count::default(), Count::default());
        for end in self.ends.values() {
            let Some(far) = end.far.as_ref().filter(|far| far.asked.is_some()) else { continue };
            let is_half_open = end.connection.as_ref().is_some_and(Connection::is_half_open);
            of_all.add(is_half_open);
            if far.peer == peer {
                of_peer.add(is_half_open);
            }
        }
        of_peer.is_below(&OF_A_PEER) && of_all.is_below(&OF_ALL)
    }
}
