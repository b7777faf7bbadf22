//! Client-side state of one node: its lease, the session with it, and the calls to it.

use std::collections::VecDeque;
use std::time::Duration;

use farcall_io::{Handler, Session};
use farcall_link::Backoff;
use farcall_link::bootstrap::QpInfo;
use farcall_verbs::Nanos;

use super::config::{LinkStatus, MemoryNodeStatus};
use crate::wire::{LeaseKey, MembershipView, Redundancy, Refusal, Request, Room, VERSION};

/// Reason why a call to a node failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeCallError {
    /// The node refused.
    Refused(Refusal),
    /// No reply arrived; the node may have executed the request.
    Unreachable(String),
}

/// Client-side state of a lease.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub key: LeaseKey,
    pub term: Duration,
    /// Time until which the lease is certainly valid: one term after the last renewal was *sent*.
    pub until: Nanos,
}

/// State of the session with a node.
pub(super) enum SessionState<H: Handler> {
    Down,
    /// The local queue pairs exist; those of the node are being requested.
    Opened(Session<H>),
    Up(Session<H>),
}

/// A call to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Lease,
    Connect,
    Renew,
    /// Queries the state of a volume.
    QueryVolume,
    /// Claims the node's part of a volume, in which it has this identifier.
    Claim {
        id: u64,
    },
    Grant {
        extent: usize,
        slab: u64,
    },
    Return {
        slab: u64,
    },
    /// Stores the proposed membership view of a volume that has this number.
    StoreView {
        change: u32,
    },
    /// Reports the redundancy of the address space.
    Report,
    End,
}

/// State of one node. The queue of calls is bounded by its producers: one grant per extent, one return per replica.
pub(super) struct MemoryNodeClient<H: Handler> {
    pub address: String,
    pub lease: Option<Lease>,
    pub session: SessionState<H>,
    pub room: Room,
    pub calls: VecDeque<Call>,
    /// The call in progress, and the time at which it was sent.
    pub pending_call: Option<(Call, Nanos)>,
    /// Earliest time of the next call.
    pub retry_at: Nanos,
    pub backoff: Backoff,
    /// Time at which the latest call that succeeded was sent.
    pub last_reply_at: Nanos,
    /// Time since which it is known to be draining; `None` if it is not.
    pub draining_since: Option<Nanos>,
    /// Time since which there is no session; `None` if there is one.
    pub disconnected_since: Option<Nanos>,
    pub problem: Option<String>,
    /// `true` after it refused a slab: no slab is requested until a later reply states its capacity.
    pub is_full: bool,
    /// `true` if the client is closing: the only call left is the end of the lease.
    pub is_ending: bool,
    /// `true` if the node is not a member of the volume. Until it has joined it receives only the calls of its claim.
    pub is_non_member: bool,
    /// Latest report of redundancy sent to it; `None` if none was sent under this lease.
    pub reported: Option<Redundancy>,
    /// Earliest time of the next report.
    pub report_at: Nanos,
    /// `true` unless its version does not support reports.
    pub supports_reports: bool,
    /// Scrubs requested at the node since the lease began.
    pub scrubs: RequestedScrubs,
}

/// Sequence numbers of the scrubs that a node requested.
#[derive(Clone, Copy, Default)]
pub(super) struct RequestedScrubs {
    pub requested: u32,
    pub begun: u32,
    pub complete: u32,
    /// Pages read by the latest completed scrub.
    pub pages: u64,
}

impl<H: Handler> MemoryNodeClient<H> {
    pub fn new(address: String, seed: u64) -> Self {
        Self {
            address,
            lease: None,
            session: SessionState::Down,
            room: Room::default(),
            calls: VecDeque::new(),
            pending_call: None,
            retry_at: Nanos(0),
            backoff: Backoff::new(Duration::from_millis(5), Duration::from_millis(500), seed),
            last_reply_at: Nanos(0),
            draining_since: None,
            disconnected_since: Some(Nanos(0)),
            problem: None,
            is_full: false,
            is_ending: false,
            is_non_member: false,
            reported: None,
            report_at: Nanos(0),
            supports_reports: true,
            scrubs: RequestedScrubs::default(),
        }
    }

    /// Records a newly granted lease, under which the node has no report yet.
    pub fn begin_lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
        (self.reported, self.scrubs) = (None, RequestedScrubs::default());
    }

    pub const fn is_up(&self) -> bool {
        matches!(self.session, SessionState::Up(_))
    }

    pub const fn session(&self) -> Option<&Session<H>> {
        match &self.session {
            SessionState::Up(session) => Some(session),
            _ => None,
        }
    }

    /// Returns the time for which there has been no session.
    pub fn disconnected_for(&self, now: Nanos) -> Duration {
        self.disconnected_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns whether a slab can be requested.
    pub const fn has_room(&self) -> bool {
        self.is_up() && !self.is_non_member && !self.is_full && !self.room.is_draining && self.room.free > 0
    }

    /// Returns the time of the next renewal, a third of the term after the previous one; `None` without a lease.
    pub fn renew_at(&self) -> Option<Nanos> {
        self.lease.map(|lease| Nanos(lease.until.0.saturating_sub(lease.term.as_nanos() as u64 * 2 / 3)))
    }

    /// Records an error and delays the next call.
    pub fn back_off(&mut self, problem: String, now: Nanos) {
        self.problem = Some(problem);
        self.retry_at = now + self.backoff.next_delay() + Duration::from_millis(1);
    }

    /// Returns the next call, if one is due.
    pub fn next_call(&mut self, now: Nanos) -> Option<Call> {
        if self.pending_call.is_some() || now < self.retry_at {
            return None;
        }
        if self.is_ending {
            return self.lease.map(|_| Call::End);
        }
        if self.lease.is_none() {
            return if self.is_non_member { self.calls.pop_front() } else { Some(Call::Lease) };
        }
        if self.renew_at().is_some_and(|at| at <= now) {
            return Some(Call::Renew);
        }
        if let SessionState::Opened(_) = self.session {
            return Some(Call::Connect);
        }
        self.calls.pop_front()
    }

    /// Returns the message of a call; `None` if its lease has ended.
    pub fn request(
        &self,
        call: Call,
        name: &str,
        pairs: Vec<QpInfo>,
        view: Option<&MembershipView>,
    ) -> Option<Request> {
        if call == Call::Lease {
            return Some(Request::Lease { version: VERSION, name: name.to_owned() });
        }
        let lease = self.lease?.key;
        Some(match call {
            // These calls need no lease.
            Call::Lease | Call::QueryVolume | Call::Claim { .. } => return None,
            Call::Connect => Request::Connect { lease, pairs },
            Call::Renew => Request::Renew { lease },
            Call::Grant { slab, .. } => Request::Grant { lease, slab },
            Call::Return { slab } => Request::Return { lease, slab },
            // `None` if another view has replaced this one.
            Call::StoreView { change } => {
                Request::StoreView { lease, view: view.filter(|view| view.change == change)?.clone() }
            }
            Call::Report => Request::Report { lease, redundancy: self.reported? },
            Call::End => Request::End { lease },
        })
    }

    /// Returns the time at which the state must be checked again.
    pub fn due(&self) -> Option<Nanos> {
        let wants = match self.is_ending {
            true => self.lease.is_some(),
            false => self.lease.is_none() || !self.is_up() || !self.calls.is_empty(),
        };
        let retry = (wants && self.pending_call.is_none()).then_some(self.retry_at);
        let renew =
            if self.pending_call.is_none() { self.renew_at().map(|at| at.max(self.retry_at)) } else { None };
        let lapses = self.lease.map(|lease| lease.until);
        Nanos::earlier(Nanos::earlier(retry, renew), lapses)
    }

    pub fn status(&self, replicas: usize) -> MemoryNodeStatus {
        let link = match (&self.session, self.room.is_draining) {
            _ if self.is_non_member => LinkStatus::Down,
            (SessionState::Up(_), true) => LinkStatus::Draining,
            (SessionState::Up(_), false) => LinkStatus::Up,
            _ => LinkStatus::Down,
        };
        MemoryNodeStatus { address: self.address.clone(), link, replicas, problem: self.problem.clone() }
    }
}
