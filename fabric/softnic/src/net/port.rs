//! The port of a process: its socket, the queue pairs behind it, and the lock under which all of it works.

use std::os::fd::AsFd;
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use farcall_shm::Mutex;
use farcall_verbs::Result;

use super::management;
use super::management_claim::Claim;
use super::owner::Who;
use super::slots::Slots;
use super::state::State;
use crate::host::{Abroad, Host};
use crate::life::rendezvous::block_of;
use crate::life::{Served, Watching};

/// Who polls looks for packets at most once in so long, so that what else is polled there does not pay for it.
const LOOK_EVERY_NS: u64 = 1_000;

/// Turns of pairs in one run of the service thread, which has others to serve.
const TURNS_A_RUN: usize = 32;

/// How long a process that exits waits at most for a thread that works in the port.
const EXIT_WAIT_MAX: Duration = Duration::from_millis(20);

/// The port of this process, for its exit.
static OPEN_PORT: Mutex<Weak<Port>> = Mutex::new(Weak::new());

/// The RoCEv2 port of this process.
pub(crate) struct Port {
    host: Weak<Host>,
    slots: Arc<Slots>,
    /// Blocks of queue pair numbers whose packets come to us.
    steered: Mutex<Vec<u32>>,
    state: Mutex<State>,
    began: Instant,
    watching: Mutex<Option<Watching>>,
}

impl Port {
    /// The port of the process, opened at first use.
    ///
    /// # Errors
    /// If the system refuses the socket, or another process has it.
    pub(super) fn open(host: &Arc<Host>) -> Result<Arc<Self>> {
        let _opening = host.opening.lock();
        if let Some(port) = Self::opened(host) {
            return Ok(port);
        }
        let began = Instant::now();
        let slots = Arc::new(Slots::join()?);
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

    /// Has packets for a queue pair come to this process.
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

    /// Keeps or takes what comes for queue pair 1, as [`Claim::keep_or_take`] says.
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

    /// Which of the processes that share the port this one is.
    pub(super) fn slot(&self) -> usize {
        self.slots.own()
    }

    /// The port of the process, if it is open.
    pub(super) fn opened(host: &Host) -> Option<Arc<Self>> {
        let port = host.abroad.get()?.clone();
        Some(port.into_any().downcast().expect("only this type is put there"))
    }

    /// Works under the lock; what comes of it is sent later.
    pub(super) fn prepare(&self, work: impl FnOnce(&mut State)) {
        work(&mut self.state.lock());
    }

    /// Works under the lock, and sends what comes of it.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        state.tick();
        let result = work(&mut state);
        state.finish_work();
        self.leave(&mut state);
        result
    }

    /// The owner leaves; what it has not done the service thread does, unless the owner comes back by itself.
    fn leave(&self, state: &mut State) {
        let now_ns = self.began.elapsed().as_nanos() as u64;
        state.owner.leaves(state.now_ns, now_ns);
        state.call_service();
    }

    /// Takes completions; if there are none, looks for packets, unless somebody just did, and takes them then.
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

    /// The service thread looks, if it is to. Whether pairs wait for another turn.
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

/// Has this process, when it exits, send the acknowledgements that it keeps: its peers' sends end with success.
fn settle_debts_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function outlives the process's use of this library: `atexit` belongs to the object that calls
        // it, which runs the function before it is unloaded.
        if unsafe { libc::atexit(settle_debts) } != 0 {
            tracing::warn!("the exit of this process may lose its last acknowledgements: atexit has failed");
        }
    });
}

/// The thread that exits may hold the lock itself, in a signal handler: the wait is bounded.
extern "C" fn settle_debts() {
    let Some(port) = OPEN_PORT.try_lock().and_then(|port| port.upgrade()) else { return };
    // A forked child owes nothing: the pairs are its parent's.
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
    /// Packets, or a time that has come; called by the service thread.
    fn ready(&self) {
        // The lock is free in between, for the owner.
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
