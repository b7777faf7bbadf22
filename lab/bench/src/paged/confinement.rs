//! Limit of resident memory for a program, and backing of its other pages.

use super::local_swap::SwapArea;
use super::{Backing, NotHere};
use crate::experiments::ExperimentEnv;
use crate::experiments::server::ServerError;
use crate::nodes::Nodes;
use farcall::select::Selection;
use farcall_paging::{Cgroup, Config, Hierarchy, preflight};
use farcall_verbs::with_sources;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Name of the cgroup. There is one at a time.
const CGROUP: &str = "farcall-figures";
/// Timeout for killed processes to exit.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// Shell script that joins the cgroup whose file is its first argument, and then executes the program.
const JOIN: &str = "echo $$ > \"$0\" && exec \"$@\"";
/// Bytes of a swap area in addition to the program's memory: the kernel uses some itself, and temporarily stores some
/// pages twice.
const SPARE_BYTES: u64 = 64 << 20;

/// Confinement of a program. The program must have exited before this is dropped, which reverts all settings.
pub(super) struct Confinement {
    /// Command in front of the program and its arguments.
    prefix: Vec<String>,
    /// Dropped in this order: once the limit is removed, pages of processes that have not exited can return from the
    /// area.
    _limit: Option<Limit>,
    _area: Option<SwapArea>,
    _nodes: Option<Nodes>,
}

impl Confinement {
    /// Returns no confinement.
    pub(super) fn none() -> Self {
        Self { prefix: Vec::new(), _limit: None, _area: None, _nodes: None }
    }

    /// Creates the limit and the backing for a program with a peak of `peak_bytes`, of which `resident_bytes` may be
    /// resident.
    pub(super) fn open(
        backing: Backing,
        resident_bytes: u64,
        peak_bytes: u64,
        nic: &Selection,
        env: &ExperimentEnv,
    ) -> Result<Self, NotHere> {
        let size_bytes = (peak_bytes + SPARE_BYTES).next_multiple_of(1 << 20);
        match backing {
            Backing::None => Ok(Self::none()),
            Backing::Bare => Self::paged(resident_bytes, size_bytes, nic, None),
            Backing::Remote => {
                let nodes = Nodes::start(nic, 1, size_bytes, env.server_core)?;
                Self::paged(resident_bytes, size_bytes, nic, Some(nodes))
            }
            Backing::Disk => Self::local(resident_bytes, || SwapArea::on_disk(size_bytes)),
            Backing::Zram => Self::local(resident_bytes, || SwapArea::in_zram(size_bytes)),
        }
    }

    /// Confines by `farcall page`; without nodes its pager stores the pages itself.
    fn paged(
        resident_bytes: u64,
        size_bytes: u64,
        nic: &Selection,
        nodes: Option<Nodes>,
    ) -> Result<Self, NotHere> {
        let obstacles = preflight(&Config {
            version: Config::VERSION,
            nodes: Vec::new(),
            directory: None,
            replicas: 1,
            size_bytes,
            slab_bytes: size_bytes,
            resident_bytes,
            may_stall: true,
            program: String::new(),
        });
        if !obstacles.is_empty() {
            let words = obstacles.iter().map(|it| format!("{} ({})", it.what, it.remedy));
            return Err(NotHere(words.collect::<Vec<_>>().join("; ")));
        }
        let mut prefix: Vec<String> = ["/proc/self/exe", "page", "--may-stall"].map(str::to_owned).into();
        prefix.extend(["--resident".to_owned(), resident_bytes.to_string()]);
        prefix.extend(["--size".to_owned(), size_bytes.to_string()]);
        prefix.extend(nodes.as_ref().map_or_else(|| vec!["--bare".to_owned()], Nodes::client_args));
        prefix.extend(nic.args());
        prefix.push("--".to_owned());
        Ok(Self { prefix, _limit: None, _area: None, _nodes: nodes })
    }

    fn local(resident_bytes: u64, area: impl FnOnce() -> io::Result<SwapArea>) -> Result<Self, NotHere> {
        let area = area().map_err(|error| NotHere(format!("no swap area: {error}")))?;
        let limit = Limit::create(resident_bytes)
            .map_err(|error| NotHere(format!("no cgroup with a limit of memory: {error}")))?;
        let processes = limit.0.processes_file().to_string_lossy().into_owned();
        let prefix = ["sh", "-c", JOIN, &processes].map(str::to_owned).into();
        Ok(Self { prefix, _limit: Some(limit), _area: Some(area), _nodes: None })
    }

    /// Returns the command that starts a program in it.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        match self.prefix.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        }
    }
}

/// A cgroup; dropping it kills its processes.
struct Limit(Cgroup);

impl Limit {
    fn create(resident_bytes: u64) -> io::Result<Self> {
        let hierarchy =
            Hierarchy::find()?.ok_or_else(|| io::Error::other("there is no memory controller"))?;
        let limit = Self(hierarchy.cgroup(CGROUP));
        // A previous run that was killed may have left it.
        limit.end();
        limit.0.create(resident_bytes)?;
        Ok(limit)
    }

    fn end(&self) {
        self.0.kill_all();
        self.0.wait_until_empty(END_PATIENCE);
        // If it cannot be removed, the next run does so.
        let _ = self.0.remove();
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.end();
    }
}

impl From<ServerError> for NotHere {
    fn from(error: ServerError) -> Self {
        Self(with_sources(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_started_behind_what_confines_it() {
        let words = |confinement: &Confinement| {
            let mut command = confinement.command("redis-server");
            command.arg("--port");
            let args = command.get_args().map(|word| word.to_string_lossy().into_owned());
            [command.get_program().to_string_lossy().into_owned()].into_iter().chain(args).collect::<Vec<_>>()
        };
        assert_eq!(words(&Confinement::none()), ["redis-server", "--port"]);
        let prefix = ["sh", "-c", JOIN, "/file"].map(str::to_owned).into();
        let confined = Confinement { prefix, ..Confinement::none() };
        assert_eq!(words(&confined), ["sh", "-c", JOIN, "/file", "redis-server", "--port"]);
    }

    /// Tests the shell script: the program runs, and the process id in the file is its own.
    #[test]
    fn a_program_joins_before_it_begins() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let prefix = ["sh", "-c", JOIN, &file.path().to_string_lossy()].map(str::to_owned).into();
        let confined = Confinement { prefix, ..Confinement::none() };
        let output = confined.command("sh").args(["-c", "echo $$"]).output().unwrap();
        assert_eq!(output.stdout, std::fs::read(file.path()).unwrap());
        assert!(output.stdout.len() > 1, "{output:?}");
    }
}
