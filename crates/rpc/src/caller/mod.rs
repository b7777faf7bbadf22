//! The client's side of RF-RPC: an endpoint that writes requests into the server's mailbox and fetches, or is sent, the
//! results.
//!
//! A turn ([`Caller::progress`]) reads: give up what is late, send what may be sent, post READs, take completions, take
//! responses, wake the server if it seems to sleep. Messages are numbered; message n uses slot n mod window in both
//! directions; the server answers a connection's messages in order.

mod calls;
mod connect;
mod frames;
mod modes;
mod path;
mod probe;
mod receive;
mod send;
mod sleep;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use farcall_link::bootstrap::Welcome;
use farcall_link::{Completed, Nic, Peer, Region, RegionId};
use farcall_stats::Block;
use farcall_verbs::{CompChannel, CqInitAttr, Nanos, RawCq, Wc};

use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::error::{Broken, CallError, UnknownBecause};
use crate::tune::Tuner;
use crate::wire::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, Seq, Slots, TailKey};
pub use calls::{CallId, CallOptions};
use calls::{Calls, State};
use frames::{Fetch, Frames};
use modes::Modes;
pub use path::{FetchThenReply, Path, ServerReply};

/// A call that ended.
#[derive(Debug)]
pub struct Completion<'a> {
    /// Which.
    pub call: CallId,
    /// Its result, lent until the next one is asked for, or why there is none.
    pub result: Result<&'a [u8], CallError>,
}

/// The connection as it is now.
struct Link {
    peer: Peer,
    local_id: RegionId,
    welcome: Welcome,
    tail_key: TailKey,
    checksum: bool,
    requests: Slots,
    responses: Slots,
    /// Where the slots begin, in the local region, that READs land in.
    fetch_base: usize,
}

/// Counters and limits of waking the server.
struct Kicks {
    /// When to wake it next if nothing comes.
    at: Option<Nanos>,
    /// The pause after that.
    pause: Duration,
    /// Wake-ups since the last response.
    unanswered: u32,
    /// Messages before this one are known to the server: it was woken after they were sent.
    covered: Seq,
    /// Responses before this one come by WRITE with a wake-up, whatever their mode.
    pushed: Seq,
    /// Whether the owner is about to sleep, or sleeps.
    armed: bool,
}

const COMPLETIONS_AT_ONCE: usize = 16;

/// The client endpoint: one connection to one server thread, generic over the response path.
pub struct Caller<P> {
    nic: Nic,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    config: CallerConfig,
    /// Requests are composed and READs land here: nobody else's.
    local: Arc<Region>,
    /// The server may WRITE here.
    replies: Arc<Region>,
    /// A queue pair that is made but not connected.
    fresh: Option<(Peer, RegionId)>,
    link: Option<Link>,
    broken: Option<Broken>,
    /// Kept to go on with the session.
    last_welcome: Option<Welcome>,
    closing: Vec<Peer>,
    frames: Frames,
    calls: Calls,
    /// Calls with messages still to be sent.
    to_send: VecDeque<u16>,
    /// Results that the server may forget.
    to_release: VecDeque<u64>,
    modes: Modes,
    tuner: Tuner,
    kicks: Kicks,
    next_fetch: Option<Nanos>,
    /// How many messages to fetch at once.
    fetch_ahead: u32,
    reads_in_flight: u32,
    credits: u32,
    turns_to_poll: u32,
    going_away: bool,
    wcs: [Wc; COMPLETIONS_AT_ONCE],
    counters: Block<Counters>,
    path: std::marker::PhantomData<P>,
}

impl<P: Path> Caller<P> {
    /// A client endpoint on a device. It is connected by [`Caller::hello`] and [`Caller::welcome`].
    ///
    /// # Errors
    /// If memory, completion queue or channel cannot be had.
    pub fn new(nic: Nic, mut config: CallerConfig) -> Result<Self, farcall_verbs::Error> {
        config.plan.response = P::AXIS;
        let geometry = config.plan.geometry;
        geometry.check().map_err(|why| farcall_verbs::Error::invalid("create caller", why))?;
        let channel = nic.context.create_comp_channel()?;
        let cqe = 16 * u32::from(geometry.window) + 256;
        let cq = nic.context.create_cq(&CqInitAttr { cqe, channel: Some(&*channel) })?;
        let (local, replies) = connect::regions(&nic, geometry)?;
        let tuner = Tuner::new(config.fetch_retries_max, config.fetch_bytes, geometry.response_slot_bytes);
        Ok(Self {
            nic,
            cq,
            channel,
            local,
            replies,
            fresh: None,
            link: None,
            broken: None,
            last_welcome: None,
            closing: Vec::new(),
            frames: Frames::new(geometry.window),
            calls: Calls::new(geometry.window),
            to_send: VecDeque::with_capacity(usize::from(geometry.window)),
            to_release: VecDeque::new(),
            modes: Modes::new(config.switch_after),
            tuner,
            kicks: Kicks {
                at: None,
                pause: config.kick_after,
                unanswered: 0,
                covered: Seq::FIRST,
                pushed: Seq::FIRST,
                armed: false,
            },
            next_fetch: None,
            fetch_ahead: 1,
            reads_in_flight: 0,
            credits: u32::from(geometry.window),
            turns_to_poll: 0,
            going_away: false,
            wcs: [Wc::default(); COMPLETIONS_AT_ONCE],
            counters: Block::new("rpc client", 0),
            config,
            path: std::marker::PhantomData,
        })
    }

    /// Begins a call. The payload is taken over at once; the outcome comes from [`Caller::next_completion`]. Calls made
    /// while the connection is broken wait for the next one.
    ///
    /// # Errors
    /// If as many calls as the window holds are not over, or the request is longer than the server takes.
    #[inline]
    pub fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        options: CallOptions,
        now: Nanos,
    ) -> Result<CallId, CallError> {
        if let Some(link) = &self.link {
            let max_bytes = link.welcome.request_bytes_max as usize;
            if payload.len() > max_bytes {
                return Err(CallError::RequestTooLarge { len_bytes: payload.len(), max_bytes });
            }
        }
        let at = self.calls.begin(method, options)?;
        self.counters.calls.increment();
        let id = self.calls.get(at).id;
        if !self.send_at_once(at, payload, now) {
            self.calls.get(at).request.extend_from_slice(payload);
            self.to_send.push_back(at);
        }
        Ok(id)
    }

    /// The next call that ended.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion<'_>> {
        let record = self.calls.next_done()?;
        let result = match record.error.take() {
            None => Ok(&record.reply[..]),
            Some(error) => Err(error),
        };
        Some(Completion { call: record.id, result })
    }

    /// Whether [`Caller::next_completion`] would give something.
    #[inline]
    pub fn has_completion(&self) -> bool {
        self.calls.has_done()
    }

    /// How many calls can be begun now.
    pub fn available(&self) -> usize {
        self.calls.available()
    }

    /// How many calls have no outcome yet.
    pub fn pending(&self) -> usize {
        self.calls.pending()
    }

    /// When the first of the calls under way may have to be given up; looked at by each turn.
    pub fn earliest_deadline(&self) -> Option<Nanos> {
        self.calls.earliest_deadline
    }

    /// Gives a call up: its outcome will not be told. Its slot is used again only after the server has answered. Returns
    /// whether it is certain that the call was and will not be executed.
    pub fn cancel(&mut self, call: CallId) -> bool {
        let Some(at) = self.calls.find(call) else { return false };
        self.counters.cancelled.increment();
        let never_sent = !self.calls.get(at).may_be_executed;
        self.stop_sending(at);
        self.calls.forget(at);
        never_sent
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// R and F as they are now.
    pub fn tuning(&self) -> (u32, u32) {
        (self.tuner.retries_max(), self.tuner.fetch_bytes() as u32)
    }

    /// Gives the tuner what the probe measured.
    pub fn set_profile(&mut self, profile: crate::tune::LinkProfile) {
        self.tuner.set_profile(profile);
    }

    /// Why there is no connection, if there is none.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Whether there is a connection.
    pub fn is_open(&self) -> bool {
        self.link.is_some()
    }

    /// Whether the server said that it drains.
    pub fn is_going_away(&self) -> bool {
        self.going_away
    }

    /// The server's welcome of the last connection.
    pub fn last_welcome(&self) -> Option<&Welcome> {
        self.last_welcome.as_ref()
    }

    /// The server said, over the bootstrap channel, that it drains.
    pub fn set_going_away(&mut self) {
        self.going_away = true;
    }

    /// Takes completions: READs that landed, free places in the send queue, wake-ups, failures.
    fn poll_completions(&mut self) -> bool {
        let Ok(got) = self.cq.poll(&mut self.wcs).map_err(|e| self.break_off(Broken::Verbs(e.to_string())))
        else {
            return true;
        };
        for at in 0..got {
            let wc = self.wcs[at];
            self.completed(&wc);
        }
        got > 0
    }

    #[inline]
    fn completed(&mut self, wc: &Wc) {
        let Some(link) = self.link.as_mut().filter(|link| link.peer.qp_num() == wc.qp_num) else {
            self.completed_of_old(wc);
            return;
        };
        match link.peer.complete(wc) {
            Completed::Send { tag, .. } if tag > 0 => {
                self.reads_in_flight -= 1;
                if let Some(frame) = self.frames.by_slot(tag - 1)
                    && let Fetch::Posted(bytes) = frame.fetch
                    && link.peer.is_done(frame.read)
                {
                    frame.fetch = Fetch::Landed(bytes);
                }
            }
            Completed::Send { .. } | Completed::Flushed | Completed::Woken { .. } => {}
            Completed::Failed(status) => self.break_off(Broken::Completion(status)),
        }
    }

    #[cold]
    fn completed_of_old(&mut self, wc: &Wc) {
        for peer in &mut self.closing {
            if peer.qp_num() == wc.qp_num {
                peer.complete(wc);
            }
        }
    }

    /// The connection ended. Calls stay: those that were sent wait for the session to go on, the others for any
    /// connection.
    pub fn break_off(&mut self, why: Broken) {
        let Some(mut link) = self.link.take() else { return };
        self.counters.connections_closed.increment();
        link.peer.close();
        self.broken = Some(why);
        // Results may have been placed by the server's last act.
        self.link = Some(link);
        while self.receive_placed() {}
        if let Some(link) = self.link.take() {
            self.closing.push(link.peer);
        }
        self.reads_in_flight = 0;
        for seq in self.frames.numbers() {
            self.frames.at(seq).fetch = Fetch::None;
        }
    }

    /// Ends all calls: there will be no further connection.
    pub fn fail_all(&mut self, why: &Broken) {
        self.to_send.clear();
        self.to_release.clear();
        for at in 0..self.calls.records.len() as u16 {
            if self.calls.get(at).state != State::Pending {
                continue;
            }
            let error = if self.calls.get(at).may_be_executed {
                self.counters.outcomes_unknown.increment();
                CallError::OutcomeUnknown(UnknownBecause::Disconnected(why.clone()))
            } else {
                CallError::NotSent(why.clone())
            };
            self.calls.finish(at, Some(error));
        }
        if self.link.is_none() {
            self.forget_frames();
        }
    }

    /// No message is in flight any more: the session they belong to is gone.
    fn forget_frames(&mut self) {
        for seq in self.frames.numbers() {
            let frame = *self.frames.at(seq);
            if frame.purpose != frames::Purpose::Release {
                self.calls.message_over(frame.call);
            }
        }
        self.frames = Frames::new(self.frames.window() as u16);
    }

    /// Ends the calls whose time has come.
    fn expire(&mut self, now: Nanos) {
        if self.calls.earliest_deadline.is_none_or(|earliest| now < earliest) {
            return;
        }
        let mut earliest: Option<Nanos> = None;
        for at in 0..self.calls.records.len() as u16 {
            let record = self.calls.get(at);
            let Some(deadline) = record.options.deadline.filter(|_| record.state == State::Pending) else {
                continue;
            };
            if now < deadline {
                earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
                continue;
            }
            let error = if record.may_be_executed {
                self.counters.outcomes_unknown.increment();
                CallError::OutcomeUnknown(UnknownBecause::Deadline)
            } else {
                CallError::DeadlineExceeded
            };
            self.counters.deadlines_exceeded.increment();
            self.stop_sending(at);
            self.calls.finish(at, Some(error));
        }
        self.calls.earliest_deadline = earliest;
    }

    /// No further message of a call is sent.
    fn stop_sending(&mut self, at: u16) {
        let record = self.calls.get(at);
        if record.total_bytes > record.reply.len() {
            // It was receiving a long result: the server keeps the rest.
            self.to_release.push_back(record.id.0);
        }
        self.to_send.retain(|waiting| *waiting != at);
    }
}

fn slots(geometry: farcall_link::Geometry) -> (Slots, Slots) {
    (
        Slots::new(geometry.window, geometry.request_slot_bytes, REQUEST_HEADER_BYTES),
        Slots::new(geometry.window, geometry.response_slot_bytes, RESPONSE_HEADER_BYTES),
    )
}
