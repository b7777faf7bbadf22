//! Periodic task in a thread of its own.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Runs a task periodically in a thread of its own until this value is dropped. Dropping waits for a run in progress.
pub(super) struct PeriodicTask {
    /// Nothing is sent over this channel; the thread ends when the sender is dropped.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PeriodicTask {
    /// Starts the thread, which calls `task` immediately and then again after every `period`.
    pub fn start(name: &str, period: Duration, mut task: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let run = move || {
            task();
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                task();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for PeriodicTask {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its thread.
            let _ = thread.join();
        }
    }
}
