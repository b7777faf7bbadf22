//! Files that are written as a whole, or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes `bytes` to `path`, or leaves what was there.
///
/// # Errors
/// When the system refuses.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let fresh = path.with_file_name(name);
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o644).open(&fresh)?;
        file.write_all(bytes)?;
        std::fs::rename(&fresh, path)
    })();
    written.inspect_err(|_| {
        // What is left of it is of no use; that it cannot be removed changes nothing.
        let _ = std::fs::remove_file(&fresh);
    })
}
