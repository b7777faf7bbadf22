//! Files that are written completely or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes `bytes` to `path`, or leaves the previous contents. A device or a pipe is written to directly, and never
/// replaced.
///
/// # Errors
/// If a system call fails.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return File::options().write(true).open(path)?.write_all(bytes);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let fresh = path.with_file_name(name);
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o644).open(&fresh)?;
        file.write_all(bytes)?;
        std::fs::rename(&fresh, path)
    })();
    written.inspect_err(|_| {
        // An incomplete file is useless; a failure to remove it is ignored.
        let _ = std::fs::remove_file(&fresh);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_a_file_and_writes_to_a_pipe() {
        let directory = std::env::temp_dir().join(format!("farcall-whole-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("file");
        for bytes in [&b"first"[..], b"second"] {
            write(&file, bytes).unwrap();
            assert_eq!(std::fs::read(&file).unwrap(), bytes);
        }
        let (mut reader, writer) = std::io::pipe().unwrap();
        let link = directory.join("pipe");
        let number = std::os::fd::AsRawFd::as_raw_fd(&writer);
        std::os::unix::fs::symlink(format!("/proc/self/fd/{number}"), &link).unwrap();
        write(&link, b"text").unwrap();
        drop(writer);
        assert_eq!(std::io::read_to_string(&mut reader).unwrap(), "text");
        assert!(link.is_symlink(), "the link was replaced");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
