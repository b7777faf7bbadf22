//! Leases of the nodes, and sessions with them.

use std::collections::VecDeque;
use std::time::Duration;

use farcall_io::{Session, Window};
use farcall_verbs::Nanos;

use super::io::session_config;
use super::{Engine, Told};
use crate::client::config::{OpenError, WINDOW_BYTES};
use crate::client::extent::{Home, Replica};
use crate::client::node_client::{Call, CallFailed, Donor, Lease, Link};
use crate::wire::{Refusal, RefusalKind, Reply, Room};

/// Delay before a call is repeated to a node whose earlier queue pairs are not quiesced.
const ASK_AGAIN: Duration = Duration::from_millis(1);

impl Engine {
    /// Adds a node if it is not known yet. From now on slabs are requested from it; in a volume, as soon as it has the
    /// metadata. Returns whether it is new.
    ///
    /// # Errors
    /// Returns an error if the maximum number of nodes is reached.
    pub fn join(&mut self, address: &str) -> Result<bool, OpenError> {
        if self.donors.iter().any(|donor| donor.address == address) {
            return Ok(false);
        }
        let room = self.config.node_room();
        if self.donors.len() >= room {
            let (value, max) = (room as u64 + 1, room as u64);
            return Err(OpenError::Range { name: "nodes", value, min: 1, max });
        }
        let mut donor = Donor::new(address.to_owned(), self.rng.next_u64());
        if let Some(noting) = &mut self.noting {
            noting.add_stranger();
            donor.is_out = true;
            donor.problem = Some("it is not in the volume yet".to_owned());
        }
        self.donors.push(donor);
        self.is_placement_new = true;
        Ok(true)
    }

    /// Returns the next call: the index of the node in the configuration, and the argument of a call to
    /// [`crate::wire::METHOD`]. Pass its result to [`Engine::answered`]. Each node has at most one call in progress.
    pub fn next_call(&mut self, now: Nanos) -> Option<(usize, Vec<u8>)> {
        self.keep_placement();
        (0..self.donors.len()).find_map(|at| self.call_of(at, now).map(|bytes| (at, bytes)))
    }

    fn call_of(&mut self, at: usize, now: Nanos) -> Option<Vec<u8>> {
        let donor = &mut self.donors[at];
        if donor.asked.is_some() || now < donor.retry_at {
            return None;
        }
        if donor.lease.is_some() && !donor.is_ending && matches!(donor.link, Link::Down) {
            self.open_session(at, now);
        }
        let donor = &mut self.donors[at];
        let call = donor.next_call(now)?;
        let pairs = match &donor.link {
            Link::Opened(session) => session.infos(),
            _ => Vec::new(),
        };
        let mark = self.mark_to_be();
        let (donor, name) = (&self.donors[at], &self.config.name);
        let request = match call {
            Call::Look | Call::Claim { .. } => self.noting.as_ref()?.request(call, name)?,
            _ => donor.request(call, name, pairs, mark)?,
        };
        self.donors[at].asked = Some((call, now));
        Some(request.to_bytes())
    }

    fn open_session(&mut self, at: usize, now: Nanos) {
        let config = session_config(&self.config);
        match self.poller.open(config, Window { bytes: WINDOW_BYTES }, self.told.clone()) {
            Ok(session) => self.donors[at].link = Link::Opened(session),
            Err(error) => self.donors[at].back_off(error.to_string(), now),
        }
    }

    /// Handles the result of a call to a node.
    pub fn answered(&mut self, node: usize, answer: Result<Vec<u8>, CallFailed>, now: Nanos) {
        let Some((call, sent)) = self.donors[node].asked.take() else { return };
        self.look_at = now;
        let answer = answer.and_then(|bytes| Reply::parse(&bytes).map_err(CallFailed::Refused));
        match answer {
            Ok(reply) => self.replied(node, call, reply, sent, now),
            Err(failed) => self.call_failed(node, call, failed, now),
        }
    }

    fn replied(&mut self, node: usize, call: Call, reply: Reply, sent: Nanos, now: Nanos) {
        let donor = &mut self.donors[node];
        donor.heard_at = sent;
        // Every call that names a lease renews it.
        if let Some(lease) = &mut donor.lease {
            lease.until = lease.until.max(sent + lease.term);
        }
        match (call, reply) {
            (Call::Lease, Reply::Leased { lease, term_ms, slab_bytes, room, .. }) => {
                let (ours, term) = (self.config.slab_bytes, Duration::from_millis(term_ms.max(1).into()));
                if slab_bytes < ours {
                    let why = format!("its slabs have {slab_bytes} bytes; this client uses {ours} of each");
                    donor.back_off(why, now);
                    // The lease expires at the node; request no other one before.
                    return donor.retry_at = sent + term;
                }
                donor.begin_lease(Lease { key: lease, term, until: sent + term });
                self.is_placement_new = true;
                self.heard_of(node, room, now);
            }
            (Call::Connect, Reply::Connected { pairs }) => self.connect(node, &pairs, now),
            (Call::Connect, Reply::Wait) => donor.retry_at = now + ASK_AGAIN,
            (Call::Grant { .. }, Reply::Wait) => {
                donor.calls.push_front(call);
                donor.retry_at = now + ASK_AGAIN;
            }
            (Call::Grant { extent, slab }, Reply::Granted { region, room }) => {
                self.heard_of(node, room, now);
                self.granted(node, extent, slab, region);
            }
            (Call::Mark { change }, Reply::Done { room, .. }) => {
                self.heard_of(node, room, now);
                self.marked(node, change, now);
            }
            (Call::Look, Reply::Looked { kept }) => self.looked(node, kept, now),
            (Call::Claim { id }, reply) => self.newcomer_claimed(node, id, reply, sent, now),
            (Call::End, _) => {
                donor.lease = None;
                self.is_placement_new = true;
                self.link_down(node, "its lease was given back".to_owned(), now);
            }
            (_, Reply::Done { room, scrubs }) => {
                donor.scrubs.requested = donor.scrubs.requested.max(scrubs);
                self.heard_of(node, room, now);
            }
            (call, _) => {
                let failed = CallFailed::Refused(RefusalKind::Malformed.because("not the reply that is due"));
                self.call_failed(node, call, failed, now);
            }
        }
    }

    fn heard_of(&mut self, node: usize, room: Room, now: Nanos) {
        let donor = &mut self.donors[node];
        (donor.room, donor.is_full) = (room, false);
        self.look_at_wish(node, now);
    }

    /// Records whether a node is draining. It is left only when the other nodes are known to be reachable, so their
    /// leases are renewed at once.
    fn look_at_wish(&mut self, node: usize, now: Nanos) {
        let donor = &mut self.donors[node];
        if !donor.room.is_draining {
            donor.draining_since = None;
        } else if donor.draining_since.is_none() {
            donor.draining_since = Some(now);
            let to_ask = |donor: &&mut Donor<_>| donor.lease.is_some() && !donor.calls.contains(&Call::Renew);
            self.donors.iter_mut().filter(to_ask).for_each(|donor| donor.calls.push_back(Call::Renew));
        }
    }

    fn call_failed(&mut self, node: usize, call: Call, failed: CallFailed, now: Nanos) {
        if let Call::Grant { extent, slab } = call
            && self.extents[extent].away_mut(node, slab).is_some()
        {
            let (CallFailed::Refused(Refusal { reason: why, .. }) | CallFailed::Unreachable(why)) = failed;
            // The node joins the volume again, and is queried once more for the slabs that it retains.
            return self.lose_lease(node, why, now);
        }
        if let Call::Look | Call::Claim { .. } = call {
            let (CallFailed::Refused(Refusal { reason: why, .. }) | CallFailed::Unreachable(why)) = failed;
            return self.newcomer_failed(node, why, now);
        }
        let donor = &mut self.donors[node];
        if call == Call::Report {
            donor.reported = None;
            // An earlier version, which does not show reports to operators.
            if matches!(&failed, CallFailed::Refused(refusal) if refusal.kind == RefusalKind::Malformed) {
                donor.takes_reports = false;
                return;
            }
        }
        match failed {
            CallFailed::Refused(refusal)
                if refusal.kind == RefusalKind::UnknownLease || matches!(call, Call::Mark { .. }) =>
            {
                self.lose_lease(node, refusal.reason, now);
            }
            CallFailed::Refused(refusal) => {
                donor.room.is_draining |= refusal.kind == RefusalKind::Draining;
                self.look_at_wish(node, now);
                let donor = &mut self.donors[node];
                if let Call::Grant { extent, slab } = call {
                    donor.is_full = true;
                    donor.problem = Some(refusal.reason);
                    self.extents[extent].placing.retain(|placing| *placing != (node, slab));
                    self.wake(extent);
                } else {
                    donor.back_off(refusal.reason, now);
                    self.close_opened(node);
                }
            }
            // The lease expires at the node.
            CallFailed::Unreachable(_) if call == Call::End => donor.lease = None,
            CallFailed::Unreachable(why) => {
                match call {
                    // The slab may have been granted, so it is returned.
                    Call::Grant { extent, slab } => {
                        donor.is_full = true;
                        donor.calls.push_back(Call::Return { slab });
                        self.extents[extent].placing.retain(|placing| *placing != (node, slab));
                        self.wake(extent);
                    }
                    Call::Return { .. } | Call::Mark { .. } => donor.calls.push_front(call),
                    _ => {}
                }
                self.donors[node].back_off(why, now);
                self.close_opened(node);
            }
        }
    }

    /// Closes a session that the node did not accept.
    fn close_opened(&mut self, node: usize) {
        let donor = &mut self.donors[node];
        if let Link::Opened(_) = donor.link {
            donor.link = Link::Down;
        }
    }

    fn connect(&mut self, node: usize, pairs: &[farcall_link::bootstrap::QpInfo], now: Nanos) {
        let donor = &mut self.donors[node];
        let Link::Opened(session) = std::mem::replace(&mut donor.link, Link::Down) else { return };
        if let Err(error) = session.connect(pairs, &[]) {
            return donor.back_off(error.to_string(), now);
        }
        for extent in &mut self.extents {
            extent.replicas.iter_mut().for_each(|replica| give_number(replica, node, &session));
        }
        donor.link = Link::Up(session);
        (donor.down_since, donor.problem) = (None, None);
        donor.backoff.reset();
        self.notes_reached(node, now);
        self.wake_all();
    }

    /// Continues all operations that wait for a replica.
    fn wake_all(&mut self) {
        (0..self.extents.len()).for_each(|extent| self.wake(extent));
    }

    fn granted(&mut self, node: usize, extent: usize, slab: u64, region: farcall_link::RemoteRegion) {
        if let Some(replica) = self.extents[extent].away_mut(node, slab)
            && region.len_bytes >= self.config.slab_bytes
        {
            replica.home = Home::Node { donor: node, slab, region, grant: None };
            if let Some(session) = self.donors[node].session() {
                give_number(replica, node, session);
            }
            return self.wake(extent);
        }
        let is_asked_for = self.extents[extent].placing.contains(&(node, slab));
        self.extents[extent].placing.retain(|placing| *placing != (node, slab));
        if !is_asked_for || region.len_bytes < self.config.slab_bytes {
            self.donors[node].calls.push_back(Call::Return { slab });
            return;
        }
        let home = Home::Node { donor: node, slab, region, grant: None };
        let mut replica = self.new_replica(extent, home);
        if let Some(session) = self.donors[node].session() {
            give_number(&mut replica, node, session);
        }
        self.extents[extent].replicas.push(replica);
        self.is_placement_new = true;
        self.wake(extent);
    }

    /// Handles the end of the session with a node.
    pub(super) fn link_down(&mut self, node: usize, why: String, now: Nanos) {
        let donor = &mut self.donors[node];
        if donor.down_since.is_none() {
            tracing::info!(node, "a memory node is not reached: {why}");
        }
        // Dropping the session ends its requests in flight.
        donor.link = Link::Down;
        donor.back_off(why, now);
        self.notes_left(node);
        let donor = &mut self.donors[node];
        donor.down_since = donor.down_since.or(Some(now));
        // Slabs that were not requested yet are requested from other nodes.
        let is_new = |call: &Call| match *call {
            Call::Grant { extent, slab } => self.extents[extent].away_mut(node, slab).is_none(),
            _ => false,
        };
        let (dropped, left) = std::mem::take(&mut donor.calls).into_iter().partition(is_new);
        self.donors[node].calls = left;
        self.look_at = now;
        self.forget_placing(node, dropped);
        for replica in self.extents.iter_mut().flat_map(|extent| &mut extent.replicas) {
            if let Home::Node { donor, grant, .. } = &mut replica.home
                && *donor == node
            {
                *grant = None;
            }
        }
        self.drop_newcomer(node, now);
    }

    fn forget_placing(&mut self, node: usize, calls: VecDeque<Call>) {
        for call in calls {
            if let Call::Grant { extent, slab } = call {
                self.extents[extent].placing.retain(|placing| *placing != (node, slab));
                self.wake(extent);
            }
        }
    }

    /// Handles the end of a lease: the client has lost its slabs at the node.
    pub(super) fn lose_lease(&mut self, node: usize, why: String, now: Nanos) {
        self.link_down(node, why, now);
        let donor = &mut self.donors[node];
        donor.lease = None;
        donor.calls.clear();
        donor.is_out = self.noting.is_some();
        self.is_placement_new = true;
        self.leaving.retain(|replica| replica.donor() != Some(node));
        for at in 0..self.extents.len() {
            let extent = &mut self.extents[at];
            extent.placing.retain(|(donor, _)| *donor != node);
            let serials: Vec<u32> = extent
                .replicas
                .iter()
                .filter(|replica| replica.donor() == Some(node))
                .map(|replica| replica.serial)
                .collect();
            for serial in serials {
                // The node may only have been unreachable, and still have the bytes.
                if self.noting.is_some() && self.extents[at].depends_on(serial) {
                    continue;
                }
                self.remove_replica(at, serial);
                self.counts.replicas_dropped += 1;
            }
            self.wake(at);
        }
        self.put_away(node);
    }

    /// Marks the replicas on a node as away, until the node grants their slabs again.
    pub(super) fn put_away(&mut self, node: usize) {
        for replica in self.extents.iter_mut().flat_map(|extent| &mut extent.replicas) {
            if let Home::Node { donor, slab, .. } = replica.home
                && donor == node
            {
                replica.home = Home::Away { donor, slab };
            }
        }
    }

    /// Renews all leases now, to query the state of the nodes.
    pub fn renew_now(&mut self) {
        for donor in &mut self.donors {
            if donor.lease.is_some() && !donor.calls.contains(&Call::Renew) {
                donor.calls.push_back(Call::Renew);
            }
        }
    }

    /// Begins to end all leases. Nothing can be read or written afterwards.
    pub fn close(&mut self) {
        for donor in &mut self.donors {
            donor.is_ending = true;
            donor.retry_at = Nanos(0);
        }
    }

    /// Returns whether no lease is left after [`Engine::close`].
    pub fn is_closed(&self) -> bool {
        let is_free = |donor: &Donor<_>| {
            donor.lease.is_none() && !matches!(donor.asked, Some((Call::Lease | Call::Claim { .. }, _)))
        };
        self.donors.iter().all(is_free)
    }
}

/// Registers the slab of a replica with a session, so that requests can name it.
fn give_number(replica: &mut Replica, node: usize, session: &Session<Told>) {
    if let Home::Node { donor, region, grant, .. } = &mut replica.home
        && *donor == node
    {
        *grant = session.grant(*region).ok();
    }
}
