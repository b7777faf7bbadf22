//! What a client knows of one node: its lease, the session with it, and what it is asked for.

use std::collections::VecDeque;
use std::time::Duration;

use farcall_io::{Handler, Session};
use farcall_link::Backoff;
use farcall_link::bootstrap::QpInfo;
use farcall_verbs::Nanos;

use super::config::{DonorStatus, LinkStatus};
use crate::wire::{LeaseKey, Mark, Redundancy, Refusal, Request, Room, VERSION};

/// Why a call to a node brought no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailed {
    /// The node refused.
    Refused(Refusal),
    /// There was no answer; it may have been done.
    Unreachable(String),
}

/// A client's side of a lease.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub key: LeaseKey,
    pub term: Duration,
    /// Until then it lasts for sure: a term after the last renewal was *sent*.
    pub until: Nanos,
}

/// How far the session with a node is.
pub(super) enum Link<H: Handler> {
    Down,
    /// Its ends here are made; the node is asked for its own.
    Opened(Session<H>),
    Up(Session<H>),
}

/// What a node is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Lease,
    Connect,
    Renew,
    /// Of a volume: what does it keep?
    Look,
    /// Its part of a volume, which calls it so.
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
    /// The mark of a volume that is to be.
    Mark {
        change: u32,
    },
    /// How redundant the address space is.
    Report,
    End,
}

/// Room for calls that wait is kept bounded by those who ask: one grant for each extent, one return for each replica.
pub(super) struct Donor<H: Handler> {
    pub address: String,
    pub lease: Option<Lease>,
    pub link: Link<H>,
    pub room: Room,
    pub calls: VecDeque<Call>,
    /// The one under way, and when it was sent.
    pub asked: Option<(Call, Nanos)>,
    /// Before that nothing is tried again.
    pub retry_at: Nanos,
    pub backoff: Backoff,
    /// When the last call was sent that it answered.
    pub heard_at: Nanos,
    /// Since when it is known to want its memory back.
    pub draining_since: Option<Nanos>,
    /// Since when there is no session.
    pub down_since: Option<Nanos>,
    pub problem: Option<String>,
    /// It refused a slab: nothing more is asked for before it was heard of again.
    pub is_full: bool,
    /// The client ends: of this node it wants nothing any more but that its lease ends.
    pub is_ending: bool,
    /// Of a volume: it is no member. Before it has been taken in, it is asked for nothing else.
    pub is_out: bool,
    /// The latest report of redundancy that it was sent; `None` if its lease has none.
    pub reported: Option<Redundancy>,
    /// Before that it gets no other report.
    pub report_at: Nanos,
    /// Whether its version knows reports.
    pub takes_reports: bool,
    /// Scrubs that were requested there since the lease began.
    pub scrubs: RequestedScrubs,
}

/// Numbers of the latest scrub that a node requested.
#[derive(Clone, Copy, Default)]
pub(super) struct RequestedScrubs {
    pub requested: u32,
    pub begun: u32,
    pub complete: u32,
    /// Pages that the latest complete one has read.
    pub pages: u64,
}

impl<H: Handler> Donor<H> {
    pub fn new(address: String, seed: u64) -> Self {
        Self {
            address,
            lease: None,
            link: Link::Down,
            room: Room::default(),
            calls: VecDeque::new(),
            asked: None,
            retry_at: Nanos(0),
            backoff: Backoff::new(Duration::from_millis(5), Duration::from_millis(500), seed),
            heard_at: Nanos(0),
            draining_since: None,
            down_since: Some(Nanos(0)),
            problem: None,
            is_full: false,
            is_ending: false,
            is_out: false,
            reported: None,
            report_at: Nanos(0),
            takes_reports: true,
            scrubs: RequestedScrubs::default(),
        }
    }

    /// A lease that the node has just granted: it knows no report of its client.
    pub fn begin_lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
        (self.reported, self.scrubs) = (None, RequestedScrubs::default());
    }

    pub const fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    pub const fn session(&self) -> Option<&Session<H>> {
        match &self.link {
            Link::Up(session) => Some(session),
            _ => None,
        }
    }

    /// For how long there has been no session.
    pub fn down_for(&self, now: Nanos) -> Duration {
        self.down_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Whether a slab can be asked for.
    pub const fn has_room(&self) -> bool {
        self.is_up() && !self.is_out && !self.is_full && !self.room.is_draining && self.room.free > 0
    }

    /// When its lease is renewed: twice in a term.
    pub fn renew_at(&self) -> Option<Nanos> {
        self.lease.map(|lease| Nanos(lease.until.0.saturating_sub(lease.term.as_nanos() as u64 * 2 / 3)))
    }

    /// Something failed: it is tried again later.
    pub fn back_off(&mut self, problem: String, now: Nanos) {
        self.problem = Some(problem);
        self.retry_at = now + self.backoff.next_delay() + Duration::from_millis(1);
    }

    /// What it is to be asked for next, if anything.
    pub fn next_call(&mut self, now: Nanos) -> Option<Call> {
        if self.asked.is_some() || now < self.retry_at {
            return None;
        }
        if self.is_ending {
            return self.lease.map(|_| Call::End);
        }
        if self.lease.is_none() {
            return if self.is_out { self.calls.pop_front() } else { Some(Call::Lease) };
        }
        if self.renew_at().is_some_and(|at| at <= now) {
            return Some(Call::Renew);
        }
        if let Link::Opened(_) = self.link {
            return Some(Call::Connect);
        }
        self.calls.pop_front()
    }

    /// A call as the node reads it; `None` if the lease that it was for is gone.
    pub fn request(
        &self,
        call: Call,
        name: &str,
        pairs: Vec<QpInfo>,
        mark: Option<&Mark>,
    ) -> Option<Request> {
        if call == Call::Lease {
            return Some(Request::Lease { version: VERSION, name: name.to_owned() });
        }
        let lease = self.lease?.key;
        Some(match call {
            // Not of a lease.
            Call::Lease | Call::Look | Call::Claim { .. } => return None,
            Call::Connect => Request::Connect { lease, pairs },
            Call::Renew => Request::Renew { lease },
            Call::Grant { slab, .. } => Request::Grant { lease, slab },
            Call::Return { slab } => Request::Return { lease, slab },
            // Another one has taken its place, if it is not that.
            Call::Mark { change } => {
                Request::Mark { lease, mark: mark.filter(|mark| mark.change == change)?.clone() }
            }
            Call::Report => Request::Report { lease, redundancy: self.reported? },
            Call::End => Request::End { lease },
        })
    }

    /// When it wants to be looked at again.
    pub fn due(&self) -> Option<Nanos> {
        let wants = match self.is_ending {
            true => self.lease.is_some(),
            false => self.lease.is_none() || !self.is_up() || !self.calls.is_empty(),
        };
        let retry = (wants && self.asked.is_none()).then_some(self.retry_at);
        let renew = if self.asked.is_none() { self.renew_at().map(|at| at.max(self.retry_at)) } else { None };
        let lapses = self.lease.map(|lease| lease.until);
        Nanos::earlier(Nanos::earlier(retry, renew), lapses)
    }

    pub fn status(&self, replicas: usize) -> DonorStatus {
        let link = match (&self.link, self.room.is_draining) {
            _ if self.is_out => LinkStatus::Down,
            (Link::Up(_), true) => LinkStatus::Draining,
            (Link::Up(_), false) => LinkStatus::Up,
            _ => LinkStatus::Down,
        };
        DonorStatus { address: self.address.clone(), link, replicas, problem: self.problem.clone() }
    }
}
