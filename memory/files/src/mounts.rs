//! The list of mounts (proc(5), mountinfo).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Device number of the file system: major, colon, minor.
    pub device: String,
    /// Mount point.
    pub at: PathBuf,
    /// The type of the file system, with its subtype.
    pub kind: String,
    /// Options of the file system as a whole, separated by commas.
    pub options: String,
}

impl Mounted {
    /// Returns whether it is a file system of this library.
    pub fn is_of_farcall(&self) -> bool {
        self.kind == "fuse.farcall"
    }
}

/// Returns the topmost file system at a directory if it is one of this library. The file system is not accessed,
/// because its process may have exited or may be waiting.
///
/// # Errors
/// Returns an error if the parent directory does not exist or /proc cannot be read.
pub fn farcall_mounted_at(dir: &Path) -> io::Result<Option<Mounted>> {
    let dir = mount_point(dir)?;
    let top = mounts()?.into_iter().rfind(|mounted| mounted.at == dir);
    Ok(top.filter(Mounted::is_of_farcall))
}

/// Returns the path of a directory without symbolic links.
fn mount_point(dir: &Path) -> io::Result<PathBuf> {
    let Some(name) = dir.file_name() else { return dir.canonicalize() };
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let direct = parent.canonicalize()?.join(name);
    // A symbolic link is not a mount point: readlink accesses only the file system of its parent directory.
    match std::fs::read_link(&direct) {
        Ok(_) => direct.canonicalize(),
        Err(_) => Ok(direct),
    }
}

/// Returns all mounts in mount order: a mount over another one is later in the list.
///
/// # Errors
/// Returns an error if /proc cannot be read.
pub fn mounts() -> io::Result<Vec<Mounted>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mounted> {
    let (of_mount, of_files) = line.split_once(" - ")?;
    let mut fields = of_mount.split(' ').skip(2);
    let device = fields.next()?.to_owned();
    let at = unescape(fields.nth(1)?);
    let mut fields = of_files.split(' ');
    let kind = fields.next()?.to_owned();
    let options = fields.nth(1)?.to_owned();
    Some(Mounted { device, at, kind, options })
}

/// Decodes special characters such as spaces, written as a backslash with three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| behind.get(..3)).flatten().and_then(|digits| {
            digits.iter().try_fold(0_u32, |value, digit| Some(value * 8 + char::from(*digit).to_digit(8)?))
        });
        match octal.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_mountinfo_lines_with_escapes() {
        let line = r"36 35 98:0 /mnt1 /a\040b\134c rw,noatime master:1 - cgroup cgroup rw,memory";
        let mounted = parse(line).unwrap();
        assert_eq!(mounted.at, PathBuf::from(r"/a b\c"));
        assert_eq!((&*mounted.kind, &*mounted.options, &*mounted.device), ("cgroup", "rw,memory", "98:0"));
        assert!(!mounted.is_of_farcall());
        assert_eq!(parse("36 35 98:0 /"), None);
        assert_eq!(unescape(r"a\99"), PathBuf::from(r"a\99"));
        assert!(mounts().unwrap().iter().any(|mounted| mounted.at == *"/proc"));
    }
}
