//! Detection, from the executable file, of programs for which a preloaded library has no effect.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Length of the part of a file that is read; headers are at its beginning.
const START_BYTES: u64 = 64 << 10;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// Returns the reason for which the connections of a program stay on TCP; `None` if there is none, or the file cannot
/// be read.
pub fn reason_for_tcp(program: &OsStr) -> Option<&'static str> {
    let path = find(program)?;
    let metadata = path.metadata().ok()?;
    let gains_rights =
        metadata.permissions().mode() & 0o6000 != 0 && metadata.uid() != rustix::process::geteuid().as_raw();
    if gains_rights {
        return Some("it runs with the rights of another user (set-user-ID)");
    }
    let mut bytes = Vec::new();
    File::open(&path).ok()?.take(START_BYTES).read_to_end(&mut bytes).ok()?;
    reason_of_file(&bytes)
}

/// Finds a program like execvp(3).
fn find(program: &OsStr) -> Option<PathBuf> {
    if Path::new(program).components().count() > 1 {
        return Some(program.into());
    }
    env::split_paths(&env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

/// Returns the reason according to a 64-bit ELF file; `None` for scripts and other files.
fn reason_of_file(bytes: &[u8]) -> Option<&'static str> {
    if bytes.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let table = number(bytes, 32, 8)?;
    let (entry_bytes, entries) = (number(bytes, 54, 2)?, number(bytes, 56, 2)?);
    let mut interpreter = None;
    for i in 0..entries {
        let at = table.checked_add(i.checked_mul(entry_bytes)?)?;
        let kind = number(bytes, at, 4)? as u32;
        let (from, len) = (number(bytes, at.checked_add(8)?, 8)?, number(bytes, at.checked_add(32)?, 8)?);
        let content = bytes.get(from..from.checked_add(len)?).unwrap_or_default();
        match kind {
            PT_INTERP => interpreter = Some(content),
            // Name and type of the note: "Go", its build number.
            PT_NOTE if content.get(12..15) == Some(b"Go\0") => {
                return Some("Go programs make system calls directly");
            }
            _ => {}
        }
    }
    match interpreter {
        None => Some("it is a static program, which loads no library"),
        Some(loader) if loader.windows(4).any(|part| part == b"musl") => {
            Some("it uses musl, and the library requires glibc")
        }
        Some(_) => None,
    }
}

/// Returns a little-endian number of the file.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    let field = bytes.get(at..at.checked_add(len)?)?;
    let number = field.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ELF file with these program headers, each with its type and contents.
    fn elf(headers: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 * headers.len()];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[32] = 64;
        (bytes[54], bytes[56]) = (56, headers.len() as u8);
        for (i, (kind, content)) in headers.iter().enumerate() {
            let (at, from) = (64 + 56 * i, bytes.len());
            bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&(from as u64).to_le_bytes());
            bytes[at + 32..at + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend(*content);
        }
        bytes
    }

    #[test]
    fn distinguishes_static_musl_and_go_programs() {
        let glibc: (u32, &[u8]) = (PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0");
        let go: (u32, &[u8]) = (PT_NOTE, b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0number");
        assert_eq!(reason_of_file(&elf(&[glibc])), None);
        assert!(reason_of_file(&elf(&[])).unwrap().contains("static"));
        assert!(
            reason_of_file(&elf(&[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")])).unwrap().contains("musl")
        );
        assert!(reason_of_file(&elf(&[glibc, go])).unwrap().contains("Go"));
        assert!(reason_of_file(&elf(&[go])).unwrap().contains("Go"));
        assert_eq!(reason_for_tcp(OsStr::new("/bin/sh")), None);
        assert_eq!(reason_of_file(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn reads_invalid_files_within_their_bounds() {
        let good = elf(&[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0"), (PT_NOTE, b"")]);
        for at in 0..good.len() {
            let _ = reason_of_file(&good[..at]);
            let mut wrong = good.clone();
            wrong[at] = 0xFF;
            let _ = reason_of_file(&wrong);
        }
    }
}
