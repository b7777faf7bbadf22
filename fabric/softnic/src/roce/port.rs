//! Port of a process: its socket, its queue pairs, and the lock that protects all of them.

use std::os::fd::AsFd;
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use farcall_shm::Mutex;
use farcall_verbs::{Result, Wc};

use super::mad_queue;
use super::management_claim::Claim;
use super::poll_responsibility::PollResponsibility;
use super::shared_port::SharedPort;
use super::sources::truncate_own_packets;
use super::state::State;
use crate::process::rendezvous::block_of;
use crate::process::{FdHandler, FdRegistration};
use crate::shm_transport::cq::Source;
use crate::shm_transport::datagram::DatagramCore;
use crate::shm_transport::{RemoteTransport, ShmTransport};

/// Minimum interval between polls of the port by polling threads. It limits the cost for other producers of the same
/// completion queue.
const POLL_INTERVAL_NS: u64 = 1_000;

/// Maximum number of iterations in one call of the service thread, which has other work.
const ITERATIONS_PER_EVENT: usize = 32;

/// Maximum time for which an exiting process waits for a thread that holds the port's lock.
const EXIT_WAIT_MAX: Duration = Duration::from_millis(20);

/// The port of this process, for its exit handler.
static OPEN_PORT: Mutex<Weak<Port>> = Mutex::new(Weak::new());

/// RoCEv2 port of this process.
pub(crate) struct Port {
    shm: Weak<ShmTransport>,
    shared_port: Arc<SharedPort>,
    /// Blocks of queue pair numbers whose packets are steered to this process.
    steered: Mutex<Vec<u32>>,
    state: Mutex<State>,
    began: Instant,
    registration: Mutex<Option<FdRegistration>>,
}

impl Port {
    /// Returns the port of the process; opens it at the first use.
    ///
    /// # Errors
    /// Returns an error if the system refuses the socket, or if another user holds the port.
    pub(super) fn open(shm: &Arc<ShmTransport>) -> Result<Arc<Self>> {
        let _opening = shm.opening.lock();
        if let Some(port) = Self::opened(shm) {
            return Ok(port);
        }
        let began = Instant::now();
        let shared_port = Arc::new(SharedPort::join()?);
        truncate_own_packets(shared_port.socket(), !shm.core.process.forces_roce())?;
        let state = State::new(shm, shared_port.clone(), began, DatagramSource::make)?;
        let port = Arc::new(Self {
            shm: Arc::downgrade(shm),
            shared_port: shared_port.clone(),
            steered: Mutex::default(),
            state: Mutex::new(state),
            began,
            registration: Mutex::default(),
        });
        let state = port.state.lock();
        let registration = shm.core.process.service.register_fd(shared_port.socket(), port.clone())?;
        *port.registration.lock() = Some(registration);
        shm.core.process.service.register_fd(state.timer.as_fd(), port.clone())?;
        shm.core.process.service.register_fd(shared_port.listener(), shared_port.clone())?;
        drop(state);
        let _set = shm.remote.set(port.clone());
        *OPEN_PORT.lock() = Arc::downgrade(&port);
        send_acknowledgements_at_exit();
        Ok(port)
    }

    /// Steers packets for a queue pair to this process.
    ///
    /// # Errors
    /// See [`SharedPort::steer`].
    pub(super) fn steer(&self, qpn: u32) -> Result<()> {
        let mut steered = self.steered.lock();
        let block = block_of(qpn);
        if !steered.contains(&block) {
            self.shared_port.steer(block)?;
            steered.push(block);
        }
        Ok(())
    }

    /// Keeps or claims the datagrams for queue pair 1; see [`Claim::keep_or_claim`].
    ///
    /// # Errors
    /// See [`SharedPort::steer`].
    pub(super) fn claim(&self, claim: &mut Claim) -> Result<bool> {
        claim.keep_or_claim(&self.shared_port, block_of(mad_queue::QPN))
    }

    /// Returns whether this process still holds queue pair 1.
    pub(super) fn holds(&self, claim: &Claim) -> bool {
        claim.is_held(&self.shared_port)
    }

    /// Returns the index of this process among those that share the port.
    pub(super) fn slot(&self) -> usize {
        self.shared_port.own()
    }

    /// Returns the port of the process if it is open.
    pub(super) fn opened(shm: &ShmTransport) -> Option<Arc<Self>> {
        let port = shm.remote.get()?.clone();
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
        self.on_app_exit(&mut state);
        result
    }

    /// Called when the application thread leaves the port. The service thread does the remaining work, unless the
    /// application thread polls.
    fn on_app_exit(&self, state: &mut State) {
        let now_ns = self.began.elapsed().as_nanos() as u64;
        state.poll_activity.on_exit(state.now_ns, now_ns);
        state.wake_service_thread();
    }

    /// Delivers completions. If there are none, polls the port for packets, unless that was just done, and delivers the
    /// resulting completions.
    pub(super) fn poll(&self, mut take: impl FnMut(&mut State) -> usize) -> usize {
        let mut state = self.state.lock();
        let delivered = take(&mut state);
        if delivered > 0 {
            return delivered;
        }
        let now_ns = self.began.elapsed().as_nanos() as u64;
        if now_ns.saturating_sub(state.poll_activity.last_poll_ns()) < POLL_INTERVAL_NS {
            return 0;
        }
        state.now_ns = now_ns;
        state.poll_activity.on_poll(now_ns);
        state.poll();
        let delivered = take(&mut state);
        state.finish_poll();
        self.on_app_exit(&mut state);
        delivered
    }

    fn watch(&self, watched: bool) {
        if let (Some(shm), Some(registration)) = (self.shm.upgrade(), &*self.registration.lock()) {
            shm.core.process.service.set_fd_watched(self.shared_port.socket(), registration, watched);
        }
    }

    /// Polls the port from the service thread if that thread is responsible. Returns whether queue pairs wait for
    /// another quantum.
    fn poll_for_service(&self) -> bool {
        let mut state = self.state.lock();
        state.tick();
        state.on_timer();
        let (app_polled, now_ns) = (state.poll_activity.app_polls(), state.now_ns);
        let responsible = state.poll_activity.evaluate(now_ns);
        if state.poll_activity.app_polls() != app_polled {
            self.watch(app_polled);
        }
        if responsible == PollResponsibility::ServiceThread {
            state.poll();
        }
        state.finish();
        if let PollResponsibility::Application { until_ns } = responsible {
            state.arm_timer_at(until_ns);
        }
        state.poll_activity.on_exit(now_ns, self.began.elapsed().as_nanos() as u64);
        responsible == PollResponsibility::ServiceThread && state.has_active_qps()
    }
}

/// Source of completions for datagrams from other hosts to one queue pair.
struct DatagramSource {
    port: Arc<Port>,
    core: Arc<DatagramCore>,
}

impl DatagramSource {
    fn make(shm: &ShmTransport, core: Arc<DatagramCore>) -> Option<Arc<dyn Source>> {
        Some(Arc::new(Self { port: Port::opened(shm)?, core }))
    }
}

impl Source for DatagramSource {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        // SAFETY: `Source::poll` is called only by the thread that polls the receive completion queue, and not while it
        // works on the receives, as `deliver` requires.
        self.port.poll(|state| unsafe { state.rx_queues.deliver(&self.core, wc) })
    }

    /// Always `true`, because polling it also polls the port for packets.
    fn may_have_completions(&self) -> bool {
        true
    }
}

/// Registers an exit handler that sends the acknowledgements held back by this process, so that its peers' sends
/// succeed.
fn send_acknowledgements_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function exists as long as it can be called: the handler belongs to the object that calls
        // `atexit`, and runs before that object is unloaded.
        if unsafe { libc::atexit(send_held_acknowledgements) } != 0 {
            tracing::warn!("the exit of this process may lose its last acknowledgements: atexit has failed");
        }
    });
}

/// The wait is bounded, because the exiting thread may hold the lock itself, in a signal handler.
extern "C" fn send_held_acknowledgements() {
    let Some(port) = OPEN_PORT.try_lock().and_then(|port| port.upgrade()) else { return };
    // A forked child owes no acknowledgements: the queue pairs belong to its parent.
    if port.shm.upgrade().is_none_or(|shm| shm.core.process.is_inherited()) {
        return;
    }
    let began = Instant::now();
    loop {
        if let Some(mut state) = port.state.try_lock() {
            state.tick();
            state.send_held_acknowledgements();
            return;
        }
        if began.elapsed() >= EXIT_WAIT_MAX {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl FdHandler for Port {
    /// Called by the service thread for packets and expired timers.
    fn on_readable(&self) {
        // The lock is released in between, for the application thread.
        if (0..ITERATIONS_PER_EVENT).all(|_| self.poll_for_service()) {
            self.state.lock().wake_service_thread();
        }
    }
}

impl RemoteTransport for Port {
    fn quiesce(&self) {
        self.state.wait();
    }

    fn on_cq_sleep(&self) {
        let mut state = self.state.lock();
        if state.poll_activity.on_sleep() {
            state.tick();
            state.finish();
            state.wake_service_thread();
            self.watch(true);
        }
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}
