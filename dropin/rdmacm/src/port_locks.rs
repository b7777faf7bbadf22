//! Whose a port is: locks on bytes of a file that processes of one user share, one byte a name. A port costs no
//! descriptor.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::byte_lock::{self, Holder};

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
        Ok(Self { file: byte_lock::open(path)?, held: HashMap::new() })
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

    fn lock(&self, byte: i64, kind: libc::c_int) -> io::Result<bool> {
        byte_lock::lock(&self.file, Holder::File, kind, byte)
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
