//! Databases under mixes of reads and updates.

use super::confinement::Confinement;
use super::{NotHere, Resident, redis, script, supported};
use crate::experiments::{ExperimentEnv, ExperimentError};
use crate::python::python_with;
use crate::report::Report;
use farcall::select::Selection;
use serde::Deserialize;
use std::fmt;
use std::path::Path;
use std::time::Duration;

const SQLITE: &str = include_str!("sqlite.py");
/// Number of records, of about 1,000 bytes each.
pub(super) const RECORDS: u64 = 96 << 10;
/// Duration of the measurement of each mix.
const DURATION: Duration = Duration::from_secs(2);

/// A database whose records are in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Database {
    /// A server process, accessed through a Unix socket.
    Redis,
    /// Within the client's process.
    Sqlite,
}

names! { Database { Redis => "Redis", Sqlite => "SQLite" } }

/// Facebook's mixes, as in the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    /// 95 % reads.
    Etc,
    /// 75 % reads.
    Sys,
}

/// Configuration of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatabaseTask {
    pub(crate) database: Database,
    pub(crate) mix: Mix,
    pub(crate) resident: Resident,
}

/// Results of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct DatabaseFigures {
    pub(crate) per_second: f64,
    pub(crate) p99_us: f64,
}

/// Results of a database that was filled and then measured under each mix.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Asked {
    pub(super) etc: DatabaseFigures,
    pub(super) sys: DatabaseFigures,
    /// Peak of resident memory in bytes.
    pub(super) peak_bytes: u64,
}

impl Mix {
    pub(super) const fn reads_percent(self) -> u32 {
        match self {
            Self::Etc => 95,
            Self::Sys => 75,
        }
    }
}

impl fmt::Display for DatabaseTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} % reads, {}", self.database, self.mix.reads_percent(), self.resident)
    }
}

/// Results so far. A database is filled once for all figures of a repetition.
#[derive(Default)]
pub(crate) struct Databases {
    asked: Vec<(Database, Resident, u32, Result<Asked, NotHere>)>,
}

impl Databases {
    /// Returns the result of this repetition, measuring it if necessary.
    ///
    /// # Errors
    /// Returns [`NotHere`] if the machine does not support the confinement. Returns an error if a database fails, or if
    /// its bytes are not those that were written.
    pub(crate) fn measure(
        &mut self,
        task: DatabaseTask,
        repetition: u32,
        nic: &Selection,
        env: &ExperimentEnv,
        report: &mut Report,
    ) -> Result<DatabaseFigures, ExperimentError> {
        let DatabaseTask { database, mix, resident } = task;
        let asked = match self.of(database, resident, |of| of == repetition) {
            Some(asked) => asked?,
            None => self.ask(database, resident, repetition, nic, env, report)?,
        };
        Ok(match mix {
            Mix::Etc => asked.etc,
            Mix::Sys => asked.sys,
        })
    }

    fn of(
        &self,
        database: Database,
        resident: Resident,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Option<Result<Asked, NotHere>> {
        let mut all = self.asked.iter();
        let found = all.find(|(of, how, when, _)| (*of, *how) == (database, resident) && is_wanted(*when))?;
        Some(found.3.clone())
    }

    fn ask(
        &mut self,
        database: Database,
        resident: Resident,
        repetition: u32,
        nic: &Selection,
        env: &ExperimentEnv,
        report: &mut Report,
    ) -> Result<Asked, ExperimentError> {
        let confinement = self.confine(database, resident, repetition, nic, env, report);
        let asked = confinement.and_then(|it| run(database, &it, repetition, env, report));
        let asked = supported(asked)?;
        self.asked.push((database, resident, repetition, asked.clone()));
        Ok(asked?)
    }

    fn confine(
        &mut self,
        database: Database,
        resident: Resident,
        repetition: u32,
        nic: &Selection,
        env: &ExperimentEnv,
        report: &mut Report,
    ) -> Result<Confinement, ExperimentError> {
        if resident == Resident::ALL {
            return Ok(Confinement::none());
        }
        let Asked { peak_bytes, .. } = match self.of(database, Resident::ALL, |_| true) {
            Some(all) => all?,
            None => self.ask(database, Resident::ALL, repetition, nic, env, report)?,
        };
        Ok(Confinement::open(resident.backing, resident.bytes_of(peak_bytes), peak_bytes, nic, env)?)
    }
}

/// Fills a database, measures it and ends it.
fn run(
    database: Database,
    confinement: &Confinement,
    repetition: u32,
    env: &ExperimentEnv,
    report: &mut Report,
) -> Result<Asked, ExperimentError> {
    let seed = env.seed.wrapping_add(repetition.into());
    let duration = env.scaled(DURATION);
    match database {
        Database::Redis => redis::run(confinement, duration, seed, env, report),
        Database::Sqlite => {
            let python = python_with("sqlite3", "python3 with SQLite").map_err(NotHere)?;
            let args = [RECORDS.to_string(), duration.as_secs_f64().to_string(), seed.to_string()];
            let cores = [env.server_core, env.client_core];
            script::run(confinement, Path::new(&python), SQLITE, &args, &cores)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_has_the_records_that_were_written_under_both_mixes() {
        let Some(python) = script::tests::python() else { return };
        let core = crate::measure::Cores::allowed().unwrap().as_slice()[0];
        let args = ["1000", "0.05", "7"].map(str::to_owned);
        let asked: Asked = script::run(&Confinement::none(), python, SQLITE, &args, &[core]).unwrap();
        for figures in [asked.etc, asked.sys] {
            assert!(figures.per_second > 0.0 && figures.p99_us > 0.0, "{asked:?}");
        }
        assert!(asked.peak_bytes > 1 << 20, "{asked:?}");
    }
}
