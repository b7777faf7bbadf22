//! Output of commands: results on standard output as text or JSON, progress on standard error.

use crate::failure::Failure;
use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The form of the output, chosen by `--json`.
#[derive(Debug, Clone, Copy)]
pub struct Console {
    is_json: bool,
    /// `true` if tables may be wider than 100 columns.
    pub is_wide: bool,
}

impl Console {
    /// Creates the output in JSON or text form.
    pub fn new(is_json: bool, is_wide: bool) -> Self {
        Self { is_json, is_wide }
    }

    /// Returns whether results are JSON.
    pub fn is_json(self) -> bool {
        self.is_json
    }

    /// Prints a result in the requested form.
    ///
    /// # Errors
    /// If standard output cannot be written to. A closed pipe is not an error: the reader has read what it needed.
    pub fn print(self, text: &dyn Display, json: &serde_json::Value) -> Result<(), Failure> {
        self.raw(if self.is_json { format!("{json:#}\n") } else { format!("{text}\n") }.as_bytes())
    }

    /// Prints one line of JSON, or the text, for results that are printed one by one.
    ///
    /// # Errors
    /// Like [`Self::print`].
    pub fn print_line(self, text: &dyn Display, json: &serde_json::Value) -> Result<(), Failure> {
        self.raw(if self.is_json { format!("{json}\n") } else { format!("{text}\n") }.as_bytes())
    }

    /// Writes bytes without change.
    ///
    /// # Errors
    /// Like [`Self::print`].
    pub fn raw(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure::because("cannot write the result to standard output", &error))
            }
            _ => Ok(()),
        }
    }

    /// Reports a failure: on standard error as text, and as JSON on standard output if JSON was requested.
    pub fn fail(self, failure: &Failure) {
        eprintln!("{failure}");
        if self.is_json {
            // A failure here cannot be reported any more.
            let _ = self.print(&"", &failure.to_json());
        }
    }
}

/// Creates a bar over `total` steps on standard error, which is invisible unless it is a terminal.
pub fn progress_bar(total: u64, unit: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(&format!(
        "{{msg}} [{{bar:30}}] {{human_pos}}/{{human_len}} {unit} ({{per_sec}}, {{eta}} left)"
    ));
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Creates a status line on standard error, which is invisible unless it is a terminal.
pub fn spinner() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}");
    let bar =
        ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    // Slow, so that drawing does not disturb the measurement.
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
