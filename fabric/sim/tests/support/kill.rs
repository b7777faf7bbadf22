//! Crashes of a node in the traffic scenarios.

use std::time::Duration;

use super::member::{Did, Member};
use super::node::Node;
use super::traffic::{Traffic, two};

impl Traffic {
    /// Crashes a node with everything on it, and restarts it with nothing of that.
    pub fn kill(&mut self, node: usize, away: Duration) {
        self.take();
        self.check_counter(node);
        let has_shared = self.nodes[node].shared.is_some();
        self.world.crash(self.hosts[node].id());
        let new = Node::new(&self.hosts[node], self.nodes[node].life + 1, has_shared);
        let old = std::mem::replace(&mut self.nodes[node], new);
        let on_it: Vec<usize> = (0..self.members.len()).filter(|at| self.members[*at].node == node).collect();
        for at in &on_it {
            for (.., did) in &self.members[*at].sends {
                if let Did::Add { node, life } = *did
                    && self.nodes[node].life == life
                {
                    self.nodes[node].counter.unknown += 1;
                }
            }
            let (kind, peer, account) =
                (self.members[*at].kind, self.members[*at].peer, self.members[*at].account);
            // The member has new memory and a new queue pair; it does nothing until it is connected again.
            let member = Member::new(node, &self.nodes[node], kind, peer, account);
            self.members[*at].die(member);
        }
        drop(old);
        self.while_away(node, away);
        self.world.restart(self.hosts[node].id());
        self.paths[node] = self.gids.iter().map(|gid| self.nodes[node].path_to(*gid)).collect();
        for at in on_it {
            match self.members[at].peer {
                Some(peer) => self.reconnect(at, peer, node),
                None => self.reopen(at),
            }
        }
    }

    /// The other nodes continue as far as they can.
    fn while_away(&mut self, node: usize, away: Duration) {
        for _ in 0..4 {
            for at in 0..self.members.len() {
                if self.members[at].node != node && self.random.chance_ppm(500_000) {
                    self.act(at);
                }
            }
            self.world.run_for(away / 4);
            self.take();
        }
    }

    fn reopen(&mut self, at: usize) {
        let (node, account) = (self.members[at].node, self.next_account());
        self.ledger.forgotten(self.members[at].account);
        self.members[at].account = account;
        self.numbers.insert((node, self.members[at].qp.qp_num()), account);
    }

    fn reconnect(&mut self, at: usize, peer: usize, dead: usize) {
        // The other end of a connection within the node is renewed with it.
        if !self.members[at].has_failed {
            return;
        }
        self.end(&[at, peer], Some(dead));
        for at in [at, peer] {
            let account = self.next_account();
            let member = &mut self.members[at];
            if member.node == dead {
                member.revive(account);
            } else {
                member.renew(&self.nodes[member.node], account);
            }
            self.numbers.insert((member.node, member.qp.qp_num()), account);
        }
        for (from, to) in [(at, peer), (peer, at)] {
            let (writer, target) = two(&mut self.members, from, to);
            if target.node != dead {
                writer.check_image(&*target.mr);
            }
            writer.adopt_image(&*target.mr);
        }
        self.connect(at, peer);
    }
}
