//! Detects calls of a provider that never return, which no deadline within a case can end.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Ends the process if a case takes far longer than all its waits together may. The watching thread ends when this is
/// dropped.
pub(crate) struct Watchdog(mpsc::Sender<String>);

impl Watchdog {
    /// Starts the thread, which watches from the first case on.
    pub(crate) fn start(limit: Duration) -> Self {
        let (sender, names) = mpsc::channel::<String>();
        std::thread::spawn(move || {
            let Ok(mut running) = names.recv() else { return };
            loop {
                match names.recv_timeout(limit) {
                    Ok(next) => running = next,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!(
                            "FAIL         {running}\n             a call of the provider has not returned for {limit:?}; \
                             nothing can run after it"
                        );
                        std::process::exit(1);
                    }
                }
            }
        });
        Self(sender)
    }

    /// Records the start of a case.
    pub(crate) fn begins(&self, name: &str) {
        self.0.send(name.into()).expect("the thread ends after us only");
    }
}
