//! SIGINT and SIGTERM request the end of the program, which then ends in an orderly way.

use crate::config;
use crate::failure::{Exit, Failure};
use crate::systemd;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval between two checks for signals and failed threads.
const WATCH: Duration = Duration::from_millis(50);

/// Flag that is set when the end of the program is requested.
#[derive(Debug, Clone)]
pub struct StopFlag {
    is_raised: Arc<AtomicBool>,
    /// `true` if the signal was SIGINT.
    by_hand: Arc<AtomicBool>,
    /// `true` if SIGHUP arrived; watched only with a configuration file.
    hung_up: Arc<AtomicBool>,
}

impl StopFlag {
    /// Installs handlers for both signals. A second signal ends the program at once.
    ///
    /// # Errors
    /// If a handler cannot be installed.
    pub fn install() -> Result<Self, Failure> {
        let (is_raised, by_hand) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGTERM] {
            // By Unix convention, a signal that is ignored when a program starts stays ignored. Ctrl-C also reaches
            // the servers of a benchmark, and the benchmark decides how they end.
            if is_ignored(signal) {
                continue;
            }
            // In this order: the first signal finds the flag unset and sets it; the second finds it set and ends the
            // program.
            let by_hand = if signal == SIGINT { Arc::clone(&by_hand) } else { Arc::default() };
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&is_raised))
                .and_then(|_| signal_hook::flag::register(signal, by_hand))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&is_raised)))
                .map_err(|error| Failure::because("cannot watch for SIGINT and SIGTERM", &error))?;
        }
        let hung_up = Arc::new(AtomicBool::new(false));
        // Without a file to read again, closing the terminal ends the program as usual.
        if config::is_used() {
            signal_hook::flag::register(SIGHUP, Arc::clone(&hung_up))
                .map_err(|error| Failure::because("cannot watch for SIGHUP", &error))?;
        }
        Ok(Self { is_raised, by_hand, hung_up })
    }

    /// Returns whether a signal arrived.
    pub fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::Relaxed)
    }

    /// Returns whether a signal has arrived, or arrives within half a second. A sender that ends a group of processes
    /// signals them one after the other, so this process may notice the exit of another one before its own signal.
    pub fn is_raised_soon(&self) -> bool {
        const MOMENT: Duration = Duration::from_millis(500);
        let begun = std::time::Instant::now();
        while !self.is_raised() && begun.elapsed() < MOMENT {
            std::thread::sleep(WATCH / 5);
        }
        self.is_raised()
    }

    /// Reports to systemd that the service is ready, then waits until a signal requests its end or `is_serving`
    /// returns false. With a configuration file, SIGHUP reads it again. Returns the exit code of a service that was
    /// requested to end: success, or interrupted for SIGINT.
    pub fn wait_while(&self, is_serving: impl Fn() -> bool) -> Exit {
        systemd::notify("READY=1");
        while !self.is_raised() && is_serving() {
            if self.hung_up.swap(false, Ordering::Relaxed) {
                config::reload();
            }
            std::thread::sleep(WATCH);
        }
        systemd::notify("STOPPING=1");
        if self.by_hand.load(Ordering::Relaxed) { Exit::Interrupted } else { Exit::Success }
    }
}

/// Returns whether this process was started with a signal ignored (proc(5), `SigIgn`).
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
