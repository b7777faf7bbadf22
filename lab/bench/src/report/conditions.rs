//! Conditions of a measurement, without which figures cannot be interpreted.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Named conditions, in the order they were added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    entries: Vec<(String, String)>,
}

impl Conditions {
    /// Returns the conditions of every measurement on this machine: version, date, host, kernel, processor.
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
        conditions.push("cpu", cpu());
        conditions
    }

    /// Adds a condition.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.entries.push((name.into(), value.into()));
    }

    /// Replaces a condition.
    pub fn replace(&mut self, name: &str, value: impl Into<String>) {
        self.entries.retain(|(told, _)| told != name);
        self.push(name, value);
    }

    /// Returns names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

fn cpu() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    // Counts lines instead of using the available parallelism, which pinning reduces.
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count().max(1);
    format!("{model} ({cores} cores online)")
}

/// Formats a time as `YYYY-MM-DD hh:mm UTC`.
fn utc_date(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as libc::time_t);
    // SAFETY: the structure consists of integers and a pointer, for which zero is valid.
    let mut date: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live local variables; the call reads the first and writes the second.
    unsafe { libc::gmtime_r(&raw const seconds, &raw mut date) };
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, .. } = date;
    format!("{:04}-{:02}-{tm_mday:02} {tm_hour:02}:{tm_min:02} UTC", tm_year + 1900, tm_mon + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_date_is_that_of_its_seconds() {
        let date = UNIX_EPOCH + Duration::from_secs(951_868_799);
        assert_eq!(utc_date(date), "2000-02-29 23:59 UTC");
    }

    #[test]
    fn this_machine_is_described() {
        let conditions = Conditions::of_this_machine();
        for name in ["version", "date", "host", "kernel", "cpu"] {
            assert!(conditions.iter().any(|(found, value)| found == name && !value.is_empty()), "{name}");
        }
    }
}
