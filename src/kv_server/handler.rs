//! A server thread that answers RPC clients, and memcached clients beside them.

use super::upkeep::Upkeep;
use super::{DRAIN_PATIENCE, now_ms};
use farcall_kv::door::Door;
use farcall_kv::store::Partition;
use farcall_kv::wire::{ReplySink, Service};
use farcall_rpc::{Call, Handler, HandlerError, Reply};
use farcall_verbs::{Nanos, Next, WaitSet};
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

/// Answers calls to one partition, and looks at its sockets.
pub(super) struct KvHandler {
    service: Service,
    upkeep: Upkeep,
    /// None if the server has no memcached door at all.
    door: Option<Door>,
    /// Milliseconds since the Unix epoch at time zero of the thread's clock.
    epoch_ms: u64,
    turns_to_look: u32,
    next_look: Nanos,
    /// The next look is the last before sleeping.
    is_armed: bool,
    drain: Option<Drain>,
}

/// How far the end of the door is.
struct Drain {
    until: Nanos,
    is_done: bool,
}

impl KvHandler {
    /// Serves `partition`. To be made in the thread that runs it, when its clock starts.
    pub(super) fn new(partition: Partition, door: Option<Door>) -> Self {
        Self {
            upkeep: Upkeep::new(&partition),
            service: Service::new(partition),
            door,
            epoch_ms: now_ms(),
            turns_to_look: 0,
            next_look: Nanos::default(),
            is_armed: false,
            drain: None,
        }
    }

    /// Does what was put off while calls came; returns whether a socket had work.
    fn look(&mut self, now: Nanos) -> Next {
        let now_ms = now_ms();
        // The wall clock may be set while the server runs.
        self.epoch_ms = now_ms.saturating_sub(now.0 / 1_000_000);
        let partition = self.service.partition();
        self.upkeep.run(partition, now_ms);
        if std::mem::take(&mut self.is_armed) {
            self.upkeep.before_sleep(partition);
        }
        let Some(door) = &mut self.door else {
            self.next_look = now + UPKEEP_PERIOD;
            return Next::Idle { until: Some(now + SLEEP_MAX) };
        };
        self.next_look = now + LOOK_PERIOD;
        // A door that fails here fails again at the next look; its own connections are closed by then.
        let any = door.poll(partition, || now_ms, Some(Duration::ZERO)).is_ok_and(|turns| turns > 0);
        if let Some(drain) = &mut self.drain {
            drain.is_done = (!any && door.is_drained()) || now >= drain.until;
        }
        if any { Next::Again } else { Next::Idle { until: Some(now + SLEEP_MAX) } }
    }

    fn has_clients(&self) -> bool {
        self.door.as_ref().is_some_and(|door| door.connections() > 0)
    }
}

impl Handler for KvHandler {
    #[inline]
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let now_ms = self.epoch_ms + call.arrived().0 / 1_000_000;
        self.service
            .handle(call.method(), call.payload(), &mut Sink(reply), now_ms)
            .map_err(|error| HandlerError::new(error.code(), error.to_string()))
    }

    #[inline]
    fn beside(&mut self, now: Nanos) -> Next {
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

    fn arm_beside(&mut self) {
        self.is_armed = true;
    }

    fn wait_set_beside(&self, set: &mut WaitSet) {
        if let Some(door) = &self.door {
            set.insert(door.as_raw_fd());
        }
    }

    fn drain_beside(&mut self, now: Nanos) {
        if let Some(door) = &mut self.door {
            door.stop_listening();
            self.drain = Some(Drain { until: now + DRAIN_PATIENCE, is_done: false });
        }
    }

    fn is_drained_beside(&self) -> bool {
        self.drain.as_ref().is_none_or(|drain| drain.is_done)
    }
}

/// A reply in the making, written where the client fetches it from.
struct Sink<'a, 'b>(&'a mut Reply<'b>);

impl ReplySink for Sink<'_, '_> {
    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}
