//! A thread that looks now and then.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Something that is done now and then by a thread of its own, until this is dropped: then a turn that has begun ends.
pub(super) struct Rounds {
    /// Nothing is ever sent: the thread ends when this is gone.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rounds {
    /// The first turn is at once.
    pub fn start(name: &str, period: Duration, mut turn: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let run = move || {
            turn();
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                turn();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its thread.
            let _ = thread.join();
        }
    }
}
