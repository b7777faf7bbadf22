//! `farcall capture -o FILE -- CMD`.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_capture::{Merged, PARTS_MAX, SNAPLEN_BYTES, SNAPLEN_VARIABLE, VARIABLE, merge};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval between two checks of the program.
const WATCH: Duration = Duration::from_millis(20);

/// Run a program and record its traffic on the software RNIC for Wireshark.
///
/// Works for commands of farcall and, together with farcall verbs run, for any RDMA program. RoCEv2 packets are recorded
/// as each process sends and receives them. Messages through shared memory are not packets: the process that posts the
/// request records them as the RoCEv2 packets that would carry them, under an interface with the description "synthesised
/// from shared memory, not a network". Devices of the libibverbs of the system are not recorded.
///
/// FILE contains the payload of all messages, and is readable by its owner only. It is written when the program exits, in
/// the format pcapng, and includes all processes that the program started. The exit code is that of the program. Programs
/// with the set-user-ID bit are not recorded.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall capture -o calls.pcapng -- farcall bench rpc --duration-ms 5\n  \
                  farcall capture -o pingpong.pcapng -- farcall verbs run -- ./both_ends.sh\n  \
                  farcall capture -o heads.pcapng --snaplen 128 -- farcall rpc serve\n  \
                  tshark -r pingpong.pcapng -Y 'infiniband.bth.opcode == 4'"
)]
pub struct Capture {
    /// The file. An existing file is replaced.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Number of bytes of each packet that are recorded, including headers [default: all].
    #[arg(long, value_name = "BYTES", default_value_t = SNAPLEN_BYTES, hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SNAPLEN_BYTES)))]
    snaplen: u32,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Capture {
    /// Runs the program, then writes the capture file.
    ///
    /// # Errors
    /// If the program cannot be started, or the file cannot be written.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let output = std::path::absolute(&self.output)
            .and_then(|path| require_replaceable(&path).map(|()| path))
            .map_err(|error| self.fail("cannot write the capture", &error))?;
        let parts = Parts::create_next_to(&output)
            .map_err(|error| self.fail("cannot create a directory next to the capture", &error))?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::new("no program to run").exit(Exit::Usage));
        };
        let signals = Signals::watch()?;
        let status = Command::new(program)
            .args(arguments)
            .env(VARIABLE, &parts.directory)
            .env(SNAPLEN_VARIABLE, self.snaplen.to_string())
            .spawn()
            .and_then(|child| signals.wait_for(child))
            .map_err(|error| Failure::because("cannot run the program", &error).at(program.display()))?;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let comment = format!("Captured by farcall: {}", words.join(" "));
        let merged = parts.merge_into(&output, &comment).map_err(|error| {
            let kept = parts.directory.display().to_string();
            parts.keep();
            let remedy = format!("free disk space; the records of the processes are in {kept}, for mergecap");
            self.fail("cannot write the capture", &error).remedy(remedy)
        })?;
        self.print_summary(console, &merged);
        drop(parts);
        // The exit code of the program, which may have any value.
        std::process::exit(status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1))
    }

    fn fail(&self, what: &str, error: &io::Error) -> Failure {
        Failure::because(what, error).at(self.output.display())
    }

    /// Prints a summary of the capture on standard error, because standard output belongs to the program.
    fn print_summary(&self, console: Console, merged: &Merged) {
        let Merged { processes, packets, dropped, left_out } = *merged;
        let file = self.output.display();
        if console.is_json() {
            let summary = serde_json::json!({ "capture": {
                "file": file.to_string(), "processes": processes, "packets": packets, "dropped": dropped,
                "processes_left_out": left_out,
            }});
            eprintln!("{summary}");
            return;
        }
        eprintln!("capture: {packets} packets of {processes} processes, {dropped} dropped, in {file}");
        if processes == 0 {
            eprintln!(
                "capture: no process of the program has opened the software RNIC; use farcall verbs run for RDMA programs"
            );
        }
        if left_out > 0 {
            eprintln!("capture: {left_out} processes are omitted; a capture contains at most {PARTS_MAX}");
        }
    }
}

/// Checks that a capture may be written to `path`: it must be a regular file or not exist; a device, a pipe or a link
/// is refused.
fn require_replaceable(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => Err(io::Error::other("it is a link, a device, a pipe or a directory; expected a file")),
    }
}

/// Returns a hidden path in the directory of `path`, derived from its name.
fn hidden_sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}{ending}", std::process::id()));
    path.with_file_name(name)
}

/// The directory to which the processes write their files; removed at the end.
struct Parts {
    directory: PathBuf,
    is_kept: std::cell::Cell<bool>,
}

impl Parts {
    /// Creates the directory next to the capture file, where there is disk space for it.
    fn create_next_to(output: &Path) -> io::Result<Self> {
        let directory = hidden_sibling(output, ".parts");
        DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Self { directory, is_kept: false.into() })
    }

    fn keep(&self) {
        self.is_kept.set(true);
    }

    /// Merges the files of the processes into one, and moves it to `output` atomically.
    fn merge_into(&self, output: &Path, comment: &str) -> io::Result<Merged> {
        let files: Vec<PathBuf> = fs::read_dir(&self.directory)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        // All files that are merged are open at the same time.
        farcall_shm::raise_descriptor_limit();
        let fresh = hidden_sibling(output, "");
        let written = (|| {
            let file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
            let merged = merge(&files, comment, &mut BufWriter::with_capacity(1 << 20, file))?;
            fs::rename(&fresh, output)?;
            Ok(merged)
        })();
        written.inspect_err(|_| {
            // An incomplete file is useless; a failure to remove it is ignored.
            let _ = fs::remove_file(&fresh);
        })
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if !self.is_kept.get() {
            // The directory is hidden and no longer used, so a failure to remove it is ignored.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Signals that must end the program but not the capture.
struct Signals {
    /// Set by a SIGTERM sent to this process only; the signal is forwarded to the program.
    terminate: Arc<AtomicBool>,
}

impl Signals {
    fn watch() -> Result<Self, Failure> {
        let terminate = Arc::new(AtomicBool::new(false));
        // The terminal sends Ctrl-C to the program as well; the capture ends with the program.
        let ignored = [SIGINT, SIGHUP].map(|signal| (signal, Arc::default()));
        for (signal, flag) in ignored.into_iter().chain([(SIGTERM, terminate.clone())]) {
            signal_hook::flag::register(signal, flag)
                .map_err(|error| Failure::because("cannot watch for signals", &error))?;
        }
        Ok(Self { terminate })
    }

    fn wait_for(&self, mut child: Child) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if self.terminate.swap(false, Ordering::Relaxed)
                && let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)
            {
                // The process was not waited for yet, so its number cannot be reused.
                rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
            }
            std::thread::sleep(WATCH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_regular_files_only() {
        let directory = std::env::temp_dir().join(format!("farcall-capture-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (file, link) = (directory.join("file"), directory.join("link"));
        assert!(require_replaceable(&file).is_ok(), "nothing is there");
        fs::write(&file, "old").unwrap();
        assert!(require_replaceable(&file).is_ok());
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for other in [&link, Path::new("/dev/null"), &directory] {
            assert!(require_replaceable(other).is_err(), "{}", other.display());
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
