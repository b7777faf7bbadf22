//! Under which conditions figures were taken: without them they mean nothing.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Named conditions, in the order they were added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    entries: Vec<(String, String)>,
}

impl Conditions {
    /// What is true of every measurement on this machine today: version, date, host, kernel, processor.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let mut conditions = Self::default();
        let uname = rustix::system::uname();
        conditions.push("version", format!("farcall {}", env!("CARGO_PKG_VERSION")));
        conditions.push("date", utc_date(SystemTime::now()));
        conditions.push("host", uname.nodename().to_string_lossy());
        conditions.push(
            "kernel",
            format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        );
        conditions.push("cpu", format!("{} ({} cores online)", cpu_model(), online_cores()));
        conditions
    }

    /// Adds a condition.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.entries.push((name.into(), value.into()));
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

fn online_cores() -> usize {
    // Counts lines rather than asking for parallelism, which pinning narrows.
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpuinfo.lines().filter(|line| line.starts_with("processor")).count().max(1)
}

fn cpu_model() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned())
}

/// `YYYY-MM-DD hh:mm UTC`.
fn utc_date(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, minute_of_day) = (seconds / 86_400, seconds % 86_400 / 60);
    let (year, month, day) = civil_from_days(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minute_of_day / 60, minute_of_day % 60)
}

/// The Gregorian date of a number of days after 1970-01-01, counting years from March so that leap days come last
/// (Hinnant, "chrono-compatible low-level date algorithms").
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_across_leap_years() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_799, "2000-02-29 23:59 UTC"),
            (1_709_251_200, "2024-03-01 00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc_date(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn this_machine_is_described() {
        let conditions = Conditions::of_this_machine();
        for name in ["version", "date", "host", "kernel", "cpu"] {
            assert!(conditions.iter().any(|(found, value)| found == name && !value.is_empty()), "{name}");
        }
    }
}
