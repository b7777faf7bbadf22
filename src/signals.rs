//! SIGINT and SIGTERM ask the program to end; it ends when it is ready.

use crate::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a server looks for signals and failed threads.
const WATCH: Duration = Duration::from_millis(50);

/// Whether the program was asked to end.
#[derive(Debug, Clone)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Watches both signals from now on. A second signal ends the program at once.
    ///
    /// # Errors
    /// When the system refuses handlers.
    pub fn install() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // In this order: the first signal finds the flag down and raises it, the second finds it up and ends.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .map_err(|error| Failure::because("cannot watch for SIGINT and SIGTERM", &error))?;
        }
        Ok(Self(flag))
    }

    /// Whether a signal came.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until a signal comes, or nothing `is_serving` any more.
    pub fn wait_while(&self, is_serving: impl Fn() -> bool) {
        while !self.is_raised() && is_serving() {
            std::thread::sleep(WATCH);
        }
    }
}
