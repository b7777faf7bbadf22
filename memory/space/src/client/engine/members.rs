//! Which nodes are members of a volume, and when its client can go on with them.
//!
//! It goes on with some nodes only if nobody else can claim the volume without asking one of these. Whether a claim is
//! allowed depends on the newest mark that its nodes know (`claim.rs`), so it is checked for each mark that a node may
//! know: also for those that were sent, and that not all have.

use farcall_verbs::Nanos;

use super::Engine;
use super::newcomer::Newcomer;
use crate::client::claim::quorum;
use crate::client::donor::Call;
use crate::wire::Mark;

/// The marks that nodes may know.
pub(super) struct Marks {
    /// All its members have it.
    now: Mark,
    /// What was to follow it since; the last one is to follow now.
    later: Vec<Mark>,
    /// Who does not have that yet.
    left: Vec<usize>,
}

impl Marks {
    pub const fn new(now: Mark) -> Self {
        Self { now, later: Vec::new(), left: Vec::new() }
    }

    /// The one that counts.
    pub const fn now(&self) -> &Mark {
        &self.now
    }

    pub const fn is_changing(&self) -> bool {
        !self.later.is_empty()
    }

    /// The newest.
    fn last(&self) -> &Mark {
        self.later.last().unwrap_or(&self.now)
    }

    /// Whether the client may go on with the nodes that have these names in the volume.
    fn are_enough(&self, ids: &[u64]) -> bool {
        std::iter::once(&self.now).chain(&self.later).all(|mark| {
            let named = ids.iter().filter(|id| mark.nodes.contains(id)).count();
            named >= quorum(mark.nodes.len()) && ids.iter().any(|id| mark.members.contains(id))
        })
    }

    /// The mark behind the newest one, for these nodes.
    fn next(&self, nodes: Vec<u64>, members: Vec<u64>) -> Mark {
        Mark { change: self.last().change + 1, nodes, members, ..self.now.clone() }
    }

    /// A mark is to follow, once these have it. Returns its number.
    fn follow(&mut self, mark: Mark, left: Vec<usize>) -> u32 {
        let change = mark.change;
        self.later.push(mark);
        self.left = left;
        change
    }

    /// A node has the mark of this number. Returns whether it counts from now on.
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

/// The nodes that the next mark names: all but those that may go, if enough of the others are members.
fn nodes_that_count(all: Vec<u64>, going: &[u64], members: &[u64]) -> Vec<u64> {
    let left: Vec<u64> = all.iter().filter(|id| !going.contains(id)).copied().collect();
    let there = left.iter().filter(|id| members.contains(id)).count();
    if there > 0 && there >= quorum(left.len()) { left } else { all }
}

impl Engine {
    /// Until when nobody else can have the volume, for sure; without a volume, for ever.
    pub fn held_until(&self) -> Nanos {
        let Some(noting) = &self.noting else { return Nanos(u64::MAX) };
        let until = noting.members().map(|at| self.donors[at].lease.map_or(Nanos(0), |lease| lease.until));
        if noting.is_fenced() { Nanos(0) } else { until.min().unwrap_or(Nanos(0)) }
    }

    /// Whether members have to be looked at again.
    pub(super) fn is_noting_busy(&self) -> bool {
        let Some(noting) = self.noting.as_ref().filter(|noting| !noting.is_fenced()) else { return false };
        noting.marks.is_changing()
            || noting.newcomer.is_some()
            || noting.members().any(|at| !self.donors[at].is_up())
    }

    /// Nodes that want their memory back, and have it: they may go.
    fn drained(&self) -> Vec<usize> {
        let draining = (0..self.donors.len()).filter(|at| self.donors[*at].room.is_draining);
        let replicas = || self.extents.iter().flat_map(|extent| &extent.replicas);
        draining.filter(|at| !replicas().any(|replica| replica.donor() == Some(*at))).collect()
    }

    /// Goes on without members that are gone and with a newcomer that has everything, or not at all.
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
        // With a newcomer those that were lost do not count any more: they are taken in anew.
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
            // It is proposed again when members are looked at the next time.
            return tracing::error!("the volume's next mark is not recorded, and so not sent: {error}");
        }
        let (nodes, members) = (mark.nodes.len(), mark.members.len());
        tracing::warn!(nodes, members, "the volume goes on with other nodes");
        let change = noting.marks.follow(mark, staying.clone());
        staying.into_iter().for_each(|at| self.donors[at].calls.push_back(Call::Mark { change }));
    }

    /// The mark that nodes are to be told of.
    pub(super) fn mark_to_be(&self) -> Option<&Mark> {
        self.noting.as_ref()?.marks.later.last()
    }

    /// A node was told of the mark that has this number.
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

    /// Members that the new mark does not name lack notes from now on. They are taken in again as any other node is,
    /// also if they reply and their leases never ended.
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
