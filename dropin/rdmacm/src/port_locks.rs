//! Whose a port is: locks on bytes of a file that processes of one user share, one byte a name. The kernel takes them
//! back when a process dies, so that nothing of the dead is in anybody's way; a port costs no descriptor.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The locks of this process. The kernel knows one holder, the file; who in the process holds what is counted here.
pub struct PortLocks {
    file: File,
    held: HashMap<i64, Held>,
}

enum Held {
    Alone,
    Together(u32),
}

impl PortLocks {
    /// # Errors
    /// If the file cannot be made or opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        Ok(Self { file, held: HashMap::new() })
    }

    /// Takes a name for one holder; whether nobody has it.
    pub fn take(&mut self, name: &str) -> io::Result<bool> {
        let byte = byte_of(name);
        let is_free = !self.held.contains_key(&byte) && self.lock(byte, libc::F_WRLCK)?;
        if is_free {
            self.held.insert(byte, Held::Alone);
        }
        Ok(is_free)
    }

    /// Takes a name that several may hold, none of them alone; whether nobody holds it alone.
    pub fn share(&mut self, name: &str) -> io::Result<bool> {
        let byte = byte_of(name);
        let holders = match self.held.get(&byte) {
            Some(Held::Alone) => return Ok(false),
            Some(Held::Together(holders)) => *holders,
            None if self.lock(byte, libc::F_RDLCK)? => 0,
            None => return Ok(false),
        };
        self.held.insert(byte, Held::Together(holders + 1));
        Ok(true)
    }

    /// Gives a name back that was taken or shared.
    pub fn give_back(&mut self, name: &str) {
        let byte = byte_of(name);
        if let Some(Held::Together(holders @ 2..)) = self.held.get_mut(&byte) {
            *holders -= 1;
        } else if self.held.remove(&byte).is_some() {
            // It can only fail where locking had failed.
            let _ = self.lock(byte, libc::F_UNLCK);
        }
    }

    /// Changes the lock of a byte; whether another process is not in the way.
    fn lock(&self, byte: i64, kind: libc::c_int) -> io::Result<bool> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) =
            (kind as libc::c_short, libc::SEEK_SET as libc::c_short, byte, 1);
        // SAFETY: the file is ours, and the structure is whole.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
            0 => Ok(true),
            _ => match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
                error => Err(error),
            },
        }
    }
}

/// The byte that stands for a name: FNV-1a, the same in every build. Two names with one byte would be in each other's
/// way, nothing worse.
fn byte_of(name: &str) -> i64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Neither negative nor at the end of what a file can have.
    (hash >> 2) as i64
}
