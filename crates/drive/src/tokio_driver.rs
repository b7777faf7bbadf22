//! Endpoints as futures: the driver's rule with tokio's reactor instead of poll(2).

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use farcall_link::Waiting;
use farcall_verbs::{Clock, Endpoint, Error, Next, Result, WaitSet};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::{Pace, Pacer};

/// Runs endpoints on a tokio runtime with its IO and time drivers enabled.
pub struct TokioDriver<C> {
    clock: C,
    pacer: Pacer,
    set: WaitSet,
    watched: HashMap<RawFd, AsyncFd<OwnedFd>>,
}

/// Turns with work before other tasks get their turn.
const TURNS_PER_YIELD: u32 = 64;

impl<C: Clock> TokioDriver<C> {
    /// Waits as `waiting` says; polling yields to other tasks.
    pub fn new(clock: C, waiting: Waiting) -> Self {
        Self { clock, pacer: Pacer::new(waiting), set: WaitSet::default(), watched: HashMap::new() }
    }

    /// Runs the endpoint until `done`, asked after every turn, says so. Dropping the future between two turns is fine.
    ///
    /// # Errors
    /// If the reactor cannot watch the endpoint's descriptors.
    pub async fn run_until<E: Endpoint + ?Sized>(
        &mut self,
        endpoint: &mut E,
        mut done: impl FnMut(&mut E) -> bool,
    ) -> Result<()> {
        let mut turns = 0;
        loop {
            let next = endpoint.progress(self.clock.now());
            if done(endpoint) {
                return Ok(());
            }
            turns += 1;
            if next == Next::Again {
                self.pacer.worked();
            } else if self.pacer.idle() == Pace::Sleep {
                self.sleep(endpoint).await?;
                continue;
            }
            if turns % TURNS_PER_YIELD == 0 || next != Next::Again {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn sleep<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E) -> Result<()> {
        // The reactor is edge-triggered: what was ready before is forgotten *before* arming and looking again.
        self.watch(endpoint)?;
        for fd in self.watched.values() {
            clear_ready(fd);
        }
        if endpoint.arm().is_err() {
            return Ok(());
        }
        let now = self.clock.now();
        let Next::Idle { until } = endpoint.progress(now) else {
            self.pacer.worked();
            return Ok(());
        };
        let watched: Vec<_> = self.watched.values().collect();
        let ready = any_readable(&watched);
        match until.map(|until| until.since(now)) {
            // Tokio's timers have milliseconds; a shorter wait is a yield.
            Some(left) if left < Duration::from_millis(1) => tokio::task::yield_now().await,
            Some(left) => drop(tokio::time::timeout(left, ready).await),
            None => ready.await?,
        }
        self.pacer.woke();
        Ok(())
    }

    fn watch<E: Endpoint + ?Sized>(&mut self, endpoint: &E) -> Result<()> {
        self.set.clear();
        endpoint.wait_set(&mut self.set);
        let set = &self.set;
        self.watched.retain(|fd, _| set.fds().contains(fd));
        for fd in set.fds() {
            if !self.watched.contains_key(fd) {
                self.watched.insert(*fd, watch(*fd)?);
            }
        }
        Ok(())
    }
}

/// Watches a duplicate, so that the endpoint may close its own at any time.
fn watch(fd: RawFd) -> Result<AsyncFd<OwnedFd>> {
    let fail = |e: std::io::Error| Error::os("tokio AsyncFd", "watch a completion channel", e);
    // SAFETY: the endpoint has just named it as one of its open descriptors.
    let fd = rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 0)
        .map_err(|e| fail(e.into()))?;
    // SAFETY: the descriptor is owned by the `AsyncFd`, so it stays open and the same while registered.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(|e| fail(e.into()))
}

/// Forgets readiness that the reactor has reported so far.
fn clear_ready(fd: &AsyncFd<OwnedFd>) {
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    if let std::task::Poll::Ready(Ok(mut guard)) = fd.poll_read_ready(&mut context) {
        guard.clear_ready();
    }
}

/// Completes when one of the descriptors is readable.
async fn any_readable(fds: &[&AsyncFd<OwnedFd>]) -> Result<()> {
    std::future::poll_fn(|context| {
        for fd in fds {
            if let std::task::Poll::Ready(ready) = fd.poll_read_ready(context) {
                return std::task::Poll::Ready(ready.map(drop));
            }
        }
        std::task::Poll::Pending
    })
    .await
    .map_err(|e| Error::os("tokio AsyncFd", "wait for a completion channel", e))
}
