//! The port of a process: its socket, the queue pairs behind it, and the lock under which all of it works.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use farcall_shm::Mutex;
use farcall_verbs::Result;

use super::slots::Slots;
use super::state::State;
use crate::host::{Abroad, Host};
use crate::life::rendezvous::block_of;
use crate::life::{Served, Watching};

/// Who polls looks for packets at most once in so long, so that what else is polled there does not pay for it.
const LOOK_EVERY_NS: u64 = 1_000;
/// The service thread looks after so long whether an owner still polls who has waited for something else, such as bytes
/// in memory, while packets came.
const OWNER_PAUSES_NS: u64 = 30_000;
/// After so long at most, while an owner goes on polling.
const OWNER_POLLS_NS: u64 = 1_000_000;
/// Who has not looked for so long does not poll now.
const STALE_NS: u64 = 10_000;

/// The RoCEv2 port of this process.
pub(crate) struct Port {
    host: Weak<Host>,
    slots: Arc<Slots>,
    /// Blocks of queue pair numbers whose packets come to us.
    steered: Mutex<Vec<u32>>,
    state: Mutex<State>,
    /// When packets were last looked for.
    looked_ns: AtomicU64,
    began: Instant,
    /// A poll looked since the service thread last did.
    is_polled: AtomicBool,
    /// The service thread leaves packets to who polls.
    is_left_alone: AtomicBool,
    /// For so long, until it looks.
    left_alone_ns: AtomicU64,
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
            looked_ns: AtomicU64::new(0),
            began,
            is_polled: AtomicBool::new(false),
            is_left_alone: AtomicBool::new(false),
            left_alone_ns: AtomicU64::new(OWNER_PAUSES_NS),
            watching: Mutex::default(),
        });
        let state = port.state.lock();
        let watching = host.process.service.watch_for(state.socket.fd(), port.clone())?;
        *port.watching.lock() = Some(watching);
        host.process.service.watch_for(state.timer.as_fd(), port.clone())?;
        host.process.service.watch_for(slots.listener(), slots.clone())?;
        drop(state);
        let _set = host.abroad.set(port.clone());
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

    /// Has packets for a queue pair number that processes share come to this one, if they come to no other. Whether
    /// they do.
    ///
    /// # Errors
    /// See [`Slots::steer`].
    pub(super) fn claim(&self, qpn: u32) -> Result<bool> {
        self.slots.claim(block_of(qpn))
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
        state.finish();
        result
    }

    /// Takes completions; if there are none, looks for packets, unless somebody just did, and takes them then.
    pub(super) fn poll(&self, mut take: impl FnMut(&mut State) -> usize) -> usize {
        let mut state = self.state.lock();
        let taken = take(&mut state);
        if taken > 0 {
            return taken;
        }
        let now_ns = self.began.elapsed().as_nanos() as u64;
        if now_ns.saturating_sub(self.looked_ns.load(Ordering::Relaxed)) < LOOK_EVERY_NS {
            return 0;
        }
        self.is_polled.store(true, Ordering::Relaxed);
        state.tick();
        state.look();
        state.finish();
        self.looked_ns.store(state.now_ns, Ordering::Relaxed);
        take(&mut state)
    }

    fn watch(&self, state: &State, watched: bool) {
        if let (Some(host), Some(watching)) = (self.host.upgrade(), &*self.watching.lock()) {
            host.process.service.set_served(state.socket.fd(), watching, watched);
        }
    }
}

impl Served for Port {
    /// Packets, or a time that has come; called by the service thread.
    fn ready(&self) {
        let mut state = self.state.lock();
        state.tick();
        state.ring_came();
        if self.is_polled.swap(false, Ordering::Relaxed) {
            if !self.is_left_alone.swap(true, Ordering::Relaxed) {
                self.watch(&state, false);
            }
            let looked_ns = self.looked_ns.load(Ordering::Relaxed);
            let has_paused = state.now_ns.saturating_sub(looked_ns) > STALE_NS && state.look();
            let left_alone_ns = self.left_alone_ns.load(Ordering::Relaxed);
            let next_ns = if has_paused { OWNER_PAUSES_NS } else { (2 * left_alone_ns).min(OWNER_POLLS_NS) };
            self.left_alone_ns.store(next_ns, Ordering::Relaxed);
        } else {
            if self.is_left_alone.swap(false, Ordering::Relaxed) {
                self.watch(&state, true);
            }
            state.look();
        }
        state.finish();
        if self.is_left_alone.load(Ordering::Relaxed) {
            let at_ns = state.now_ns + self.left_alone_ns.load(Ordering::Relaxed);
            state.ring_at(at_ns);
        }
    }
}

impl Abroad for Port {
    fn settle(&self) {
        self.state.wait();
    }

    fn owner_sleeps(&self) {
        if self.is_left_alone.load(Ordering::Relaxed) {
            let state = self.state.lock();
            self.is_polled.store(false, Ordering::Relaxed);
            if self.is_left_alone.swap(false, Ordering::Relaxed) {
                self.watch(&state, true);
            }
        }
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}
