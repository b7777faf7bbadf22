//! Destination of the lines.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::{io, process};

use farcall_shm::trusted_variable;
use farcall_verbs::with_sources;
use rustix::fs::{FileType, fstat};
use thiserror::Error;

use crate::line::{Format, Line};

/// Contains the path of the file, or `-` or `stderr`.
pub const TARGET_VARIABLE: &str = "FARCALL_TRACE";
/// Contains `text` or `json`.
pub const FORMAT_VARIABLE: &str = "FARCALL_TRACE_FORMAT";

/// Why there is no trace although it was requested.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The file cannot be written.
    #[error("{TARGET_VARIABLE}: cannot open {path} (links are not followed)")]
    Open {
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The path is a device, a pipe or a directory.
    #[error("{TARGET_VARIABLE}: {path} is no regular file (for standard error: {TARGET_VARIABLE}=-)")]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// The file belongs to another user, that could read the trace or redirect it into another file of this user.
    #[error(
        "{TARGET_VARIABLE}: {path} belongs to another user or has other names: remove it, or name another file"
    )]
    NotOwn {
        /// The path.
        path: PathBuf,
    },
    /// The format does not exist.
    #[error("{FORMAT_VARIABLE}: no format {word:?}; there are text and json")]
    Format {
        /// The requested format.
        word: OsString,
    },
}

/// A file, or standard error.
enum Output {
    StandardError,
    /// With its device and inode: if a program closes all descriptors, this one may be reused for another file.
    File {
        fd: OwnedFd,
        identity: (u64, u64),
    },
}

pub(crate) struct Target {
    output: Output,
    pub(crate) format: Format,
    /// Origin of the times.
    pub(crate) began_ns: u64,
}

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static TARGET: OnceLock<Option<Target>> = OnceLock::new();

/// Returns whether calls are traced. The variables are read once.
#[inline]
pub fn is_on() -> bool {
    match STATE.load(Ordering::Relaxed) {
        OFF => false,
        ON => true,
        _ => start(),
    }
}

#[cold]
fn start() -> bool {
    let is_on = target().is_some();
    STATE.store(if is_on { ON } else { OFF }, Ordering::Relaxed);
    is_on
}

/// Returns whether a trace was requested, even if it cannot be written.
pub fn is_wanted() -> bool {
    trusted_variable(TARGET_VARIABLE).is_some()
}

/// Returns when the trace began, in nanoseconds of the monotonic clock; `None` if there is none.
pub fn began_ns() -> Option<u64> {
    target().map(|target| target.began_ns)
}

/// When the trace of another library of this process began.
static FOLLOWED: OnceLock<u64> = OnceLock::new();

/// Makes this trace a part of one that another library of the process began at `began_ns`: times have that origin, and
/// the first line is already written. 0 means that the other library cannot write a trace and has reported the reason;
/// this one does not write one either. Must be called before any call is traced.
pub fn follow(began_ns: u64) {
    let _ = FOLLOWED.set(began_ns);
}

/// Returns the destination of the lines, if there is one.
pub(crate) fn target() -> Option<&'static Target> {
    TARGET
        .get_or_init(|| {
            let wanted = trusted_variable(TARGET_VARIABLE).filter(|_| FOLLOWED.get() != Some(&0))?;
            match Target::open(&wanted, trusted_variable(FORMAT_VARIABLE)) {
                Ok(target) => {
                    if FOLLOWED.get().is_none() {
                        target.write_header();
                    }
                    Some(target)
                }
                Err(error) => {
                    eprintln!("farcall: {}; the program runs without a trace", with_sources(&error));
                    None
                }
            }
        })
        .as_ref()
}

/// Returns the monotonic clock's time in nanoseconds.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the path with `%p` replaced by the process id.
fn expand(wanted: &OsString) -> PathBuf {
    match wanted.to_str() {
        Some(text) => text.replace("%p", &process::id().to_string()).into(),
        None => wanted.into(),
    }
}

fn format_of(word: Option<OsString>) -> Result<Format, TargetError> {
    match word.as_ref().and_then(|word| word.to_str()) {
        None if word.is_some() => Err(TargetError::Format { word: word.unwrap_or_default() }),
        None | Some("" | "text") => Ok(Format::Text),
        Some("json") => Ok(Format::Json),
        Some(other) => Err(TargetError::Format { word: other.into() }),
    }
}

impl Target {
    fn open(wanted: &OsString, format: Option<OsString>) -> Result<Self, TargetError> {
        let format = format_of(format)?;
        let output = match wanted.to_str() {
            Some("-" | "stderr") => Output::StandardError,
            _ => Output::file(&expand(wanted))?,
        };
        Ok(Self { output, format, began_ns: FOLLOWED.get().copied().unwrap_or_else(now_ns) })
    }

    /// Writes the first line: the command, and the time of day.
    fn write_header(&self) {
        let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
        let (pid, at_s, at_us) = (process::id(), wall.tv_sec, wall.tv_nsec / 1000);
        let mut line = Line::new(self.format);
        match self.format {
            Format::Text => {
                line.raw(format_args!("# process {pid} at {at_s}.{at_us:06} s since 1970: "));
                line.text(&command);
            }
            Format::Json => line.object(|line| {
                line.key("pid").number(pid);
                line.key("began_unix_s").raw(format_args!("{at_s}.{at_us:06}"));
                line.key("command").text(&command);
            }),
        }
        line.end();
        self.write(line.bytes());
    }

    /// Writes a line at once. A line that cannot be written is lost, so that the program is not disturbed.
    pub(crate) fn write(&self, line: &[u8]) {
        let fd = match &self.output {
            Output::StandardError => rustix::stdio::stderr(),
            Output::File { fd, identity } if is_still(fd.as_fd(), *identity) => fd.as_fd(),
            Output::File { .. } => return,
        };
        let mut left = line;
        while !left.is_empty() {
            match rustix::io::write(fd, left) {
                Ok(written) if written > 0 => left = &left[written..],
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

fn is_still(fd: BorrowedFd<'_>, identity: (u64, u64)) -> bool {
    fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == identity)
}

impl Output {
    /// Opens a file for appending: processes may share it, because each line is written at once.
    fn file(path: &Path) -> Result<Self, TargetError> {
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            // Opening must not block if the path is a pipe without a reader.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path);
        let fail = |source| TargetError::Open { path: path.into(), source };
        let fd: OwnedFd = opened.map_err(fail)?.into();
        let stat = fstat(&fd).map_err(|error| fail(error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(TargetError::NoFile { path: path.into() });
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_nlink != 1 {
            return Err(TargetError::NotOwn { path: path.into() });
        }
        Ok(Self::File { fd, identity: (stat.st_dev, stat.st_ino) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("farcall-trace-{name}-{}", process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn the_file_is_the_owners_alone_and_appended_to() {
        let directory = directory("file");
        let wanted = directory.join("%p.trace").into_os_string();
        let path = directory.join(format!("{}.trace", process::id()));
        for _ in 0..2 {
            Target::open(&wanted, None).unwrap().write(b"line\n");
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"line\nline\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn rejects_a_trace_file_of_another_user() {
        let directory = directory("stranger");
        let [own, other_name] = ["own", "other-name"].map(|name| directory.join(name));
        std::fs::write(&own, "").unwrap();
        std::fs::hard_link(&own, &other_name).unwrap();
        let refused =
            |path: &Path| matches!(Target::open(&path.into(), None), Err(TargetError::NotOwn { .. }));
        assert!(refused(&own) && refused(&other_name), "it may be any file of ours");
        std::fs::remove_file(&other_name).unwrap();
        assert!(!refused(&own));
        // Only root can change the owner of a file.
        if std::os::unix::fs::chown(&own, Some(65534), None).is_ok() {
            assert!(refused(&own));
        }
        assert_eq!(std::fs::read(&own).unwrap(), b"");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn links_pipes_and_unknown_formats_are_refused() {
        let directory = directory("refused");
        let link = directory.join("link");
        symlink(directory.join("elsewhere"), &link).unwrap();
        assert!(matches!(Target::open(&link.into(), None), Err(TargetError::Open { .. })));
        assert!(!directory.join("elsewhere").exists());
        assert!(Target::open(&directory.clone().into(), None).is_err());
        let null = OsString::from("/dev/null");
        assert!(matches!(Target::open(&null, None), Err(TargetError::NoFile { .. })));
        let wrong = Target::open(&"-".into(), Some("xml".into()));
        assert!(wrong.is_err_and(|error| error.to_string().contains("\"xml\"; there are text and json")));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_descriptor_that_became_another_file_is_left_alone() {
        let directory = directory("reused");
        let target = Target::open(&directory.join("trace").into(), None).unwrap();
        let other = std::fs::File::create(directory.join("other")).unwrap();
        let Output::File { fd, .. } = &target.output else { panic!("a file was asked for") };
        // Like a program that closes all descriptors and opens files of its own.
        let mut taken = fd.try_clone().unwrap();
        rustix::io::dup2(&other, &mut taken).unwrap();
        let (_, identity) = match &target.output {
            Output::File { fd, identity } => (fd, *identity),
            Output::StandardError => unreachable!(),
        };
        let reused = Target { output: Output::File { fd: taken, identity }, ..target };
        reused.write(b"not for this file\n");
        assert_eq!(std::fs::metadata(directory.join("other")).unwrap().len(), 0);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
