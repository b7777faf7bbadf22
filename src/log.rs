//! The log: messages of the libraries on standard error, one per line, for a terminal, a file or systemd's journal.

use std::env;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::OnceLock;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;

/// Selects the logged messages: a level, or a list of `PACKAGE=LEVEL`.
#[derive(Debug, Clone)]
pub struct LogFilter(Targets);

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let mut targets = Targets::new();
        for part in text.split(',') {
            let (package, level) =
                part.split_once('=').map_or((None, part), |(name, level)| (Some(name), level));
            if !LEVELS.contains(&level) {
                let levels = LEVELS.join(", ");
                return Err(format!(
                    "{level:?} is not a level; levels are {levels}, such as in info,farcall_rpc=debug"
                ));
            }
            let level = LevelFilter::from_str(level).map_err(|error| error.to_string())?;
            targets = match package {
                Some(package) => targets.with_target(package, level),
                None => targets.with_default(level),
            };
        }
        Ok(Self(targets))
    }
}

/// Handle with which the filter is changed.
static FILTER: OnceLock<Handle<Targets, Registry>> = OnceLock::new();

/// Starts the log on standard error with warnings, or as `filter` selects.
pub fn start(filter: Option<LogFilter>) {
    let goes_to_journal = env::var("JOURNAL_STREAM").is_ok_and(|name| is_standard_error(&name));
    let is_for_terminal = filter.is_none() && io::IsTerminal::is_terminal(&io::stderr());
    let line = Line {
        goes_to_journal,
        has_time: !goes_to_journal && !is_for_terminal,
        has_target: filter.is_some(),
    };
    let targets = filter.map_or_else(|| Targets::new().with_default(LevelFilter::WARN), |filter| filter.0);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        // If standard error is closed, logging errors cannot be reported.
        .log_internal_errors(false)
        .event_format(line);
    let (targets, handle) = reload::Layer::new(targets);
    FILTER.get_or_init(|| handle);
    tracing_subscriber::registry().with(targets).with(layer).init();
}

/// Changes the filter of the log.
pub fn change(filter: LogFilter) {
    // Without a log there is no filter to change.
    let _ = FILTER.get().map(|handle| handle.reload(filter.0));
}

/// Returns whether `$JOURNAL_STREAM` (systemd.exec(5)) names the device and inode of this process's standard error.
fn is_standard_error(journal: &str) -> bool {
    rustix::fs::fstat(io::stderr()).is_ok_and(|stat| journal == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Format of a line.
struct Line {
    /// `true` if lines begin with a priority instead of a level (sd-daemon(3)); the journal records the time.
    goes_to_journal: bool,
    has_time: bool,
    has_target: bool,
}

/// Returns the priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        if self.goes_to_journal {
            write!(writer, "<{}>", priority(*metadata.level()))?;
        } else {
            if self.has_time {
                SystemTime.format_time(&mut writer)?;
                writer.write_char(' ')?;
            }
            write!(writer, "{:>5} ", metadata.level())?;
        }
        if self.has_target {
            write!(writer, "{}: ", metadata.target())?;
        }
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_levels_and_packages() {
        let LogFilter(targets) = "info,farcall_rpc=debug,farcall_kv=off".parse().unwrap();
        assert!(targets.would_enable("farcall_drive", &Level::INFO));
        assert!(!targets.would_enable("farcall_drive", &Level::DEBUG));
        assert!(targets.would_enable("farcall_rpc::server", &Level::DEBUG));
        assert!(!targets.would_enable("farcall_kv", &Level::ERROR));
        for wrong in ["", "loud", "farcall_rpc=", "farcall_rpc", "info,,debug"] {
            let why = wrong.parse::<LogFilter>().unwrap_err();
            assert!(why.contains("warn, info"), "{wrong}: {why}");
        }
    }
}
