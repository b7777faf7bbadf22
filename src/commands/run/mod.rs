//! `farcall run -- CMD`.

mod program;

use super::explain;
use super::verbs::library;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

/// Name of the library as built by cargo, and in `../lib/farcall`.
const LIBRARY: &str = "libfarcall_preload.so";
/// Enables the report of connections that have ended; read by the library.
const REPORT_VARIABLE: &str = "FARCALL_RUN_REPORT";
/// Ports whose connections are moved; read by the library.
const ONLY_VARIABLE: &str = "FARCALL_RUN_ONLY";
/// Enables moving connections of programs that can make system calls directly; read by the library.
const DIRECT_CALLS_VARIABLE: &str = "FARCALL_RUN_ALLOW_DIRECT_CALLS";

/// Run a socket program whose TCP connections use shared memory on this host.
///
/// Both ends must be started with this command, by the same user. All other connections use TCP without change. The TCP
/// socket remains for the handshake, for the end, and for operations that need the kernel (fork, dup, sendfile, urgent
/// data, ...): for these, a connection returns to TCP at a byte on which both ends agree. Static, musl and Go programs,
/// and programs with the set-user-ID bit, use TCP, which is reported once. So do programs whose code or libraries can
/// make system calls directly (liburing, assembler), because bytes that bypass the library would be reordered; farcall
/// explain names the file. FARCALL_RUN_EXCEPT=LIST excludes ports and names of programs. Connections between hosts do not
/// change.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall run -- redis-server --port 7000 &\n  farcall run -- redis-benchmark -p 7000 -c 1\n  \
                  farcall run --only 7000,7001 -- ./mine\n  farcall run --allow-direct-calls -- mariadbd\n  farcall run --report -- redis-cli -p 7000 ping\n  \
                  farcall explain PID                the transport of each connection of a process, and the reason"
)]
pub struct Run {
    /// Use shared memory only for connections to these ports, separated by commas.
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    only: Vec<u16>,
    /// When the program exits, print the transports of its connections on standard error, like farcall explain.
    #[arg(long)]
    report: bool,
    /// Also use shared memory for a program that can make system calls directly. Only for programs that make none on TCP
    /// connections: bytes that they read or write with such calls are reordered.
    #[arg(long)]
    allow_direct_calls: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// Replaces this process by the program; with a report, waits for the program.
    ///
    /// # Errors
    /// If the library is missing, or the program cannot be started.
    pub fn run(self, _console: Console) -> Result<Exit, Failure> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::new("no program to run").exit(Exit::Usage));
        };
        let mut command = Command::new(program);
        command.args(arguments);
        match program::reason_for_tcp(program) {
            Some(why) => eprintln!("farcall: {} uses TCP: {why}", program.display()),
            None => self.preload(&mut command)?,
        }
        if self.report {
            command.env(REPORT_VARIABLE, "1");
        } else {
            let error = command.exec();
            return Err(Failure::because("cannot start the program", &error).at(program.display()));
        }
        let mut child = command
            .spawn()
            .map_err(|error| Failure::because("cannot start the program", &error).at(program.display()))?;
        let pid = child.id();
        let status = child.wait().map_err(|error| Failure::because("cannot wait for the program", &error))?;
        match explain::read(pid) {
            Ok(explained) => eprintln!("{explained}"),
            Err(_) => eprintln!("farcall: process {pid} had no TCP connection within this host"),
        }
        // The exit code that a shell reports.
        std::process::exit(status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1))
    }

    fn preload(&self, command: &mut Command) -> Result<(), Failure> {
        let file = library::find_one(LIBRARY, LIBRARY)?;
        if !library::can_be_listed(&file) {
            return Err(Failure::new("the path of the library cannot be passed to the loader")
                .at(file.display())
                .remedy("install farcall in a path without spaces, colons and semicolons"));
        }
        self.set_variables(&file, command);
        Ok(())
    }

    /// Sets the variables that the loader, the library and runtimes of the program read.
    fn set_variables(&self, file: &Path, command: &mut Command) {
        command.env("LD_PRELOAD", library::before(file, "LD_PRELOAD"));
        // The runtime of AddressSanitizer refuses to be loaded after another library, although this works here.
        command.env("ASAN_OPTIONS", library::before(Path::new("verify_asan_link_order=0"), "ASAN_OPTIONS"));
        if self.allow_direct_calls {
            command.env(DIRECT_CALLS_VARIABLE, "1");
        }
        if !self.only.is_empty() {
            let ports: Vec<String> = self.only.iter().map(u16::to_string).collect();
            command.env(ONLY_VARIABLE, ports.join(","));
        } else if env::var_os(ONLY_VARIABLE).is_some() {
            command.env_remove(ONLY_VARIABLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value of a variable that the program receives.
    fn variable(run: &Run, name: &str) -> Option<OsString> {
        let mut command = Command::new("true");
        run.set_variables(Path::new("/opt/lib/library.so"), &mut command);
        let value = command.get_envs().find(|(variable, _)| *variable == name);
        value.and_then(|(_, value)| value.map(OsString::from))
    }

    #[test]
    fn sets_variables_of_loader_library_and_sanitizer() {
        let mut run = Run { only: vec![], report: false, allow_direct_calls: false, command: vec![] };
        assert!(variable(&run, "LD_PRELOAD").unwrap().to_str().unwrap().starts_with("/opt/lib/library.so"));
        let sanitizer = variable(&run, "ASAN_OPTIONS").unwrap();
        assert!(sanitizer.to_str().unwrap().split(':').any(|option| option == "verify_asan_link_order=0"));
        assert_eq!(variable(&run, DIRECT_CALLS_VARIABLE), None);
        (run.only, run.allow_direct_calls) = (vec![7000, 7001], true);
        assert_eq!(variable(&run, DIRECT_CALLS_VARIABLE), Some("1".into()));
        assert_eq!(variable(&run, ONLY_VARIABLE), Some("7000,7001".into()));
    }
}
