//! `farcall verbs run -- CMD`.

use super::library::{self, Library, before};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_faults::{Spec, VARIABLE};
use farcall_trace::{FORMAT_VARIABLE, TARGET_VARIABLE};
use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Run a program with the software RNIC as its RDMA device.
///
/// The program replaces this process, so that it has its own exit code, signals and terminal. No effect on programs with
/// the set-user-ID bit, which ignore LD_LIBRARY_PATH.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall verbs run -- ibv_devinfo -v\n  farcall verbs run -- ibv_rc_pingpong -g 0\n  \
                  farcall verbs run --trace -- ./mine\n  farcall --json verbs run --trace=mine.%p.jsonl -- ./mine\n  \
                  farcall verbs run --faults seed=7,kill_qp=1e-3,after=100 -- ./mine"
)]
pub struct Run {
    /// Do not preload the library. Preloading shows the device in /sys/class/infiniband and /dev/infiniband, where some
    /// programs search for it (UCX).
    #[arg(long)]
    no_preload: bool,

    /// Print the verbs that the program calls, decoded, with times: on standard error, or appended to FILE (%p in its
    /// name is the process ID). With --json, as JSON lines. Equivalent to the variables FARCALL_TRACE=FILE and
    /// FARCALL_TRACE_FORMAT=json.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    trace: Option<OsString>,
    /// Inject failures of real fabrics: key=value, separated by commas.
    ///
    /// The same seed causes the same failures at the same requests of each queue pair. Probabilities are from 0 to 1.
    /// Equivalent to the variable FARCALL_FAULTS.
    ///
    /// * seed=N: seed of all random choices; chosen and printed if it is not given
    /// * rnr=P: RC: the receiver is not ready; the send completes later, or with RNR_RETRY_EXC_ERR
    /// * drop=P: UC, UD: a message is lost; RC: it is retransmitted, and completes later
    /// * delay=TIME or TIME..TIME: completions are delayed (ns, us, ms, s)
    /// * kill_qp=P: a connection fails: RETRY_EXC_ERR, then flushes
    /// * qp_fatal=P: a queue pair fails: flushes, and IBV_EVENT_QP_FATAL
    /// * post_full=P, reg_mr=P, create_qp=P, create_cq=P: ENOMEM of that call
    /// * after=N: no failures of the first N requests of each queue pair
    /// * limit=N: at most N of these failures for each queue pair
    #[arg(long, value_name = "FAULTS", verbatim_doc_comment)]
    faults: Option<Spec>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// Replaces this process by the program.
    ///
    /// # Errors
    /// If a library is missing, or the program cannot be started.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let directory = directory_of(&library::find()?)?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::new("no program to run").exit(Exit::Usage));
        };
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", before(&directory, "LD_LIBRARY_PATH"));
        if !self.no_preload {
            command.env("LD_PRELOAD", before(&directory.join(library::VERBS), "LD_PRELOAD"));
            // The runtime of AddressSanitizer refuses to be loaded after another library, although this works here.
            command.env("ASAN_OPTIONS", before(Path::new("verify_asan_link_order=0"), "ASAN_OPTIONS"));
        }
        if let Some(target) = self.trace {
            command.env(TARGET_VARIABLE, trace_target(target)?);
            if console.is_json() {
                command.env(FORMAT_VARIABLE, "json");
            }
        }
        if let Some(faults) = self.faults {
            command.env(VARIABLE, faults.to_string());
        }
        let error = command.exec();
        Err(Failure::because("cannot start the program", &error).at(program.display()))
    }
}

/// Returns the absolute path of a trace file, so that it does not depend on the directory to which the program
/// changes.
fn trace_target(target: OsString) -> Result<OsString, Failure> {
    if target == "-" || target == "stderr" {
        return Ok(target);
    }
    let path = std::path::absolute(&target)
        .map_err(|error| Failure::because("cannot write the trace", &error).at(target.display()))?;
    Ok(path.into())
}

/// Returns a directory of this user in which the libraries have the names that programs link.
fn directory_of(libraries: &[Library]) -> Result<PathBuf, Failure> {
    if let Some(directory) = library::common_directory(libraries) {
        return Ok(directory.to_owned());
    }
    let cache = env::var_os("XDG_CACHE_HOME")
        .filter(|cache| !cache.is_empty())
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .ok_or_else(|| {
            Failure::new("no directory for the libraries").remedy(
                "set HOME or XDG_CACHE_HOME, or use farcall verbs install DIR and LD_LIBRARY_PATH=DIR",
            )
        })?;
    let directory = cache.join("farcall").join("verbs");
    if !library::can_be_listed(&directory) {
        return Err(Failure::new("no directory for the libraries that can be passed to the loader")
            .at(directory.display())
            .remedy(
                "install farcall in, or set XDG_CACHE_HOME to, a path without spaces, colons and semicolons",
            ));
    }
    libraries
        .iter()
        .try_for_each(|library| link(&directory, library))
        .map_err(|error| Failure::because("cannot prepare the libraries", &error).at(directory.display()))?;
    Ok(directory)
}

fn link(directory: &Path, library: &Library) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    // Libraries loaded from this directory run with the rights of this user.
    let owner = fs::metadata(directory)?;
    if owner.uid() != rustix::process::geteuid().as_raw() || owner.mode() & 0o022 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "another user owns it or may write to it",
        ));
    }
    let link = directory.join(library.system_name);
    if fs::read_link(&link).is_ok_and(|target| target == library.file) {
        return Ok(());
    }
    let temporary = directory.join(format!(".{}", std::process::id()));
    symlink(&library.file, &temporary)?;
    fs::rename(&temporary, &link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn links_to_the_library_in_a_private_directory() {
        let cache = env::temp_dir().join(format!("farcall-verbs-{}", std::process::id()));
        let directory = cache.join("farcall").join("verbs");
        let at = |file: &str| Library { file: file.into(), system_name: library::VERBS };
        for file in ["/somewhere/old.so", "/somewhere/new.so", "/somewhere/new.so"] {
            link(&directory, &at(file)).unwrap();
            assert_eq!(fs::read_link(directory.join(library::VERBS)).unwrap(), Path::new(file));
        }
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no temporary link remains");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(link(&directory, &at("/somewhere/else.so")).is_err());
        fs::remove_dir_all(&cache).unwrap();
    }
}
