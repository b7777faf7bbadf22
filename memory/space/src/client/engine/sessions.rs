//! Leases of the nodes, and sessions with them.

use std::collections::VecDeque;
use std::time::Duration;

use farcall_io::{Session, Window};
use farcall_verbs::{Nanos, with_sources};

use super::io::session_config;
use super::{CompletionSink, Engine};
use crate::client::config::{OpenError, WINDOW_BYTES};
use crate::client::extent::{Replica, ReplicaLocation};
use crate::client::node_client::{Call, Lease, MemoryNodeClient, NodeCallError, SessionState};
use crate::wire::{Refusal, RefusalKind, Reply, Room};

/// Delay before a call is repeated to a node whose earlier queue pairs are not quiesced.
const RETRY_DELAY: Duration = Duration::from_millis(1);

impl Engine {
    /// Adds a node if it is not known yet. From now on slabs are requested from it; in a volume, as soon as it has the
    /// metadata. Returns whether it is new.
    ///
    /// # Errors
    /// Returns an error if the maximum number of nodes is reached.
    pub fn join(&mut self, address: &str) -> Result<bool, OpenError> {
        if self.nodes.iter().any(|client| client.address == address) {
            return Ok(false);
        }
        let room = self.config.max_nodes();
        if self.nodes.len() >= room {
            let (value, max) = (room as u64 + 1, room as u64);
            return Err(OpenError::Range { name: "nodes", value, min: 1, max });
        }
        let mut client = MemoryNodeClient::new(address.to_owned(), self.rng.next_u64());
        if let Some(metadata) = &mut self.metadata {
            metadata.add_non_member();
            client.is_non_member = true;
            client.problem = Some("it is not in the volume yet".to_owned());
        }
        self.nodes.push(client);
        self.placement_dirty = true;
        Ok(true)
    }

    /// Returns the next call: the index of the node in the configuration, and the argument of a call to
    /// [`crate::wire::METHOD`]. Pass its result to [`Engine::on_reply`]. Each node has at most one call in progress.
    pub fn next_call(&mut self, now: Nanos) -> Option<(usize, Vec<u8>)> {
        self.save_placement();
        (0..self.nodes.len()).find_map(|at| self.next_request(at, now).map(|bytes| (at, bytes)))
    }

    fn next_request(&mut self, at: usize, now: Nanos) -> Option<Vec<u8>> {
        let client = &mut self.nodes[at];
        if client.pending_call.is_some() || now < client.retry_at {
            return None;
        }
        if client.lease.is_some() && !client.is_ending && matches!(client.session, SessionState::Down) {
            self.open_session(at, now);
        }
        let client = &mut self.nodes[at];
        let call = client.next_call(now)?;
        let pairs = match &client.session {
            SessionState::Opened(session) => session.infos(),
            _ => Vec::new(),
        };
        let view = self.proposed_view();
        let (client, name) = (&self.nodes[at], &self.config.name);
        let request = match call {
            Call::QueryVolume | Call::Claim { .. } => self.metadata.as_ref()?.request(call, name)?,
            _ => client.request(call, name, pairs, view)?,
        };
        self.nodes[at].pending_call = Some((call, now));
        Some(request.to_bytes())
    }

    fn open_session(&mut self, at: usize, now: Nanos) {
        let config = session_config(&self.config);
        match self.poller.open(config, Window { bytes: WINDOW_BYTES }, self.completions.clone()) {
            Ok(session) => self.nodes[at].session = SessionState::Opened(session),
            Err(error) => self.nodes[at].back_off(with_sources(&error), now),
        }
    }

    /// Handles the result of a call to a node.
    pub fn on_reply(&mut self, node: usize, result: Result<Vec<u8>, NodeCallError>, now: Nanos) {
        let Some((call, sent)) = self.nodes[node].pending_call.take() else { return };
        self.next_maintenance_at = now;
        let result = result.and_then(|bytes| Reply::parse(&bytes).map_err(NodeCallError::Refused));
        match result {
            Ok(reply) => self.handle_reply(node, call, reply, sent, now),
            Err(failed) => self.call_failed(node, call, failed, now),
        }
    }

    fn handle_reply(&mut self, node: usize, call: Call, reply: Reply, sent: Nanos, now: Nanos) {
        let client = &mut self.nodes[node];
        client.last_reply_at = sent;
        // Every call that names a lease renews it.
        if let Some(lease) = &mut client.lease {
            lease.until = lease.until.max(sent + lease.term);
        }
        match (call, reply) {
            (Call::Lease, Reply::Leased { lease, term_ms, slab_bytes, room, .. }) => {
                let (ours, term) = (self.config.slab_bytes, Duration::from_millis(term_ms.max(1).into()));
                if slab_bytes < ours {
                    let why = format!("its slabs have {slab_bytes} bytes; this client uses {ours} of each");
                    client.back_off(why, now);
                    // The lease expires at the node; request no other one before.
                    return client.retry_at = sent + term;
                }
                client.begin_lease(Lease { key: lease, term, until: sent + term });
                self.placement_dirty = true;
                self.update_capacity(node, room, now);
            }
            (Call::Connect, Reply::Connected { pairs }) => self.connect(node, &pairs, now),
            (Call::Connect, Reply::Wait) => client.retry_at = now + RETRY_DELAY,
            (Call::Grant { .. }, Reply::Wait) => {
                client.calls.push_front(call);
                client.retry_at = now + RETRY_DELAY;
            }
            (Call::Grant { extent, slab }, Reply::Granted { region, room }) => {
                self.update_capacity(node, room, now);
                self.on_slab_granted(node, extent, slab, region);
            }
            (Call::StoreView { change }, Reply::Done { room, .. }) => {
                self.update_capacity(node, room, now);
                self.on_view_stored(node, change, now);
            }
            (Call::QueryVolume, Reply::VolumeState { volume }) => {
                self.volume_info_received(node, volume, now)
            }
            (Call::Claim { id }, reply) => self.joining_node_claimed(node, id, reply, sent, now),
            (Call::End, _) => {
                client.lease = None;
                self.placement_dirty = true;
                self.end_session(node, "its lease was returned".to_owned(), now);
            }
            (_, Reply::Done { room, scrubs }) => {
                client.scrubs.requested = client.scrubs.requested.max(scrubs);
                self.update_capacity(node, room, now);
            }
            (call, _) => {
                let failed =
                    NodeCallError::Refused(RefusalKind::Malformed.because("not the reply that is due"));
                self.call_failed(node, call, failed, now);
            }
        }
    }

    fn update_capacity(&mut self, node: usize, room: Room, now: Nanos) {
        let client = &mut self.nodes[node];
        (client.room, client.is_full) = (room, false);
        self.check_draining(node, now);
    }

    /// Records whether a node is draining. It is left only when the other nodes are known to be reachable, so their
    /// leases are renewed at once.
    fn check_draining(&mut self, node: usize, now: Nanos) {
        let client = &mut self.nodes[node];
        if !client.room.is_draining {
            client.draining_since = None;
        } else if client.draining_since.is_none() {
            client.draining_since = Some(now);
            let must_renew = |client: &&mut MemoryNodeClient<_>| {
                client.lease.is_some() && !client.calls.contains(&Call::Renew)
            };
            self.nodes.iter_mut().filter(must_renew).for_each(|client| client.calls.push_back(Call::Renew));
        }
    }

    fn call_failed(&mut self, node: usize, call: Call, failed: NodeCallError, now: Nanos) {
        if let Call::Grant { extent, slab } = call
            && self.extents[extent].away_mut(node, slab).is_some()
        {
            let (NodeCallError::Refused(Refusal { reason: why, .. }) | NodeCallError::Unreachable(why)) =
                failed;
            // The node joins the volume again, and is queried once more for the slabs that it retains.
            return self.lose_lease(node, why, now);
        }
        if let Call::QueryVolume | Call::Claim { .. } = call {
            let (NodeCallError::Refused(Refusal { reason: why, .. }) | NodeCallError::Unreachable(why)) =
                failed;
            return self.fail_joining(node, why, now);
        }
        let client = &mut self.nodes[node];
        if call == Call::Report {
            client.reported = None;
            // An earlier version, which does not show reports to operators.
            if matches!(&failed, NodeCallError::Refused(refusal) if refusal.kind == RefusalKind::Malformed) {
                client.supports_reports = false;
                return;
            }
        }
        match failed {
            NodeCallError::Refused(refusal)
                if refusal.kind == RefusalKind::UnknownLease || matches!(call, Call::StoreView { .. }) =>
            {
                self.lose_lease(node, refusal.reason, now);
            }
            NodeCallError::Refused(refusal) => {
                client.room.is_draining |= refusal.kind == RefusalKind::Draining;
                self.check_draining(node, now);
                let client = &mut self.nodes[node];
                if let Call::Grant { extent, slab } = call {
                    client.is_full = true;
                    client.problem = Some(refusal.reason);
                    self.extents[extent].requested_slabs.retain(|requested| *requested != (node, slab));
                    self.wake(extent);
                } else {
                    client.back_off(refusal.reason, now);
                    self.close_unconnected(node);
                }
            }
            // The lease expires at the node.
            NodeCallError::Unreachable(_) if call == Call::End => client.lease = None,
            NodeCallError::Unreachable(why) => {
                match call {
                    // The slab may have been granted, so it is returned.
                    Call::Grant { extent, slab } => {
                        client.is_full = true;
                        client.calls.push_back(Call::Return { slab });
                        self.extents[extent].requested_slabs.retain(|requested| *requested != (node, slab));
                        self.wake(extent);
                    }
                    Call::Return { .. } | Call::StoreView { .. } => client.calls.push_front(call),
                    _ => {}
                }
                self.nodes[node].back_off(why, now);
                self.close_unconnected(node);
            }
        }
    }

    /// Closes a session that the node did not accept.
    fn close_unconnected(&mut self, node: usize) {
        let client = &mut self.nodes[node];
        if let SessionState::Opened(_) = client.session {
            client.session = SessionState::Down;
        }
    }

    fn connect(&mut self, node: usize, pairs: &[farcall_link::bootstrap::QpInfo], now: Nanos) {
        let client = &mut self.nodes[node];
        let SessionState::Opened(session) = std::mem::replace(&mut client.session, SessionState::Down) else {
            return;
        };
        if let Err(error) = session.connect(pairs, &[]) {
            return client.back_off(with_sources(&error), now);
        }
        for extent in &mut self.extents {
            extent.replicas.iter_mut().for_each(|replica| register_grant(replica, node, &session));
        }
        client.session = SessionState::Up(session);
        (client.disconnected_since, client.problem) = (None, None);
        client.backoff.reset();
        self.resume_metadata_writes(node, now);
        self.wake_all();
    }

    /// Continues all operations that wait for a replica.
    fn wake_all(&mut self) {
        (0..self.extents.len()).for_each(|extent| self.wake(extent));
    }

    fn on_slab_granted(&mut self, node: usize, extent: usize, slab: u64, region: farcall_link::RemoteRegion) {
        if let Some(replica) = self.extents[extent].away_mut(node, slab)
            && region.len_bytes >= self.config.slab_bytes
        {
            replica.location = ReplicaLocation::Node { node, slab, region, grant: None };
            if let Some(session) = self.nodes[node].session() {
                register_grant(replica, node, session);
            }
            return self.wake(extent);
        }
        let is_requested = self.extents[extent].requested_slabs.contains(&(node, slab));
        self.extents[extent].requested_slabs.retain(|requested| *requested != (node, slab));
        if !is_requested || region.len_bytes < self.config.slab_bytes {
            self.nodes[node].calls.push_back(Call::Return { slab });
            return;
        }
        let location = ReplicaLocation::Node { node, slab, region, grant: None };
        let mut replica = self.new_replica(extent, location);
        if let Some(session) = self.nodes[node].session() {
            register_grant(&mut replica, node, session);
        }
        self.extents[extent].replicas.push(replica);
        self.placement_dirty = true;
        self.wake(extent);
    }

    /// Handles the end of the session with a node.
    pub(super) fn end_session(&mut self, node: usize, why: String, now: Nanos) {
        let client = &mut self.nodes[node];
        if client.disconnected_since.is_none() {
            tracing::info!(node, "a memory node is not reached: {why}");
        }
        // Dropping the session ends its requests in flight.
        client.session = SessionState::Down;
        client.back_off(why, now);
        self.forget_metadata_grant(node);
        let client = &mut self.nodes[node];
        client.disconnected_since = client.disconnected_since.or(Some(now));
        // Slabs that were not requested yet are requested from other nodes.
        let is_new = |call: &Call| match *call {
            Call::Grant { extent, slab } => self.extents[extent].away_mut(node, slab).is_none(),
            _ => false,
        };
        let (dropped, left) = std::mem::take(&mut client.calls).into_iter().partition(is_new);
        self.nodes[node].calls = left;
        self.next_maintenance_at = now;
        self.cancel_slab_requests(node, dropped);
        for replica in self.extents.iter_mut().flat_map(|extent| &mut extent.replicas) {
            if let ReplicaLocation::Node { node: holder, grant, .. } = &mut replica.location
                && *holder == node
            {
                *grant = None;
            }
        }
        self.abandon_joining(node, now);
    }

    fn cancel_slab_requests(&mut self, node: usize, calls: VecDeque<Call>) {
        for call in calls {
            if let Call::Grant { extent, slab } = call {
                self.extents[extent].requested_slabs.retain(|requested| *requested != (node, slab));
                self.wake(extent);
            }
        }
    }

    /// Handles the end of a lease: the client has lost its slabs at the node.
    pub(super) fn lose_lease(&mut self, node: usize, why: String, now: Nanos) {
        self.end_session(node, why, now);
        let client = &mut self.nodes[node];
        client.lease = None;
        client.calls.clear();
        client.is_non_member = self.metadata.is_some();
        self.placement_dirty = true;
        self.releasing.retain(|replica| replica.node() != Some(node));
        for at in 0..self.extents.len() {
            let extent = &mut self.extents[at];
            extent.requested_slabs.retain(|(requested_from, _)| *requested_from != node);
            let serials: Vec<u32> = extent
                .replicas
                .iter()
                .filter(|replica| replica.node() == Some(node))
                .map(|replica| replica.serial)
                .collect();
            for serial in serials {
                // The node may only have been unreachable, and still have the bytes.
                if self.metadata.is_some() && self.extents[at].depends_on(serial) {
                    continue;
                }
                self.remove_replica(at, serial);
                self.counts.replicas_dropped += 1;
            }
            self.wake(at);
        }
        self.mark_away(node);
    }

    /// Marks the replicas on a node as away, until the node grants their slabs again.
    pub(super) fn mark_away(&mut self, node: usize) {
        for replica in self.extents.iter_mut().flat_map(|extent| &mut extent.replicas) {
            if let ReplicaLocation::Node { node: holder, slab, .. } = replica.location
                && holder == node
            {
                replica.location = ReplicaLocation::Away { node, slab };
            }
        }
    }

    /// Renews all leases now, to query the state of the nodes.
    pub fn renew_now(&mut self) {
        for client in &mut self.nodes {
            if client.lease.is_some() && !client.calls.contains(&Call::Renew) {
                client.calls.push_back(Call::Renew);
            }
        }
    }

    /// Begins to end all leases. Nothing can be read or written afterwards.
    pub fn close(&mut self) {
        for client in &mut self.nodes {
            client.is_ending = true;
            client.retry_at = Nanos(0);
        }
    }

    /// Returns whether no lease is left after [`Engine::close`].
    pub fn is_closed(&self) -> bool {
        let is_free = |client: &MemoryNodeClient<_>| {
            client.lease.is_none()
                && !matches!(client.pending_call, Some((Call::Lease | Call::Claim { .. }, _)))
        };
        self.nodes.iter().all(is_free)
    }
}

/// Registers the slab of a replica with a session, so that requests can name it.
fn register_grant(replica: &mut Replica, node: usize, session: &Session<CompletionSink>) {
    if let ReplicaLocation::Node { node: holder, region, grant, .. } = &mut replica.location
        && *holder == node
    {
        *grant = session.grant(*region).ok();
    }
}
