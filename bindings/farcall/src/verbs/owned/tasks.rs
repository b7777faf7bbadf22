//! Queue pairs under tokio.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use farcall_verbs::{CompChannel, Error, Result};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::pair::{Completion, LOOK_EVERY, Pair};

/// The descriptor of a completion channel, which is kept open.
struct ChannelFd(Arc<dyn CompChannel>);

impl AsRawFd for ChannelFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd()
    }
}

/// A [`Pair`] with asynchronous completions. It dereferences to the pair.
pub struct AsyncPair {
    pair: Pair,
    fd: AsyncFd<ChannelFd>,
}

farcall_verbs::opaque_debug!(AsyncPair);

impl AsyncPair {
    /// Registers with the runtime of the caller, which must have its I/O driver enabled.
    ///
    /// # Errors
    /// If the runtime cannot watch the descriptor.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn new(pair: Pair) -> io::Result<Self> {
        let channel = ChannelFd(pair.channel());
        // SAFETY: the channel is owned by the `AsyncFd`, so its descriptor stays open and unchanged while it is
        // registered.
        let fd = unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }?;
        Ok(Self { pair, fd })
    }

    /// Waits for the next completion. Dropping the future loses no completion.
    ///
    /// # Errors
    /// If the device has failed.
    pub async fn completion(&mut self) -> Result<Completion> {
        loop {
            if let Some(completion) = self.pair.poll()? {
                return Ok(completion);
            }
            self.pair.arm()?;
            if let Some(completion) = self.pair.poll()? {
                return Ok(completion);
            }
            let readable = self.fd.readable();
            let guard = if self.pair.waits_for_a_peer() {
                match tokio::time::timeout(LOOK_EVERY, readable).await {
                    Ok(guard) => guard,
                    Err(_) => continue,
                }
            } else {
                readable.await
            };
            let failed = |error| Error::os("wait for a completion", "watch its descriptor", error);
            // Cleared before arming reads the event, so that later events are detected.
            guard.map_err(failed)?.clear_ready();
        }
    }

    /// Returns the pair.
    #[must_use]
    pub fn into_pair(self) -> Pair {
        self.pair
    }
}

impl Deref for AsyncPair {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.pair
    }
}

impl DerefMut for AsyncPair {
    fn deref_mut(&mut self) -> &mut Pair {
        &mut self.pair
    }
}
