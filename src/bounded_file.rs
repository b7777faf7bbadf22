//! Bounded reads of regular text files.

use rustix::fs::OFlags;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Returns the text of a file.
///
/// # Errors
/// If a system call fails, the file is not a regular one, it has more than `bytes_max` bytes, or it is not UTF-8.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<String> {
    // Checked before the file is opened, because opening a device may have side effects.
    require_regular(&std::fs::metadata(path)?)?;
    // `O_NONBLOCK`: if the path names a FIFO by now, opening it does not wait for a writer.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    require_regular(&file.metadata()?)?;
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        let why = format!("it has more than {bytes_max} bytes, the most that is read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

fn require_regular(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "of another kind",
    };
    let why = format!("it is {what}; expected a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_regular_files_of_bounded_size_only() {
        let directory = std::env::temp_dir().join(format!("farcall-bounded-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (file, fifo) = (directory.join("file"), directory.join("fifo"));
        std::fs::write(&file, "12345678").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(read(&file, 8).unwrap(), "12345678");
        for (path, bytes_max, part) in [
            (file.as_path(), 7, "more than 7 bytes"),
            (&fifo, 8, "a FIFO"),
            (Path::new("/dev/zero"), 8, "a device"),
            (&directory, 8, "a directory"),
            (Path::new("/nonexistent/file"), 8, "No such file"),
        ] {
            let why = read(path, bytes_max).unwrap_err().to_string();
            assert!(why.contains(part), "{}: {why}", path.display());
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
