//! `farcall conform`: the conformance suite of verbs on a provider of this machine.

mod listen;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use farcall::verbs::Device;
use farcall_conformance::{
    Case, Host, Local, Outcome, Simulated, World, all, matches, of_provider, run, serve,
};
use serde_json::json;

use crate::commands::kv::resolve;
use crate::commands::nic_args::NicArgs;
use crate::console::{Console, progress_bar};
use crate::failure::{Exit, Failure};

/// Timeout of a suite without a message to its other end.
const PEER_TIMEOUT: Duration = Duration::from_secs(600);

/// Check the verbs of a device against the InfiniBand specification.
///
/// Runs the conformance suite, whose cases follow the specification and the man pages. Fails if a case fails that is not
/// a known deviation of the provider. Features that the device does not have are reported as unsupported.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall conform                               the software RNIC, in one process\n  \
                        farcall conform --sides processes --filter 'rc/*'\n  \
                        farcall conform --list | grep atomic\n  \
                        farcall conform --listen 0.0.0.0:11401         one end; at the other host:\n  \
                        farcall conform --connect server:11401 --filter 'rc/*'\n  \
                        farcall conform --json | jq '.cases[] | select(.outcome == \"fail\")'"
)]
pub struct Conform {
    #[command(flatten)]
    nic: NicArgs,
    /// Placement of the two ends.
    #[arg(long, value_enum, default_value_t = Sides::Local)]
    sides: Sides,
    /// Command that starts the other end, placed before the name of this program, such as `--other-end 'ip netns exec B'`
    /// for another network namespace. It must pass on standard input, which is a socket.
    #[arg(long, value_name = "WORDS", conflicts_with = "sides")]
    other_end: Option<String>,
    /// Run as the other end for suites of other hosts, one at a time, until SIGINT. Of the other options, only those of
    /// the provider have an effect. There is no authentication: listen only on a network that you trust.
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve, conflicts_with_all = ["sides", "other_end", "connect"])]
    listen: Option<SocketAddr>,
    /// Use the other end at this address, where `farcall conform --listen` of the same release runs.
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve, conflicts_with_all = ["sides", "other_end"])]
    connect: Option<SocketAddr>,
    /// With `--sides users`: user ID and group ID of the other end.
    #[arg(long, value_name = "UID", default_value_t = 65_534)]
    other_user: u32,
    /// With `--sides simulated`: seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only cases whose name matches; `*` matches any text. May be given several times.
    #[arg(long = "filter", value_name = "PATTERN")]
    filters: Vec<String>,
    /// Timeout of each wait in milliseconds; known deviations have a tenth of it [default: 20000 on the software RNIC,
    /// 60000 on other devices].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=600_000))]
    deadline_ms: Option<u64>,
    /// List the cases with their sources, and run none.
    #[arg(long)]
    list: bool,
    /// Report every case, not only failures: on standard output, or on standard error with --json.
    #[arg(long, short)]
    verbose: bool,
    /// Run as the other end, on the socket that is standard input.
    #[arg(long, hide = true)]
    agent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sides {
    /// One process.
    Local,
    /// Two processes.
    Processes,
    /// Two processes of different users (requires root, and a group configured for both).
    Users,
    /// Two nodes of a simulated network, in virtual time, with any provider.
    Simulated,
    /// Two processes with different pid, ipc, user and mount namespaces (requires `unshare`).
    Containers,
}

impl Conform {
    /// Runs the cases and reports their results.
    ///
    /// # Errors
    /// If the provider or the other end cannot be started.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if self.agent {
            return self.serve_end();
        }
        if let Some(address) = self.listen {
            return listen::listen(address, console, || self.agent_command(&[]));
        }
        let cases = self.chosen()?;
        if self.list {
            return list(console, &cases);
        }
        let world = self.world()?;
        let deviations = match (&*world.name(), world.provider()) {
            // The kernel's software RNIC, whose devices have this name by convention.
            (name, "ibv") if name.contains("(rxe") => of_provider("rxe"),
            (name, "ibv") if name.contains("(softnic") => of_provider("drop-in"),
            (_, provider) => of_provider(provider),
        };
        let bar = progress_bar(cases.len() as u64, "cases");
        let mut printed = Ok(());
        let report = run(&world, &cases, deviations, |ended| {
            bar.inc(1);
            bar.set_message(ended.name.clone());
            if self.verbose || matches!(ended.outcome, Outcome::Fail { .. }) {
                // Results go to standard output; with --json it contains only the report.
                let now = bar.suspend(|| match console.is_json() {
                    true => {
                        eprintln!("{ended}");
                        Ok(())
                    }
                    false => console.raw(format!("{ended}\n").as_bytes()),
                });
                printed = now.err().map_or(std::mem::replace(&mut printed, Ok(())), Err);
            }
        })
        .map_err(|why| Failure::new("cannot run the suite").why(why))?;
        bar.finish_and_clear();
        printed?;
        let json = serde_json::to_value(&report)
            .map_err(|error| Failure::because("cannot write the report", &error))?;
        console.print(&report, &json)?;
        Ok(if report.failed() == 0 { Exit::Success } else { Exit::Failure })
    }

    fn chosen(&self) -> Result<Vec<Case>, Failure> {
        let wanted = |case: &Case| {
            self.filters.is_empty() || self.filters.iter().any(|filter| matches(filter, &case.name))
        };
        let cases: Vec<Case> = all().into_iter().filter(wanted).collect();
        if cases.is_empty() {
            return Err(Failure::new("no case matches the filter").remedy("list the cases: --list"));
        }
        Ok(cases)
    }

    fn device(&self) -> Result<Arc<dyn Device>, Failure> {
        let provider = self.nic.provider()?;
        let mut devices = provider
            .devices()
            .map_err(|error| Failure::because("cannot list devices", &error).at(provider.name()))?;
        if devices.is_empty() {
            return Err(Failure::new("no device")
                .at(provider.name())
                .remedy("list devices: farcall devices"));
        }
        Ok(devices.swap_remove(0))
    }

    fn world(&self) -> Result<Rc<dyn World>, Failure> {
        if self.sides == Sides::Simulated {
            return Ok(Rc::new(Simulated::new(self.seed)));
        }
        let mut host = Host::new(self.device()?);
        if let Some(deadline_ms) = self.deadline_ms {
            host = host.with_deadline(Duration::from_millis(deadline_ms));
        }
        if let Some(words) = &self.other_end {
            let prefix: Vec<&str> = words.split_whitespace().collect();
            let how = format!("two processes, one started by: {words}");
            return in_processes(host.between_hosts().with_agent(self.agent_command(&prefix)?, how));
        }
        if let Some(address) = self.connect {
            let connected = host.connected_to(address).map_err(|why| {
                let failure = Failure::new("cannot reach the other end").at(address).why(why);
                failure.exit(Exit::Unreachable).remedy(
                    "start it there: farcall conform --listen HOST:PORT; it serves one suite at a time",
                )
            });
            return connected.map(|world| Rc::new(world) as Rc<dyn World>);
        }
        let started = match self.sides {
            Sides::Local | Sides::Simulated => return Ok(Rc::new(host)),
            Sides::Processes => host.with_agent(self.agent_command(&[])?, "two processes"),
            Sides::Users => {
                check_users(self.other_user)?;
                let mut command = self.agent_command(&[])?;
                command.uid(self.other_user).gid(self.other_user);
                host.with_agent(command, format!("two processes, one of user {}", self.other_user))
            }
            Sides::Containers => {
                let unshare = ["unshare", "--user", "--map-root-user", "--pid", "--ipc", "--mount", "--fork"];
                let how = "two processes with separate pid, ipc, user and mount namespaces";
                host.with_agent(self.agent_command(&unshare)?, how)
            }
        };
        in_processes(started)
    }

    /// Returns the command of this program as the other end, started by the words of `prefix`.
    fn agent_command(&self, prefix: &[&str]) -> Result<Command, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::because("cannot find this program's file", &error))?;
        let mut words = prefix.iter().map(std::ffi::OsStr::new).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or(program.as_os_str()));
        command.args(words).args(["conform", "--agent"]);
        command.args(self.nic.selection().args());
        Ok(command)
    }

    fn serve_end(&self) -> Result<Exit, Failure> {
        let device = self.device()?;
        let context = device.open().map_err(|error| Failure::because("cannot open the device", &error))?;
        let line = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Failure::because("standard input is not a socket", &error))?;
        let line = UnixStream::from(line);
        // A suite that sends no messages must not occupy this end forever.
        line.set_read_timeout(Some(PEER_TIMEOUT))
            .map_err(|error| Failure::because("standard input is not a socket", &error))?;
        serve(Local::new(device.provider(), context), line)
            .map_err(|error| Failure::because("the connection to the suite failed", &error))?;
        Ok(Exit::Success)
    }
}

/// Checks that the test has two different users that are permitted to connect.
fn check_users(other: u32) -> Result<(), Failure> {
    let own = rustix::process::geteuid().as_raw();
    let refusal = Failure::new("cannot test two users").exit(Exit::Usage);
    if own == other {
        return Err(refusal
            .why(format!("both ends would have user {own}"))
            .remedy("name another user: --other-user UID"));
    }
    if own != 0 {
        return Err(refusal.why("only root can start processes of other users").remedy("run it as root"));
    }
    if std::env::var_os("FARCALL_GROUP").is_none() || std::env::var_os("FARCALL_SOCKET_DIR").is_none() {
        return Err(refusal.why("users connect only if both are members of a group").remedy(
            "set FARCALL_GROUP to a group of both, and FARCALL_SOCKET_DIR to a directory of this group: see docs/CONFORMANCE.md",
        ));
    }
    Ok(())
}

fn in_processes(started: Result<Host, String>) -> Result<Rc<dyn World>, Failure> {
    let world = started.map_err(|why| Failure::new("cannot start the other end").why(why))?;
    Ok(Rc::new(world))
}

fn list(console: Console, cases: &[Case]) -> Result<Exit, Failure> {
    let lines: Vec<String> = cases.iter().map(|case| format!("{}  ({})", case.name, case.source)).collect();
    let values: Vec<_> =
        cases.iter().map(|case| json!({ "name": case.name, "source": case.source })).collect();
    console.print(&lines.join("\n"), &json!({ "cases": values }))?;
    Ok(Exit::Success)
}
