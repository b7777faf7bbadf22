//! A server thread that answers RPC clients, and memcached clients beside them.

use super::counters::ThreadCounters;
use super::handler::KvHandler;
use super::{KvServerError, now_ms};
use crate::rpc_server::{Bootstrap, DRAIN_PATIENCE, IDLE_POLLS, incarnation};
use farcall_drive::{Driver, Stop};
use farcall_kv::door::Door;
use farcall_kv::store::Partition;
use farcall_link::{Nic, Waiting};
use farcall_rpc::{Responder, ResponderConfig};
use farcall_softnic::SoftNic;
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Next, WaitSet};
use std::time::{Duration, Instant};

/// Turns between two looks at sockets while memcached clients are connected.
const TURNS_PER_DOOR_LOOK: u32 = 64;
/// Between two looks at bootstrap connections under load. Looking takes system calls, so it is seldom.
const BOOTSTRAP_PERIOD: Duration = Duration::from_millis(10);

/// A partition with its RPC clients and its door.
pub(super) struct RpcWorker {
    responder: Responder<KvHandler, MonotonicClock>,
    bootstrap: Bootstrap,
    door: Door,
    counters: ThreadCounters,
    clock: MonotonicClock,
    turns: u32,
    next_look: Nanos,
    /// The next turn is the last before sleeping: it looks at everything.
    is_armed: bool,
}

impl RpcWorker {
    pub(super) fn new(door: Door, partition: Partition, bootstrap: Bootstrap) -> Result<Self, KvServerError> {
        let clock = MonotonicClock::new();
        let counters = ThreadCounters::new(partition.config().partition);
        let handler = KvHandler::new(partition, now_ms().saturating_sub(clock.now().0 / 1_000_000));
        let nic = Nic::open(&SoftNic::new())?;
        let responder = Responder::new(nic, ResponderConfig::default(), incarnation(), handler, clock)?;
        Ok(Self {
            responder,
            bootstrap,
            door,
            counters,
            clock,
            turns: 0,
            next_look: Nanos::default(),
            is_armed: false,
        })
    }

    /// Serves until told to stop, then finishes what came.
    pub(super) fn run(mut self, stop: Stop) -> Result<(), KvServerError> {
        let waiting = Waiting::Adaptive { max_poll_wc: 16, max_retry: IDLE_POLLS };
        Driver::new(self.clock, waiting, stop).run(&mut self)?;
        self.door.stop_listening();
        self.bootstrap.say_going_away();
        self.responder.drain();
        let deadline = Instant::now() + DRAIN_PATIENCE;
        let never = Stop::new().map_err(KvServerError::Thread)?;
        Driver::new(self.clock, Waiting::TimeShared, never).run_until(&mut self, |worker| {
            (worker.responder.is_drained() && worker.door.is_drained()) || Instant::now() > deadline
        })?;
        Ok(())
    }

    /// Looks at the sockets; returns whether there was anything.
    fn look(&mut self, now: Nanos) -> bool {
        let any = self.bootstrap.look(&mut self.responder, now);
        self.counters.publish_if_due(Instant::now(), || self.responder.handler().partition().stats());
        any | self.look_at_door()
    }

    fn look_at_door(&mut self) -> bool {
        let partition = self.responder.handler().partition();
        // A door that fails here fails again at the next look; its own connections are closed by then.
        self.door.poll(partition, now_ms, Some(Duration::ZERO)).is_ok_and(|turns| turns > 0)
    }
}

impl Endpoint for RpcWorker {
    fn progress(&mut self, now: Nanos) -> Next {
        let mut next = self.responder.progress(now);
        self.turns += 1;
        if self.is_armed || now >= self.next_look {
            self.is_armed = false;
            self.next_look = now + BOOTSTRAP_PERIOD;
            if self.look(now) {
                next = Next::Again;
            }
        } else if self.turns >= TURNS_PER_DOOR_LOOK {
            self.turns = 0;
            if self.door.connections() > 0 && self.look_at_door() {
                next = Next::Again;
            }
        }
        next
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.is_armed = true;
        self.responder.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.responder.wait_set(set);
        self.bootstrap.wait_set(set);
        set.insert(std::os::fd::AsRawFd::as_raw_fd(&self.door));
    }
}
