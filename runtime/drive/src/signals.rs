//! Termination signals.

use std::io;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `act` once, in its own thread, at the first SIGTERM or SIGINT. A second signal ends the program at once.
///
/// # Errors
/// If a descriptor or thread cannot be created.
pub fn on_termination(act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            act();
        }
        if let Some(signal) = signals.forever().next() {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    })?;
    Ok(())
}
