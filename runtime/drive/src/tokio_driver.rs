//! Endpoints as futures, driven by tokio's reactor instead of poll(2).

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use farcall_link::WaitStrategy;
use farcall_verbs::{Clock, Endpoint, Error, Progress, Result, WaitSet};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, Sleep};

use crate::{Pollers, Waiter};

/// Drives endpoints on a tokio runtime with enabled IO and time drivers.
pub struct TokioDriver<C> {
    clock: C,
    waiter: Waiter,
    set: WaitSet,
    watched: HashMap<RawFd, AsyncFd<OwnedFd>>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Number of iterations with work before the future yields to other tasks.
const TURNS_PER_YIELD: u32 = 64;
/// Resolution of tokio's timers. A shorter wait yields instead, unless the endpoint expects a long wait.
const TIMER_MIN: Duration = Duration::from_millis(1);

impl<C: Clock> TokioDriver<C> {
    /// Creates a driver with the wait strategy `waiting`. While it polls, it yields to other tasks.
    pub fn new(clock: C, waiting: WaitStrategy) -> Self {
        Self::with_pollers(clock, waiting, None)
    }

    /// Like [`TokioDriver::new`]; `pollers` poll while it sleeps.
    pub fn with_pollers(clock: C, waiting: WaitStrategy, pollers: Option<Pollers>) -> Self {
        let (set, watched) = (WaitSet::default(), HashMap::new());
        Self { clock, waiter: Waiter::new(waiting, pollers), set, watched, timer: None }
    }

    /// Drives the endpoint until `done`, called after every iteration, returns true. The future may be dropped between
    /// two iterations.
    ///
    /// # Errors
    /// If the reactor cannot watch the descriptors of the endpoint.
    pub async fn run_until<E: Endpoint + ?Sized>(
        &mut self,
        endpoint: &mut E,
        mut done: impl FnMut(&mut E) -> bool,
    ) -> Result<()> {
        std::future::poll_fn(|context| self.poll(context, endpoint, &mut done)).await
    }

    /// Like [`TokioDriver::run_until`], for hand-written futures: runs some iterations. Ready when `done` returns
    /// true; otherwise `context` is woken when there is more work.
    ///
    /// # Errors
    /// If the reactor cannot watch the descriptors of the endpoint.
    ///
    /// # Panics
    /// Outside a runtime with enabled IO and time drivers.
    pub fn poll<E: Endpoint + ?Sized>(
        &mut self,
        context: &mut Context<'_>,
        endpoint: &mut E,
        mut done: impl FnMut(&mut E) -> bool,
    ) -> Poll<Result<()>> {
        self.waiter.is_awake();
        for _ in 0..TURNS_PER_YIELD {
            let next = endpoint.progress(self.clock.now());
            if done(endpoint) {
                return Poll::Ready(Ok(()));
            }
            if next == Progress::Again {
                self.waiter.worked();
                continue;
            }
            if endpoint.prefers_sleep() {
                self.waiter.end();
            }
            if !self.waiter.was_idle(endpoint.poll_weight()) {
                break;
            }
            // The reactor is edge-triggered: earlier readiness is cleared *before* arming and checking for work again.
            self.watch(endpoint)?;
            self.watched.values().for_each(clear_ready);
            let now = self.clock.now();
            let next = self.waiter.arm_then_poll(endpoint, now);
            // No event follows the work of the last poll.
            if done(endpoint) {
                return Poll::Ready(Ok(()));
            }
            match next {
                Progress::Again => self.waiter.worked(),
                Progress::Idle { until } => {
                    if self.sleep(context, endpoint, until.map(|until| until.since(now)))? {
                        return Poll::Pending;
                    }
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits on the descriptors of an armed endpoint. Returns whether `context` will be woken and there is no work
    /// before that.
    fn sleep<E: Endpoint + ?Sized>(
        &mut self,
        context: &mut Context<'_>,
        endpoint: &E,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        self.waiter.will_sleep();
        for fd in self.watched.values() {
            if let Poll::Ready(ready) = fd.poll_read_ready(context) {
                let _ready =
                    ready.map_err(|e| Error::os("tokio AsyncFd", "wait for a completion channel", e))?;
                return Ok(false);
            }
        }
        match timeout {
            None => {}
            Some(left) if left < TIMER_MIN && !endpoint.prefers_sleep() => context.waker().wake_by_ref(),
            Some(left) => {
                let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
                timer.as_mut().reset(Instant::now() + left);
                return Ok(timer.as_mut().poll(context).is_pending());
            }
        }
        Ok(true)
    }

    fn watch<E: Endpoint + ?Sized>(&mut self, endpoint: &E) -> Result<()> {
        self.set.clear();
        self.waiter.wait_set(endpoint, &mut self.set);
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

/// Watches a duplicate of the descriptor, so that the endpoint may close its own at any time.
fn watch(fd: RawFd) -> Result<AsyncFd<OwnedFd>> {
    let fail = |e: std::io::Error| Error::os("tokio AsyncFd", "watch a completion channel", e);
    // SAFETY: `fd` is in the wait set that the endpoint has just filled with its open descriptors, and is only
    // duplicated.
    let fd = rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 0)
        .map_err(|e| fail(e.into()))?;
    // SAFETY: the descriptor is owned by the `AsyncFd`, so it stays open and unchanged while it is registered.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(|e| fail(e.into()))
}

/// Clears the readiness that the reactor has reported so far.
fn clear_ready(fd: &AsyncFd<OwnedFd>) {
    if let Poll::Ready(Ok(mut guard)) = fd.poll_read_ready(&mut Context::from_waker(Waker::noop())) {
        guard.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends_once_armed::EndsOnceArmed;
    use farcall_verbs::VirtualClock;

    #[tokio::test]
    async fn checks_whether_it_is_done_before_it_sleeps() {
        let mut endpoint = EndsOnceArmed::default();
        TokioDriver::new(VirtualClock::default(), WaitStrategy::EventBatch)
            .run_until(&mut endpoint, |endpoint| endpoint.has_ended)
            .await
            .unwrap();
        assert!(endpoint.has_ended);
    }
}
