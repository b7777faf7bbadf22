//! A server thread that serves RPC clients, and memcached clients in addition.

use super::DRAIN_TIMEOUT;
use super::maintenance::Maintenance;
use crate::front_end::FrontEnd;
use crate::store::{Clock, Partition};
use crate::wire::{ReplySink, Service};
use farcall_rpc::{Call, Handler, HandlerError, Reply, Responder, ResponderParts, ThreadEndpoint};
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Progress, WaitSet, with_sources};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Number of iterations between two polls of the sockets while memcached clients are connected to this thread.
const TURNS_PER_POLL: u32 = 64;
/// Interval between two polls while none is connected, for a new connection or a command that another thread forwards.
/// A poll is a system call.
const POLL_PERIOD: Duration = Duration::from_micros(50);
/// Interval between two polls if there is no socket, for maintenance only.
const MAINTENANCE_PERIOD: Duration = Duration::from_millis(10);
/// Interval at which an idle thread wakes for maintenance.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Executes calls for one partition.
pub(super) struct KvHandler {
    service: Service,
    /// The server's time when the thread's clock is zero.
    epoch_ms: u64,
}

/// The state of a thread: the responder, the sockets of the thread, maintenance.
pub(super) struct KvEndpoint {
    responder: Responder<KvHandler, MonotonicClock>,
    maintenance: Maintenance,
    clock: Clock,
    /// `None` if the server has no memcached front end.
    front_end: Option<FrontEnd>,
    turns_to_poll: u32,
    next_poll: Nanos,
    /// `true` if the next poll is the last before sleeping.
    is_armed: bool,
    drain: Option<Drain>,
}

/// Progress of draining the front end.
struct Drain {
    until: Nanos,
    is_done: bool,
}

impl KvEndpoint {
    /// Serves `partition`. Must be created in the thread that drives it, when the thread's clock starts.
    pub(super) fn new(
        parts: ResponderParts,
        partition: Partition,
        front_end: Option<FrontEnd>,
        clock: Clock,
    ) -> farcall_verbs::Result<Self> {
        Ok(Self {
            maintenance: Maintenance::new(&partition),
            responder: parts
                .with(KvHandler { service: Service::new(partition), epoch_ms: clock.now_ms() })?,
            clock,
            front_end,
            turns_to_poll: 0,
            next_poll: Nanos::default(),
            is_armed: false,
            drain: None,
        })
    }

    /// Does the work that was deferred while calls arrived. Returns whether a socket had work.
    fn run_deferred_work(&mut self, now: Nanos) -> Progress {
        let now_ms = self.clock.now_ms();
        // Corrected at each poll, because the thread's clock is calibrated and may drift.
        let handler = self.responder.handler();
        handler.epoch_ms = now_ms.saturating_sub(now.0 / 1_000_000);
        let partition = handler.service.partition();
        self.maintenance.run(partition, || now_ms);
        if std::mem::take(&mut self.is_armed) {
            self.maintenance.publish(partition);
        }
        let Some(front_end) = &mut self.front_end else {
            self.next_poll = now + MAINTENANCE_PERIOD;
            return Progress::Idle { until: Some(now + SLEEP_MAX) };
        };
        self.next_poll = now + POLL_PERIOD;
        // An error is a failure of the front end's loop itself, and occurs again at the next poll; a failing
        // connection is only closed.
        let any = front_end.poll(partition, || now_ms, Some(Duration::ZERO)).is_ok_and(|turns| turns > 0);
        if let Some(drain) = &mut self.drain {
            drain.is_done = (!any && front_end.is_drained()) || now >= drain.until;
        }
        let sleep = front_end.retry_delay().map_or(SLEEP_MAX, |rest| rest.min(SLEEP_MAX));
        if any { Progress::Again } else { Progress::Idle { until: Some(now + sleep) } }
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
            .map_err(|error| HandlerError::new(error.code(), with_sources(&error)))
    }
}

impl KvEndpoint {
    /// Polls the sockets, unless they were polled recently.
    #[inline]
    fn poll_if_due(&mut self, now: Nanos) -> Progress {
        if now >= self.next_poll || self.is_armed {
            return self.run_deferred_work(now);
        }
        self.turns_to_poll = self.turns_to_poll.saturating_sub(1);
        if self.turns_to_poll > 0 {
            return Progress::IDLE;
        }
        self.turns_to_poll = TURNS_PER_POLL;
        if self.has_clients() { self.run_deferred_work(now) } else { Progress::IDLE }
    }
}

impl Endpoint for KvEndpoint {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Progress {
        let next = self.responder.progress(now);
        next.merge(self.poll_if_due(now))
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
    fn poll_weight(&self) -> u32 {
        self.responder.poll_weight()
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

/// Writes a reply directly into the response slot from which the client fetches it.
impl ReplySink for Reply<'_> {
    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
