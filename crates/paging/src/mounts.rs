//! What is mounted where (proc(5), mountinfo).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    pub at: PathBuf,
    pub kind: String,
    /// Of the file system as a whole, separated by commas.
    pub options: String,
}

/// All mounts, in their order: what is mounted over another comes later.
pub fn mounts() -> io::Result<Vec<Mounted>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mounted> {
    let (of_mount, of_files) = line.split_once(" - ")?;
    let at = unescape(of_mount.split(' ').nth(4)?);
    let mut fields = of_files.split(' ');
    let kind = fields.next()?.to_owned();
    let options = fields.nth(1)?.to_owned();
    Some(Mounted { at, kind, options })
}

/// Spaces and the like are written as a backslash with three octal digits.
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
    fn a_line_is_read_and_names_are_as_they_were() {
        let line = r"36 35 98:0 /mnt1 /a\040b\134c rw,noatime master:1 - cgroup cgroup rw,memory";
        let mounted = parse(line).unwrap();
        assert_eq!(mounted.at, PathBuf::from(r"/a b\c"));
        assert_eq!((&*mounted.kind, &*mounted.options), ("cgroup", "rw,memory"));
        assert_eq!(parse("36 35 98:0 /"), None);
        assert_eq!(unescape(r"a\99"), PathBuf::from(r"a\99"));
        assert!(mounts().unwrap().iter().any(|mounted| mounted.at == *"/proc"));
    }
}
