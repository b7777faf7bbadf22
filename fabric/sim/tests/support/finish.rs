//! The end of a run of the traffic scenarios: all posted requests complete, and all final states are checked.

use std::time::Duration;

use farcall_verbs::QpType;

use super::node::SHARED_RECEIVES;
use super::traffic::{Traffic, flow};

impl Traffic {
    /// After the faults have ended: all posted requests complete, and the last message posted arrives at every queue
    /// pair.
    pub fn finish(&mut self) {
        let until = self.world.now() + Duration::from_secs(20);
        loop {
            self.poll();
            let busy: Vec<usize> =
                (0..self.members.len()).filter(|at| !self.members[*at].sends.is_empty()).collect();
            if busy.is_empty() {
                break;
            }
            assert!(self.world.now() < until, "requests neither completed nor were flushed");
            for at in 0..self.members.len() {
                self.post_receives(at, 32);
            }
            for at in busy {
                let wr_id = self.next_wr_id();
                let member = &mut self.members[at];
                let elsewhere = (member.kind == QpType::Ud).then(|| &*self.paths[member.node][member.node]);
                member.mark(wr_id, elsewhere, &mut self.ledger);
            }
            self.world.run_for(Duration::from_micros(50));
        }
        self.world.run_for(Duration::from_millis(1));
        self.poll();
        for at in 0..self.members.len() {
            self.probe(at);
        }
        for at in 0..self.members.len() {
            if let Some(peer) = self.members[at].peer {
                self.members[at].check_image(&*self.members[peer].mr);
                self.members[at].check_word(&*self.members[peer].mr);
            }
        }
        (0..self.nodes.len()).for_each(|node| self.check_counter(node));
    }

    /// Checks that one small message arrives, once.
    fn probe(&mut self, at: usize) {
        let Some(to) = self.partner(at) else { return };
        self.post_receives(to, 32);
        let wr_id = self.next_wr_id();
        let flow = flow(self.members[at].account, self.members[to].account);
        let number = self.with_way((at, to), |member, way, (deliveries, ledger), _| {
            member.probe(wr_id, way, deliveries, ledger)
        });
        self.world.run_for(Duration::from_millis(1));
        self.take();
        assert!(self.members[at].sends.is_empty(), "a message is under way for ever");
        assert_eq!(self.deliveries.times(flow, number), 1, "a message over a network that is well");
    }

    /// Checks that the remaining receives of shared queues are exactly those that did not complete, and that each
    /// reached limit raises its event.
    pub fn drain_shared(&mut self) {
        let all: Vec<usize> = (0..self.members.len()).collect();
        self.end(&all, None);
        self.members.clear();
        for node in 0..self.nodes.len() {
            if self.nodes[node].shared.is_some() {
                self.drain(node);
            }
        }
    }

    fn drain(&mut self, node: usize) {
        let (from, _) = self.add_connection(QpType::Rc, ((node + 1) % self.nodes.len(), node));
        let left = self.at_rest(node);
        // Immediately, or after some messages.
        let limit = self.random.between(1, (left as u64 + 1).min(SHARED_RECEIVES as u64)) as u32;
        self.nodes[node].shared.as_mut().expect("a shared queue").arm(limit);
        self.take();
        for done in 0..left {
            assert_eq!(self.at_rest(node), left - done);
            let wr_id = self.next_wr_id();
            self.with_way((from, from + 1), |member, way, (deliveries, ledger), _| {
                member.probe(wr_id, way, deliveries, ledger);
            });
            self.world.run_for(Duration::from_millis(1));
            self.take();
        }
        assert_eq!(self.at_rest(node), 0, "every receive that did not complete was still posted");
        self.members.clear();
    }

    /// Returns the number of receives in a shared queue while nothing is in flight.
    fn at_rest(&self, node: usize) -> usize {
        let shared = self.nodes[node].shared.as_ref().expect("a shared queue");
        shared.account.at_rest(shared.srq.query().unwrap().srq_limit).unwrap();
        shared.account.outstanding()
    }
}
