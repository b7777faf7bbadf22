//! Swap areas: the header, and the areas in use.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use farcall_memory::PAGE_BYTES;

/// Maximum priority that the kernel supports.
pub const PRIORITY_MAX: i32 = 0x7fff;
/// SWAP_FLAG_PREFER: the flags contain a priority.
const PREFER: i32 = 0x8000;
/// Offset of the header's fields (mm/swapfile.c, `union swap_header`): version, last page, bad pages, uuid, label.
const FIELDS_AT: usize = 1024;
const LABEL: &[u8] = b"farcall-page";
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

/// Returns the first page of a swap area, as written by mkswap(8).
pub fn header(size_bytes: u64, uuid: [u8; 16]) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    let last_page = u32::try_from(size_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX).saturating_sub(1);
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(FIELDS_AT, &1_u32.to_ne_bytes());
    put(FIELDS_AT + 4, &last_page.to_ne_bytes());
    put(FIELDS_AT + 12, &uuid);
    put(FIELDS_AT + 28, LABEL);
    put(PAGE_BYTES - MAGIC.len(), MAGIC);
    page
}

/// Returns whether a page is the header of a swap area.
pub fn is_header(page: &[u8; PAGE_BYTES]) -> bool {
    page.ends_with(MAGIC)
}

/// A swap area in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// File or device.
    pub path: PathBuf,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Used part in bytes.
    pub used_bytes: u64,
    /// Priority; areas with higher ones are used first.
    pub priority: i32,
}

/// Returns the areas in use (proc(5), swaps).
///
/// # Errors
/// Returns an error if /proc/swaps cannot be read.
pub fn areas() -> io::Result<Vec<Area>> {
    let text = std::fs::read_to_string("/proc/swaps")?;
    Ok(text.lines().skip(1).filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Area> {
    let mut fields = line.split_ascii_whitespace();
    let path = fields.next()?.into();
    let mut number = fields.skip(1).map(|field| field.parse::<i64>().ok());
    let mut next = || number.next().flatten();
    let (size_kib, used_kib, priority) = (next()?, next()?, next()?);
    let bytes = |kib: i64| kib.cast_unsigned() << 10;
    Some(Area {
        path,
        size_bytes: bytes(size_kib),
        used_bytes: bytes(used_kib),
        priority: i32::try_from(priority).ok()?,
    })
}

/// Begins to use a device or file that holds a [`header`].
///
/// # Errors
/// Returns the error of swapon(2).
pub fn swap_on(device: &Path, priority: i32) -> io::Result<()> {
    let path = CString::new(device.as_os_str().as_bytes())?;
    // SAFETY: swapon(2) requires a pointer to a zero-terminated string, which `path` is and which is alive for the
    // call.
    done(unsafe { libc::swapon(path.as_ptr(), PREFER | priority.clamp(0, PRIORITY_MAX)) })
}

/// Stops using an area and waits until its contents have been read back to memory.
///
/// # Errors
/// Returns the error of swapoff(2): the area is not in use, or memory lacks space for its contents.
pub fn swap_off(device: &Path) -> io::Result<()> {
    let path = CString::new(device.as_os_str().as_bytes())?;
    // SAFETY: swapoff(2) requires a pointer to a zero-terminated string, which `path` is and which is alive for the
    // call.
    done(unsafe { libc::swapoff(path.as_ptr()) })
}

fn done(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_a_header_that_blkid_accepts() {
        let page = header(256 << 20, [7; 16]);
        let word = |at: usize| u32::from_ne_bytes(page[at..at + 4].try_into().unwrap());
        assert_eq!((word(1024), word(1028), word(1032)), (1, (256 << 20) / 4096 - 1, 0));
        assert!(is_header(&page) && &page[4086..] == b"SWAPSPACE2" && !is_header(&[0; PAGE_BYTES]));
        assert_eq!(page[1036..1052], [7; 16]);
        // blkid(8), if it is installed, is an independent check.
        let file = std::env::temp_dir().join(format!("farcall-swap-{}", std::process::id()));
        std::fs::write(&file, [&page[..], &[0; 15 * PAGE_BYTES]].concat()).unwrap();
        let judged = std::process::Command::new("blkid").arg("-p").arg(&file).output();
        std::fs::remove_file(&file).unwrap();
        match judged {
            Ok(judged) => {
                let said = String::from_utf8_lossy(&judged.stdout).into_owned();
                assert!(
                    said.contains("TYPE=\"swap\"") && said.contains("LABEL=\"farcall-page\""),
                    "{judged:?}"
                );
            }
            Err(error) => println!("SKIPPED: no blkid to judge the header: {error}"),
        }
    }

    #[test]
    fn parses_lines_of_swap_areas() {
        let line = "/dev/loop0                              partition\t262140\t\t1024\t\t-2";
        let area = parse(line).unwrap();
        assert_eq!((area.path, area.priority), (PathBuf::from("/dev/loop0"), -2));
        assert_eq!((area.size_bytes, area.used_bytes), (262_140 << 10, 1 << 20));
        assert_eq!(parse("/dev/sda2 partition 5"), None);
        areas().unwrap();
    }
}
