//! Notices calls of a provider that never return: no bound inside a case can end those.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Ends the process if a case takes far longer than all its bounded waits together may.
pub(crate) struct Watchdog {
    running: Arc<Mutex<String>>,
    tick: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches from now on.
    pub(crate) fn start(limit: Duration) -> Self {
        let running = Arc::new(Mutex::new(String::new()));
        let (tick, ticks) = mpsc::channel();
        let watched = running.clone();
        let thread = std::thread::spawn(move || {
            loop {
                match ticks.recv_timeout(limit) {
                    Ok(()) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        let name = watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
                        eprintln!(
                            "FAIL         {name}\n             a call of the provider has not returned for {limit:?}; \
                             nothing can run after it"
                        );
                        std::process::exit(1);
                    }
                }
            }
        });
        Self { running, tick: Some(tick), thread: Some(thread) }
    }

    /// A case begins.
    pub(crate) fn begins(&self, name: &str) {
        name.clone_into(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(tick) = &self.tick {
            // The thread ends with us only.
            let _ = tick.send(());
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.tick.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}
