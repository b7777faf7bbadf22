//! Port of a process: its socket, its queue pairs, and the lock that protects all of them.

use std::os::fd::AsFd;
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use farcall_shm::Mutex;
use farcall_verbs::Result;

use super::management;
use super::management_claim::Claim;
use super::owner::Who;
use super::slots::Slots;
use super::sources::truncate_own_packets;
use super::state::State;
use crate::host::{Abroad, Host};
use crate::life::rendezvous::block_of;
use crate::life::{Served, Watching};

/// Minimum interval between polls of the port by polling threads. It limits the cost for other producers of the same
/// completion queue.
const LOOK_EVERY_NS: u64 = 1_000;

/// Maximum number of iterations in one call of the service thread, which has other work.
const TURNS_A_RUN: usize = 32;

/// Maximum time for which an exiting process waits for a thread that holds the port's lock.
const EXIT_WAIT_MAX: Duration = Duration::from_millis(20);

/// The port of this process, for its exit handler.
static OPEN_PORT: Mutex<Weak<Port>> = Mutex::new(Weak::new());

/// RoCEv2 port of this process.
pub(crate) struct Port {
    host: Weak<Host>,
    slots: Arc<Slots>,
    /// Blocks of queue pair numbers whose packets are steered to this process.
    steered: Mutex<Vec<u32>>,
    state: Mutex<State>,
    began: Instant,
    watching: Mutex<Option<Watching>>,
}

impl Port {
    /// Returns the port of the process; opens it at the first use.
    ///
    /// # Errors
    /// Returns an error if the system refuses the socket, or if another user holds the port.
    pub(super) fn open(host: &Arc<Host>) -> Result<Arc<Self>> {
        let _opening = host.opening.lock();
        if let Some(port) = Self::opened(host) {
            return Ok(port);
        }
        let began = Instant::now();
        let slots = Arc::new(Slots::join()?);
        truncate_own_packets(slots.socket(), !host.process.forces_roce())?;
        let state = State::new(host, slots.clone(), began)?;
        let port = Arc::new(Self {
            host: Arc::downgrade(host),
            slots: slots.clone(),
            steered: Mutex::default(),
            state: Mutex::new(state),
            began,
            watching: Mutex::default(),
        });
        let state = port.state.lock();
        let watching = host.process.service.watch_for(state.socket.fd(), port.clone())?;
        *port.watching.lock() = Some(watching);
        host.process.service.watch_for(state.timer.as_fd(), port.clone())?;
        host.process.service.watch_for(slots.listener(), slots.clone())?;
        drop(state);
        let _set = host.abroad.set(port.clone());
        *OPEN_PORT.lock() = Arc::downgrade(&port);
        settle_debts_at_exit();
        Ok(port)
    }

    /// Steers packets for a queue pair to this process.
    ///
    /// # Errors
    /// See [`Slots::steer`].
    pub(super) fn steer(&self, qpn: u32) -> Result<()> {
        let mut steered = self.steered.lock();
        let block = block_of(qpn);
        if !steered.contains(&block) {
            self.slots.steer(block)?;
            steered.push(block);
        }
        Ok(())
    }

    /// Keeps or claims the datagrams for queue pair 1; see [`Claim::keep_or_take`].
    ///
    /// # Errors
    /// See [`Slots::steer`].
    pub(super) fn claim(&self, claim: &mut Claim) -> Result<bool> {
        claim.keep_or_take(&self.slots, block_of(management::QPN))
    }

    /// Returns whether this process still holds queue pair 1.
    pub(super) fn holds(&self, claim: &Claim) -> bool {
        claim.is_held(&self.slots)
    }

    /// Returns the index of this process among those that share the port.
    pub(super) fn slot(&self) -> usize {
        self.slots.own()
    }

    /// Returns the port of the process if it is open.
    pub(super) fn opened(host: &Host) -> Option<Arc<Self>> {
        let port = host.abroad.get()?.clone();
        Some(port.into_any().downcast().expect("only this type is put there"))
    }

    /// Calls `work` under the lock. Resulting packets are sent later.
    pub(super) fn prepare(&self, work: impl FnOnce(&mut State)) {
        work(&mut self.state.lock());
    }

    /// Calls `work` under the lock, and sends the resulting packets.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        state.tick();
        let result = work(&mut state);
        state.finish_work();
        self.leave(&mut state);
        result
    }

    /// Called when the application thread leaves the port. The service thread does the remaining work, unless the
    /// application thread polls.
    fn leave(&self, state: &mut State) {
        let now_ns = self.began.elapsed().as_nanos() as u64;
        state.owner.leaves(state.now_ns, now_ns);
        state.call_service();
    }

    /// Delivers completions. If there are none, polls the port for packets, unless that was just done, and delivers the
    /// resulting completions.
    pub(super) fn poll(&self, mut take: impl FnMut(&mut State) -> usize) -> usize {
        let mut state = self.state.lock();
        let taken = take(&mut state);
        if taken > 0 {
            return taken;
        }
        let now_ns = self.began.elapsed().as_nanos() as u64;
        if now_ns.saturating_sub(state.owner.looked_ns()) < LOOK_EVERY_NS {
            return 0;
        }
        state.now_ns = now_ns;
        state.owner.looks(now_ns);
        state.look();
        let taken = take(&mut state);
        state.finish_look();
        self.leave(&mut state);
        taken
    }

    fn watch(&self, state: &State, watched: bool) {
        if let (Some(host), Some(watching)) = (self.host.upgrade(), &*self.watching.lock()) {
            host.process.service.set_served(state.socket.fd(), watching, watched);
        }
    }

    /// Polls the port from the service thread if that thread is responsible. Returns whether queue pairs wait for
    /// another quantum.
    fn serve(&self) -> bool {
        let mut state = self.state.lock();
        state.tick();
        state.ring_came();
        let (was_trusted, now_ns) = (state.owner.is_trusted(), state.now_ns);
        let who = state.owner.judge(now_ns);
        if state.owner.is_trusted() != was_trusted {
            self.watch(&state, was_trusted);
        }
        if who == Who::Service {
            state.look();
        }
        state.finish();
        if let Who::Owner { until_ns } = who {
            state.ring_at(until_ns);
        }
        state.owner.leaves(now_ns, self.began.elapsed().as_nanos() as u64);
        who == Who::Service && state.has_turns_left()
    }
}

/// Registers an exit handler that sends the acknowledgements held back by this process, so that its peers' sends
/// succeed.
fn settle_debts_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function exists as long as it can be called: the handler belongs to the object that calls
        // `atexit`, and runs before that object is unloaded.
        if unsafe { libc::atexit(settle_debts) } != 0 {
            tracing::warn!("the exit of this process may lose its last acknowledgements: atexit has failed");
        }
    });
}

/// The wait is bounded, because the exiting thread may hold the lock itself, in a signal handler.
extern "C" fn settle_debts() {
    let Some(port) = OPEN_PORT.try_lock().and_then(|port| port.upgrade()) else { return };
    // A forked child owes no acknowledgements: the queue pairs belong to its parent.
    if port.host.upgrade().is_none_or(|host| host.process.is_inherited()) {
        return;
    }
    let began = Instant::now();
    loop {
        if let Some(mut state) = port.state.try_lock() {
            state.tick();
            state.settle_debts();
            return;
        }
        if began.elapsed() >= EXIT_WAIT_MAX {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Served for Port {
    /// Called by the service thread for packets and expired timers.
    fn ready(&self) {
        // The lock is released in between, for the application thread.
        if (0..TURNS_A_RUN).all(|_| self.serve()) {
            self.state.lock().call_service();
        }
    }
}

impl Abroad for Port {
    fn settle(&self) {
        self.state.wait();
    }

    fn owner_sleeps(&self) {
        let mut state = self.state.lock();
        if state.owner.sleeps() {
            state.tick();
            state.finish();
            state.call_service();
            self.watch(&state, true);
        }
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}
