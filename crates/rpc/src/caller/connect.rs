//! How a client's connection begins, and how a session goes on over a new one.

use std::sync::Arc;

use farcall_link::bootstrap::{Features, Grants, Hello, Resume, Welcome};
use farcall_link::{Geometry, Nic, Peer, PeerConfig, Region};
use farcall_verbs::{Access, Error, Nanos};

use super::frames::{Fetch, Frames, Purpose};
use super::{Caller, Link, Path, State, slots};
use crate::error::{CallError, ConnectError, UnknownBecause};
use crate::wire::{Mode, Seq, TailKey};

/// Local memory (requests, then landing places of READs) and memory for replies.
pub(super) fn regions(nic: &Nic, geometry: Geometry) -> Result<(Arc<Region>, Arc<Region>), Error> {
    let local_bytes = geometry.mailbox_bytes() + geometry.responses_bytes();
    let local = Region::alloc(&*nic.pd, local_bytes, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let replies = Region::alloc(&*nic.pd, geometry.responses_bytes(), access)?;
    Ok((Arc::new(local), Arc::new(replies)))
}

impl<P: Path> Caller<P> {
    /// Makes a queue pair and says hello. With an earlier connection, asks to go on with its session.
    ///
    /// # Errors
    /// If a queue pair or memory cannot be had, or the old connection does not drain.
    pub fn hello(&mut self) -> Result<Hello, ConnectError> {
        self.config.plan.preset()?;
        self.break_off(crate::error::Broken::Closed);
        self.drain_old()?;
        let geometry = self.config.plan.geometry;
        let window = u32::from(geometry.window);
        let config = PeerConfig {
            send_depth: 4 * window + 64,
            recv_depth: 2 * window + 16,
            signal_every: self.config.plan.memory.signal_every.clamp(1, geometry.window.max(2)),
            inline_max_bytes: self.config.plan.memory.inline_max_bytes,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let mut peer = Peer::new(&self.nic, &*self.cq, config)?;
        let local_id = peer.attach(Arc::clone(&self.local));
        peer.attach(Arc::clone(&self.replies));
        let must_check = !peer.places_in_order(&self.replies) || self.config.checksum;
        let hello = Hello {
            provider: self.nic.provider.to_owned(),
            qp: peer.info(&self.nic),
            grants: Grants { inbox: self.replies.remote(), ..Grants::default() },
            plan: self.config.plan,
            features: if must_check { Features::KICK | Features::CHECKSUM } else { Features::KICK },
            thread: self.config.thread,
            resume: self.last_welcome.as_ref().map(|welcome| Resume {
                session: welcome.session,
                secret: welcome.secret,
                incarnation: welcome.incarnation,
                oldest_seq: self.frames.head.0,
            }),
        };
        self.fresh = Some((peer, local_id));
        Ok(hello)
    }

    /// Waits, a bounded number of looks, for the end of old connections' work requests. Memory that a stopped server may
    /// still touch is replaced.
    fn drain_old(&mut self) -> Result<(), ConnectError> {
        const LOOKS: u32 = 100_000;
        for _ in 0..LOOKS {
            if self.closing.iter().all(Peer::is_drained) {
                break;
            }
            self.poll_completions();
        }
        if !self.closing.iter().all(Peer::is_drained) {
            let what = "the old queue pair does not drain; try again";
            return Err(Error::invalid("reconnect", what).into());
        }
        if !self.closing.iter().all(Peer::is_quiesced) {
            self.replace_memory()?;
        }
        self.closing.clear();
        Ok(())
    }

    fn replace_memory(&mut self) -> Result<(), Error> {
        let geometry = self.config.plan.geometry;
        let (local, replies) = regions(&self.nic, geometry)?;
        let mut requests = Vec::new();
        self.local.append_to(0, geometry.mailbox_bytes(), &mut requests);
        local.copy_in(0, &requests);
        (self.local, self.replies) = (local, replies);
        Ok(())
    }

    /// Takes the server's welcome: connects, and goes on with the session if the server does. If it does not (it
    /// restarted, or forgot), calls that may have been executed end with an unknown outcome; the others are sent now.
    ///
    /// # Errors
    /// If the welcome is impossible or the queue pair does not connect; say hello again then.
    pub fn welcome(&mut self, welcome: Welcome, now: Nanos) -> Result<(), ConnectError> {
        let Some((mut peer, local_id)) = self.fresh.take() else {
            return Err(ConnectError::BadWelcome("nobody said hello".into()));
        };
        let geometry = self.check(&welcome)?;
        peer.connect(&self.nic, &welcome.qp)?;
        let (requests, responses) = slots(geometry);
        let link = Link {
            peer,
            local_id,
            tail_key: TailKey(welcome.tail_key),
            checksum: welcome.features.contains(Features::CHECKSUM),
            requests,
            responses,
            fetch_base: geometry.mailbox_bytes(),
            welcome: welcome.clone(),
        };
        match welcome.resumed {
            Some(resumed) => self.resume_from(Seq(resumed.next_seq))?,
            None => self.begin_session(geometry),
        }
        self.config.plan.geometry = geometry;
        self.link = Some(link);
        self.broken = None;
        self.going_away = false;
        self.last_welcome = Some(welcome);
        self.counters.connections_opened.increment();
        self.reset_waking(now);
        Ok(())
    }

    fn reset_waking(&mut self, now: Nanos) {
        self.next_fetch = None;
        self.fetch_ahead = 1;
        self.reads_in_flight = 0;
        self.kicks.unanswered = 0;
        self.kicks.pause = self.config.kick_after;
        self.kicks.at = (!self.frames.is_empty()).then(|| now + self.kicks.pause);
        self.kicks.covered = self.frames.head;
        self.kicks.pushed = self.frames.head;
    }

    /// A foreign welcome is checked before anything is changed.
    fn check(&self, welcome: &Welcome) -> Result<Geometry, ConnectError> {
        let bad = |why: String| Err(ConnectError::BadWelcome(why));
        let (geometry, ours) = (welcome.plan.geometry, self.config.plan.geometry);
        if let Err(why) = geometry.check() {
            return bad(why);
        }
        if geometry.min(ours) != geometry {
            return bad(format!("slots {geometry:?} exceed what we asked for, {ours:?}"));
        }
        if !self.frames.is_empty() && welcome.resumed.is_some() && geometry != ours {
            return bad("a session that goes on has other slots than before".into());
        }
        let grants = &welcome.grants;
        if !grants.inbox.holds(0, geometry.mailbox_bytes() as u64)
            || !grants.results.holds(0, geometry.responses_bytes() as u64)
        {
            return bad("the regions granted are smaller than the slots".into());
        }
        if welcome.plan.distance(&self.config.plan) != 0 {
            return bad(format!("the plan is another one: {:?}", welcome.plan));
        }
        if let (Some(resumed), Some(before)) = (welcome.resumed, &self.last_welcome) {
            let executed = Seq(resumed.next_seq).distance_from(self.frames.head);
            if executed > self.frames.outstanding() || welcome.session != before.session {
                return bad(format!("the session goes on at message {}", resumed.next_seq));
            }
        } else if welcome.resumed.is_some() {
            return bad("a session goes on that never was".into());
        }
        Ok(geometry)
    }

    /// Messages below `server_next` were executed: their responses wait in the server's slots. The others are sent again.
    fn resume_from(&mut self, server_next: Seq) -> Result<(), ConnectError> {
        self.counters.sessions_resumed.increment();
        self.frames.forget_tickets();
        for seq in self.frames.numbers() {
            let frame = self.frames.at(seq);
            frame.fetch = Fetch::None;
            frame.failed_fetches = 0;
            frame.corrupt_looks = 0;
            // It may be fetched under any preset.
            if seq.is_before(server_next) {
                frame.mode = Mode::Fetch;
            }
        }
        self.frames.resend = server_next;
        Ok(())
    }

    /// Nothing of an earlier session goes on.
    fn begin_session(&mut self, geometry: Geometry) {
        let mut again: Vec<u16> = Vec::new();
        for seq in self.frames.numbers() {
            let frame = *self.frames.at(seq);
            if frame.purpose != Purpose::Release {
                self.calls.message_over(frame.call);
            }
        }
        self.frames = Frames::new(geometry.window);
        self.credits = u32::from(geometry.window);
        self.to_release.clear();
        self.to_send.clear();
        for at in 0..self.calls.records.len() as u16 {
            let record = self.calls.get(at);
            if record.state != State::Pending {
                continue;
            }
            if record.may_be_executed {
                self.counters.outcomes_unknown.increment();
                let why = UnknownBecause::ServerRestarted;
                self.calls.finish(at, Some(CallError::OutcomeUnknown(why)));
            } else {
                record.sent_bytes = 0;
                again.push(at);
            }
        }
        // In the order of their beginning.
        again.sort_by_key(|at| self.calls.get(*at).id);
        self.to_send.extend(again);
    }
}
