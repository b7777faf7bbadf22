//! A loop device over a file (loop(4), linux/loop.h).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// LOOP_CTL_GET_FREE, LOOP_CONFIGURE.
const GET_FREE: u64 = 0x4C82;
const CONFIGURE: u64 = 0x4C0A;
/// LO_FLAGS_AUTOCLEAR: the device is released after its last use. LO_FLAGS_DIRECT_IO: pages are not cached twice.
const FLAGS: u32 = 4 | 16;
/// Maximum number of attempts: another process may claim the free device first.
const TRIES: usize = 64;
const BLOCK_BYTES: u32 = 4096;

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Configuration {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A loop device over a file, with direct I/O. The kernel releases it when it is neither open nor in use.
pub struct LoopDevice {
    path: PathBuf,
    _lock: File,
}

impl LoopDevice {
    /// Claims a free loop device and attaches it to `file`.
    pub fn attach(file: &File) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..TRIES {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument, so the kernel accesses no memory.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE as _) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, file) {
                Ok(()) => return Ok(Self { path, _lock: device }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Returns its file in /dev.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(device: &File, file: &File) -> io::Result<()> {
    let configuration = Configuration {
        fd: file.as_raw_fd().cast_unsigned(),
        block_size: BLOCK_BYTES,
        info: Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: FLAGS,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads a `struct loop_config`. `Configuration` has its layout (a test checks the sizes)
    // and is alive for the call.
    let code = unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE as _, &raw const configuration) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the loop device over a file of this name, if there is one. It is searched in sysfs by name, because the
/// file itself may be on a file system that no longer responds.
pub fn device_over(file: &Path) -> Option<PathBuf> {
    let devices = std::fs::read_dir("/sys/block").ok()?;
    devices.flatten().find_map(|device| {
        let backing = std::fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        (Path::new(backing.trim_end_matches('\n')) == file)
            .then(|| Path::new("/dev").join(device.file_name()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_lengths_of_the_kernel() {
        assert_eq!((size_of::<Info>(), size_of::<Configuration>()), (232, 304));
    }
}
