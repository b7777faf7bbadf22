//! Members of a volume, and the condition under which its client continues.
//!
//! The client continues with a set of nodes only if no other client can claim the volume without one of them. Whether
//! a claim succeeds depends on the newest view that its nodes have (`claim.rs`). The condition is therefore checked
//! for each view that a node may have, including views that were sent and that not all nodes have stored.

use farcall_verbs::Nanos;

use super::Engine;
use super::joining_node::Newcomer;
use crate::client::claim::quorum;
use crate::client::node_client::Call;
use crate::wire::Mark;

/// Views that nodes may have.
pub(super) struct Marks {
    /// The current view, which all its members have stored.
    now: Mark,
    /// Views proposed since; the last one is to follow now.
    later: Vec<Mark>,
    /// Nodes that have not stored that one yet.
    left: Vec<usize>,
}

impl Marks {
    pub const fn new(now: Mark) -> Self {
        Self { now, later: Vec::new(), left: Vec::new() }
    }

    /// Returns the current view.
    pub const fn now(&self) -> &Mark {
        &self.now
    }

    pub const fn is_changing(&self) -> bool {
        !self.later.is_empty()
    }

    /// Returns the newest view, current or proposed.
    fn last(&self) -> &Mark {
        self.later.last().unwrap_or(&self.now)
    }

    /// Returns whether the client may continue with the nodes that have these identifiers in the volume.
    fn are_enough(&self, ids: &[u64]) -> bool {
        std::iter::once(&self.now).chain(&self.later).all(|mark| {
            let named = ids.iter().filter(|id| mark.nodes.contains(id)).count();
            named >= quorum(mark.nodes.len()) && ids.iter().any(|id| mark.members.contains(id))
        })
    }

    /// Creates the view that follows the newest one, with these nodes.
    fn next(&self, nodes: Vec<u64>, members: Vec<u64>) -> Mark {
        Mark { change: self.last().change + 1, nodes, members, ..self.now.clone() }
    }

    /// Proposes a view, which takes effect when the nodes `left` have stored it. Returns its number.
    fn follow(&mut self, mark: Mark, left: Vec<usize>) -> u32 {
        let change = mark.change;
        self.later.push(mark);
        self.left = left;
        change
    }

    /// Records that a node has stored the view of this number. Returns whether that view takes effect now.
    fn taken(&mut self, node: usize, change: u32) -> bool {
        let Some(mark) = self.later.last().filter(|mark| mark.change == change) else { return false };
        self.left.retain(|at| *at != node);
        if self.left.is_empty() {
            self.now = mark.clone();
            self.later.clear();
        }
        self.left.is_empty()
    }
}

/// Returns the nodes of the next view: all but the `going` ones, if enough of the others are members.
fn nodes_that_count(all: Vec<u64>, going: &[u64], members: &[u64]) -> Vec<u64> {
    let left: Vec<u64> = all.iter().filter(|id| !going.contains(id)).copied().collect();
    let there = left.iter().filter(|id| members.contains(id)).count();
    if there > 0 && there >= quorum(left.len()) { left } else { all }
}

impl Engine {
    /// Returns the time until which no other client can hold the volume; without a volume, the maximum.
    pub fn held_until(&self) -> Nanos {
        let Some(noting) = &self.noting else { return Nanos(u64::MAX) };
        let until = noting.members().map(|at| self.donors[at].lease.map_or(Nanos(0), |lease| lease.until));
        if noting.is_fenced() { Nanos(0) } else { until.min().unwrap_or(Nanos(0)) }
    }

    /// Returns whether the members must be checked again.
    pub(super) fn is_noting_busy(&self) -> bool {
        let Some(noting) = self.noting.as_ref().filter(|noting| !noting.is_fenced()) else { return false };
        noting.marks.is_changing()
            || noting.newcomer.is_some()
            || noting.members().any(|at| !self.donors[at].is_up())
    }

    /// Returns the draining nodes that have no replica any more, so that they may leave.
    fn drained(&self) -> Vec<usize> {
        let draining = (0..self.donors.len()).filter(|at| self.donors[*at].room.is_draining);
        let replicas = || self.extents.iter().flat_map(|extent| &extent.replicas);
        draining.filter(|at| !replicas().any(|replica| replica.donor() == Some(*at))).collect()
    }

    /// Proposes the next view if members were lost or a joining node is ready. Fences the client if too few members
    /// are left.
    pub(super) fn look_at_members(&mut self, now: Nanos) {
        if self.noting.is_none() {
            return;
        }
        let drained = self.drained();
        let Some(noting) = self.noting.as_mut().filter(|noting| !noting.is_fenced()) else { return };
        let newcomer = noting.newcomer.as_ref().and_then(Newcomer::to_be_member);
        let last = noting.marks.last();
        let is_named = |at: usize| noting.id(at).is_some_and(|id| last.members.contains(&id));
        let is_left = |at: &usize| newcomer == Some(*at) || (is_named(*at) && !self.donors[*at].is_out);
        let all: Vec<usize> = (0..self.donors.len()).filter(is_left).collect();
        if !noting.marks.are_enough(&noting.ids(&all)) {
            return self.fence(now);
        }
        let is_there = |at: &usize| self.donors[*at].down_for(now) <= self.config.suspect_after;
        let staying: Vec<usize> = all.into_iter().filter(is_there).collect();
        let members = noting.ids(&staying);
        // A view with a joining node no longer names nodes that were lost; those join again later.
        let has_newcomer = newcomer.is_some_and(|newcomer| staying.contains(&newcomer));
        let mut all = if has_newcomer { Vec::new() } else { noting.marks.now().nodes.clone() };
        all.extend(members.iter().filter(|id| !all.contains(id)).copied().collect::<Vec<_>>());
        let nodes = nodes_that_count(all, &noting.ids(&drained), &members);
        let is_as_before = members == last.members && nodes == last.nodes;
        if is_as_before || !noting.marks.are_enough(&members) {
            return;
        }
        let mark = noting.marks.next(nodes, members);
        if let Err(error) = noting.history().propose(Some(noting.marks.now()), &mark) {
            // The view is proposed again at the next check.
            return tracing::error!("the volume's next mark is not recorded, and so not sent: {error}");
        }
        let (nodes, members) = (mark.nodes.len(), mark.members.len());
        tracing::warn!(nodes, members, "the volume goes on with other nodes");
        let change = noting.marks.follow(mark, staying.clone());
        staying.into_iter().for_each(|at| self.donors[at].calls.push_back(Call::Mark { change }));
    }

    /// Returns the view that nodes are to store.
    pub(super) fn mark_to_be(&self) -> Option<&Mark> {
        self.noting.as_ref()?.marks.later.last()
    }

    /// Handles the reply of a node that has stored the view of this number.
    pub(super) fn marked(&mut self, node: usize, change: u32, now: Nanos) {
        let Some(noting) = &mut self.noting else { return };
        if noting.marks.taken(node, change) {
            noting.history().commit(noting.marks.now());
            let over = noting.wait_for_members_only();
            over.into_iter().for_each(|serial| self.note_over(serial, now));
            self.newcomer_marked();
            self.leave_former_members(now);
        }
    }

    /// Ends the leases of former members that the new view does not name: they lack metadata from now on. They join
    /// again like other nodes, even if they reply and their leases never ended.
    fn leave_former_members(&mut self, now: Nanos) {
        let Some(noting) = &self.noting else { return };
        let members: Vec<usize> = noting.members().collect();
        let is_former = |at: &usize| {
            let donor = &self.donors[*at];
            donor.lease.is_some() && !donor.is_out && !members.contains(at)
        };
        let newcomer = noting.newcomer.as_ref().map(Newcomer::node);
        let former: Vec<usize> =
            (0..self.donors.len()).filter(|at| newcomer != Some(*at)).filter(is_former).collect();
        for at in former {
            self.lose_lease(at, "it was out of reach for too long".to_owned(), now);
        }
    }
}
