//! SIGINT and SIGTERM ask the program to end; it ends when it is ready.

use crate::config;
use crate::failure::Failure;
use crate::systemd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a server looks for signals and failed threads.
const WATCH: Duration = Duration::from_millis(50);

/// Whether the program was asked to end.
#[derive(Debug, Clone)]
pub struct StopFlag {
    is_raised: Arc<AtomicBool>,
    /// SIGHUP came; watched only with a configuration file.
    hung_up: Arc<AtomicBool>,
}

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
        let hung_up = Arc::new(AtomicBool::new(false));
        // Without a file to read again, a terminal that is closed ends the program as ever.
        if config::is_used() {
            signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&hung_up))
                .map_err(|error| Failure::because("cannot watch for SIGHUP", &error))?;
        }
        Ok(Self { is_raised: flag, hung_up })
    }

    /// Whether a signal came.
    pub fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::Relaxed)
    }

    /// Says that the service is ready, then waits until a signal asks it to end, or nothing `is_serving` any more. With a
    /// configuration file, SIGHUP has it read again.
    pub fn wait_while(&self, is_serving: impl Fn() -> bool) {
        systemd::notify("READY=1");
        while !self.is_raised() && is_serving() {
            if self.hung_up.swap(false, Ordering::Relaxed) {
                config::reload();
            }
            std::thread::sleep(WATCH);
        }
        systemd::notify("STOPPING=1");
    }
}
