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
/// The program takes this one's place: its exit code, signals and terminal are its own. Programs with the set-user-ID
/// bit ignore the setting, as they ignore every LD_LIBRARY_PATH.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall verbs run -- ibv_devinfo -v\n  farcall verbs run -- ibv_rc_pingpong -g 0\n  \
                  farcall verbs run --trace -- ./mine\n  farcall --json verbs run --trace=mine.%p.jsonl -- ./mine\n  \
                  farcall verbs run --faults seed=7,kill_qp=1e-3,after=100 -- ./mine"
)]
pub struct Run {
    /// Do not load the library before all others. It does that to show the device also in /sys/class/infiniband and
    /// /dev/infiniband, to programs that look there (UCX).
    #[arg(long)]
    no_preload: bool,

    /// Show the verbs that the program calls, decoded, with times: on standard error, or appended to FILE (%p in its
    /// name is the process). With --json as JSON lines. The same as the variables FARCALL_TRACE=FILE and
    /// FARCALL_TRACE_FORMAT=json.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    trace: Option<OsString>,
    /// Make the program meet the failures of real fabrics: key=value, separated by commas.
    ///
    /// The same seed makes the same failures at the same requests of each queue pair. Probabilities are from 0 to 1.
    /// The same as the variable FARCALL_FAULTS.
    ///
    /// * seed=N: seed of all random choices; chosen and printed if it is not given
    /// * rnr=P: over RC, a receiver is not ready: the send completes later, or with RNR_RETRY_EXC_ERR
    /// * drop=P: over UC and UD a message is lost; over RC it is sent again, and completes later
    /// * delay=TIME or TIME..TIME: completions come so late (ns, us, ms, s)
    /// * kill_qp=P: a connection breaks: RETRY_EXC_ERR, then flushes
    /// * qp_fatal=P: a queue pair breaks: flushes, and IBV_EVENT_QP_FATAL
    /// * post_full=P, reg_mr=P, create_qp=P, create_cq=P: ENOMEM of that call
    /// * after=N: the first N requests of each queue pair are spared
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
        let folder = folder_of(&library::find()?)?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::new("no program to run").exit(Exit::Usage));
        };
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", before(&folder, "LD_LIBRARY_PATH"));
        if !self.no_preload {
            command.env("LD_PRELOAD", before(&folder.join(library::VERBS), "LD_PRELOAD"));
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
fn folder_of(libraries: &[Library]) -> Result<PathBuf, Failure> {
    if let Some(folder) = library::common_folder(libraries) {
        return Ok(folder.to_owned());
    }
    let cache = env::var_os("XDG_CACHE_HOME")
        .filter(|cache| !cache.is_empty())
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .ok_or_else(|| {
            Failure::new("no folder for the libraries").remedy(
                "set HOME or XDG_CACHE_HOME, or use farcall verbs install DIR and LD_LIBRARY_PATH=DIR",
            )
        })?;
    let folder = cache.join("farcall").join("verbs");
    if !library::can_be_listed(&folder) {
        return Err(Failure::new("no folder for the libraries that the loader can be told")
            .at(folder.display())
            .remedy(
                "install farcall in, or set XDG_CACHE_HOME to, a path without spaces, colons and semicolons",
            ));
    }
    libraries
        .iter()
        .try_for_each(|library| link(&folder, library))
        .map_err(|error| Failure::because("cannot prepare the libraries", &error).at(folder.display()))?;
    Ok(folder)
}

fn link(folder: &Path, library: &Library) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Libraries loaded from this directory run with the rights of this user.
    let owner = fs::metadata(folder)?;
    if owner.uid() != rustix::process::geteuid().as_raw() || owner.mode() & 0o022 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is another's, or others may write to it",
        ));
    }
    let place = folder.join(library.system_name);
    if fs::read_link(&place).is_ok_and(|target| target == library.file) {
        return Ok(());
    }
    let beside = folder.join(format!(".{}", std::process::id()));
    symlink(&library.file, &beside)?;
    fs::rename(&beside, &place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn links_to_the_library_in_a_private_directory() {
        let cache = env::temp_dir().join(format!("farcall-verbs-{}", std::process::id()));
        let folder = cache.join("farcall").join("verbs");
        let at = |file: &str| Library { file: file.into(), system_name: library::VERBS };
        for file in ["/somewhere/old.so", "/somewhere/new.so", "/somewhere/new.so"] {
            link(&folder, &at(file)).unwrap();
            assert_eq!(fs::read_link(folder.join(library::VERBS)).unwrap(), Path::new(file));
        }
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(link(&folder, &at("/somewhere/else.so")).is_err());
        fs::remove_dir_all(&cache).unwrap();
    }
}
