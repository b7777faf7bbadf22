//! Members of a volume, and the condition under which its client continues.
//!
//! The client continues with a set of nodes only if no other client can claim the volume without one of them. Whether
//! a claim succeeds depends on the newest view that its nodes have (`claim.rs`). The condition is therefore checked
//! for each view that a node may have, including views that were sent and that not all nodes have stored.

use farcall_verbs::Nanos;

use super::Engine;
use super::joining_node::JoiningNode;
use crate::client::claim::quorum;
use crate::client::node_client::Call;
use crate::wire::MembershipView;

/// Views that nodes may have.
pub(super) struct MembershipViews {
    /// The current view, which all its members have stored.
    current: MembershipView,
    /// Views proposed since; the last one is to follow now.
    proposed: Vec<MembershipView>,
    /// Nodes that have not stored that one yet.
    unacked: Vec<usize>,
}

impl MembershipViews {
    pub const fn new(current: MembershipView) -> Self {
        Self { current, proposed: Vec::new(), unacked: Vec::new() }
    }

    /// Returns the current view.
    pub const fn current(&self) -> &MembershipView {
        &self.current
    }

    pub const fn is_changing(&self) -> bool {
        !self.proposed.is_empty()
    }

    /// Returns the newest view, current or proposed.
    fn newest(&self) -> &MembershipView {
        self.proposed.last().unwrap_or(&self.current)
    }

    /// Returns whether the client may continue with the nodes that have these identifiers in the volume.
    fn is_quorum(&self, ids: &[u64]) -> bool {
        std::iter::once(&self.current).chain(&self.proposed).all(|view| {
            let named = ids.iter().filter(|id| view.nodes.contains(id)).count();
            named >= quorum(view.nodes.len()) && ids.iter().any(|id| view.members.contains(id))
        })
    }

    /// Creates the view that follows the newest one, with these nodes.
    fn next(&self, nodes: Vec<u64>, members: Vec<u64>) -> MembershipView {
        MembershipView { change: self.newest().change + 1, nodes, members, ..self.current.clone() }
    }

    /// Proposes a view, which takes effect when the nodes `unacked` have stored it. Returns its number.
    fn propose(&mut self, view: MembershipView, unacked: Vec<usize>) -> u32 {
        let change = view.change;
        self.proposed.push(view);
        self.unacked = unacked;
        change
    }

    /// Records that a node has stored the view of this number. Returns whether that view takes effect now.
    fn ack(&mut self, node: usize, change: u32) -> bool {
        let Some(view) = self.proposed.last().filter(|view| view.change == change) else { return false };
        self.unacked.retain(|at| *at != node);
        if self.unacked.is_empty() {
            self.current = view.clone();
            self.proposed.clear();
        }
        self.unacked.is_empty()
    }
}

/// Returns the nodes of the next view: all but the `going` ones, if enough of the others are members.
fn nodes_of_next_view(all: Vec<u64>, going: &[u64], members: &[u64]) -> Vec<u64> {
    let left: Vec<u64> = all.iter().filter(|id| !going.contains(id)).copied().collect();
    let there = left.iter().filter(|id| members.contains(id)).count();
    if there > 0 && there >= quorum(left.len()) { left } else { all }
}

impl Engine {
    /// Returns the time until which no other client can hold the volume; without a volume, the maximum.
    pub fn exclusive_until(&self) -> Nanos {
        let Some(metadata) = &self.metadata else { return Nanos(u64::MAX) };
        let until = metadata.members().map(|at| self.nodes[at].lease.map_or(Nanos(0), |lease| lease.until));
        if metadata.is_fenced() { Nanos(0) } else { until.min().unwrap_or(Nanos(0)) }
    }

    /// Returns whether the members must be checked again.
    pub(super) fn must_check_members(&self) -> bool {
        let Some(metadata) = self.metadata.as_ref().filter(|metadata| !metadata.is_fenced()) else {
            return false;
        };
        metadata.views.is_changing()
            || metadata.joining.is_some()
            || metadata.members().any(|at| !self.nodes[at].is_up())
    }

    /// Returns the draining nodes that have no replica any more, so that they may leave.
    fn drained_nodes(&self) -> Vec<usize> {
        let draining = (0..self.nodes.len()).filter(|at| self.nodes[*at].room.is_draining);
        let replicas = || self.extents.iter().flat_map(|extent| &extent.replicas);
        draining.filter(|at| !replicas().any(|replica| replica.node() == Some(*at))).collect()
    }

    /// Proposes the next view if members were lost or a joining node is ready. Fences the client if too few members
    /// are left.
    pub(super) fn check_members(&mut self, now: Nanos) {
        if self.metadata.is_none() {
            return;
        }
        let drained_nodes = self.drained_nodes();
        let Some(metadata) = self.metadata.as_mut().filter(|metadata| !metadata.is_fenced()) else { return };
        let joining = metadata.joining.as_ref().and_then(JoiningNode::ready_to_join);
        let newest = metadata.views.newest();
        let is_named = |at: usize| metadata.id(at).is_some_and(|id| newest.members.contains(&id));
        let is_left = |at: &usize| joining == Some(*at) || (is_named(*at) && !self.nodes[*at].is_non_member);
        let all: Vec<usize> = (0..self.nodes.len()).filter(is_left).collect();
        if !metadata.views.is_quorum(&metadata.ids(&all)) {
            return self.fence(now);
        }
        let is_there = |at: &usize| self.nodes[*at].disconnected_for(now) <= self.config.suspect_after;
        let staying: Vec<usize> = all.into_iter().filter(is_there).collect();
        let members = metadata.ids(&staying);
        // A view with a joining node no longer names nodes that were lost; those join again later.
        let has_joining = joining.is_some_and(|joining| staying.contains(&joining));
        let mut all = if has_joining { Vec::new() } else { metadata.views.current().nodes.clone() };
        all.extend(members.iter().filter(|id| !all.contains(id)).copied().collect::<Vec<_>>());
        let nodes = nodes_of_next_view(all, &metadata.ids(&drained_nodes), &members);
        let is_as_before = members == newest.members && nodes == newest.nodes;
        if is_as_before || !metadata.views.is_quorum(&members) {
            return;
        }
        let view = metadata.views.next(nodes, members);
        if let Err(error) = metadata.history().propose(Some(metadata.views.current()), &view) {
            // The view is proposed again at the next check.
            return tracing::error!("the volume's next mark is not recorded, and so not sent: {error}");
        }
        let (nodes, members) = (view.nodes.len(), view.members.len());
        tracing::warn!(nodes, members, "the volume continues with other nodes");
        let change = metadata.views.propose(view, staying.clone());
        staying.into_iter().for_each(|at| self.nodes[at].calls.push_back(Call::StoreView { change }));
    }

    /// Returns the view that nodes are to store.
    pub(super) fn proposed_view(&self) -> Option<&MembershipView> {
        self.metadata.as_ref()?.views.proposed.last()
    }

    /// Handles the reply of a node that has stored the view of this number.
    pub(super) fn on_view_stored(&mut self, node: usize, change: u32, now: Nanos) {
        let Some(metadata) = &mut self.metadata else { return };
        if metadata.views.ack(node, change) {
            metadata.history().commit(metadata.views.current());
            let committed = metadata.drop_non_members();
            committed.into_iter().for_each(|serial| self.finish_metadata_write(serial, now));
            self.finish_joining();
            self.end_leases_of_former_members(now);
        }
    }

    /// Ends the leases of former members that the new view does not name: they lack metadata from now on. They join
    /// again like other nodes, even if they reply and their leases never ended.
    fn end_leases_of_former_members(&mut self, now: Nanos) {
        let Some(metadata) = &self.metadata else { return };
        let members: Vec<usize> = metadata.members().collect();
        let is_former = |at: &usize| {
            let client = &self.nodes[*at];
            client.lease.is_some() && !client.is_non_member && !members.contains(at)
        };
        let joining = metadata.joining.as_ref().map(JoiningNode::node);
        let former: Vec<usize> =
            (0..self.nodes.len()).filter(|at| joining != Some(*at)).filter(is_former).collect();
        for at in former {
            self.lose_lease(at, "it was out of reach for too long".to_owned(), now);
        }
    }
}
