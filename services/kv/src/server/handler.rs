//! A server thread that answers RPC clients, and memcached clients beside them.

use super::DRAIN_TIMEOUT;
use super::upkeep::Upkeep;
use crate::front_end::FrontEnd;
use crate::store::{Clock, Partition};
use crate::wire::{ReplySink, Service};
use farcall_rpc::{Call, Handler, HandlerError, Reply, Responder, ResponderParts, ThreadEndpoint};
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Next, WaitSet};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Turns between two looks at sockets while memcached clients are connected to this thread.
const TURNS_PER_LOOK: u32 = 64;
/// Between two looks when none is: a new one, or a command that another thread forwards. A look is a system call.
const LOOK_PERIOD: Duration = Duration::from_micros(50);
/// Between two looks if there is no socket: only upkeep.
const UPKEEP_PERIOD: Duration = Duration::from_millis(10);
/// An idle thread wakes this often for upkeep.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Answers calls to one partition.
pub(super) struct KvHandler {
    service: Service,
    /// The server's time at time zero of the thread's clock.
    epoch_ms: u64,
}

/// What runs in a thread: the responder, the thread's sockets, upkeep.
pub(super) struct KvEndpoint {
    responder: Responder<KvHandler, MonotonicClock>,
    upkeep: Upkeep,
    clock: Clock,
    /// None if the server has no memcached front end at all.
    front_end: Option<FrontEnd>,
    turns_to_look: u32,
    next_look: Nanos,
    /// The next look is the last before sleeping.
    is_armed: bool,
    drain: Option<Drain>,
}

/// How far the drain of the front end is.
struct Drain {
    until: Nanos,
    is_done: bool,
}

impl KvEndpoint {
    /// Serves `partition`. To be made in the thread that runs it, when its clock starts.
    pub(super) fn new(
        parts: ResponderParts,
        partition: Partition,
        front_end: Option<FrontEnd>,
        clock: Clock,
    ) -> farcall_verbs::Result<Self> {
        Ok(Self {
            upkeep: Upkeep::new(&partition),
            responder: parts
                .with(KvHandler { service: Service::new(partition), epoch_ms: clock.now_ms() })?,
            clock,
            front_end,
            turns_to_look: 0,
            next_look: Nanos::default(),
            is_armed: false,
            drain: None,
        })
    }

    /// Does what was put off while calls came; returns whether a socket had work.
    fn look(&mut self, now: Nanos) -> Next {
        let now_ms = self.clock.now_ms();
        // The thread's clock is calibrated, and may drift.
        let handler = self.responder.handler();
        handler.epoch_ms = now_ms.saturating_sub(now.0 / 1_000_000);
        let partition = handler.service.partition();
        self.upkeep.run(partition, || now_ms);
        if std::mem::take(&mut self.is_armed) {
            self.upkeep.publish(partition);
        }
        let Some(front_end) = &mut self.front_end else {
            self.next_look = now + UPKEEP_PERIOD;
            return Next::Idle { until: Some(now + SLEEP_MAX) };
        };
        self.next_look = now + LOOK_PERIOD;
        // A front end that fails here fails again at the next look; its own connections are closed by then.
        let any = front_end.poll(partition, || now_ms, Some(Duration::ZERO)).is_ok_and(|turns| turns > 0);
        if let Some(drain) = &mut self.drain {
            drain.is_done = (!any && front_end.is_drained()) || now >= drain.until;
        }
        let sleep = front_end.rests_for().map_or(SLEEP_MAX, |rest| rest.min(SLEEP_MAX));
        if any { Next::Again } else { Next::Idle { until: Some(now + sleep) } }
    }

    fn has_clients(&self) -> bool {
        self.front_end.as_ref().is_some_and(|front_end| front_end.connections() > 0)
    }
}

impl Handler for KvHandler {
    #[inline]
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let now_ms = self.epoch_ms + call.arrived().0 / 1_000_000;
        self.service
            .handle(call.method(), call.payload(), reply, now_ms)
            .map_err(|error| HandlerError::new(error.code(), error.to_string()))
    }
}

impl KvEndpoint {
    /// Looks at the sockets, unless it did so a moment ago.
    #[inline]
    fn look_if_due(&mut self, now: Nanos) -> Next {
        if now >= self.next_look || self.is_armed {
            return self.look(now);
        }
        self.turns_to_look = self.turns_to_look.saturating_sub(1);
        if self.turns_to_look > 0 {
            return Next::IDLE;
        }
        self.turns_to_look = TURNS_PER_LOOK;
        if self.has_clients() { self.look(now) } else { Next::IDLE }
    }
}

impl Endpoint for KvEndpoint {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Next {
        let next = self.responder.progress(now);
        next.merge(self.look_if_due(now))
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.is_armed = true;
        self.responder.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.responder.wait_set(set);
        if let Some(front_end) = &self.front_end {
            set.insert(front_end.as_raw_fd());
        }
    }

    #[inline]
    fn looks(&self) -> u32 {
        self.responder.looks()
    }
}

impl ThreadEndpoint for KvEndpoint {
    type Handler = KvHandler;

    #[inline]
    fn responder(&mut self) -> &mut Responder<KvHandler, MonotonicClock> {
        &mut self.responder
    }

    fn drain(&mut self, now: Nanos) {
        if let Some(front_end) = &mut self.front_end {
            front_end.stop_listening();
            self.drain = Some(Drain { until: now + DRAIN_TIMEOUT, is_done: false });
        }
    }

    #[inline]
    fn is_drained(&self) -> bool {
        self.drain.as_ref().is_none_or(|drain| drain.is_done)
    }
}

/// Replies are written where the client fetches them from.
impl ReplySink for Reply<'_> {
    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
