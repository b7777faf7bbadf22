//! A directory of the user's own.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The directory, private to the user: `$XDG_RUNTIME_DIR/farcall`, else `farcall-UID` in `/dev/shm` or `/tmp`.
///
/// # Errors
/// If it cannot be made, is a link, or others may enter it.
pub fn directory() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let path = match farcall_shm::trusted_variable("XDG_RUNTIME_DIR") {
        Some(base) => Path::new(&base).join("farcall"),
        _ if Path::new("/dev/shm").is_dir() => PathBuf::from(format!("/dev/shm/farcall-{uid}")),
        _ => PathBuf::from(format!("/tmp/farcall-{uid}")),
    };
    let fail = |why: String| io::Error::other(format!("{}: {why}", path.display()));
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fail(e.to_string())),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(&path).map_err(|e| fail(e.to_string()))?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o077 != 0 {
        let why =
            "it is not a directory that only you may enter (set XDG_RUNTIME_DIR to a directory of yours)";
        return Err(fail(why.into()));
    }
    Ok(path)
}
