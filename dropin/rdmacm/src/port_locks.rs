//! Ownership of ports: locks on bytes of a file that processes of one user share, one byte per name. A port costs no
//! descriptor.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::byte_lock::{self, Holder};

/// The locks of this process. The kernel knows only one holder, the file; holders within the process are counted here.
pub struct PortLocks {
    file: File,
    holders: HashMap<i64, Holders>,
}

enum Holders {
    Exclusive,
    Shared(u32),
}

impl PortLocks {
    /// # Errors
    /// Returns an error if the file cannot be created or opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: byte_lock::open(path)?, holders: HashMap::new() })
    }

    /// Acquires a name exclusively. Returns `false` if it has another holder.
    pub fn take(&mut self, name: &str) -> io::Result<bool> {
        let byte = byte_of(name);
        let is_free = !self.holders.contains_key(&byte) && self.lock(byte, libc::F_WRLCK)?;
        if is_free {
            self.holders.insert(byte, Holders::Exclusive);
        }
        Ok(is_free)
    }

    /// Acquires a name that several holders may share. Returns `false` if it is held exclusively.
    pub fn share(&mut self, name: &str) -> io::Result<bool> {
        let byte = byte_of(name);
        let holders = match self.holders.get(&byte) {
            Some(Holders::Exclusive) => return Ok(false),
            Some(Holders::Shared(holders)) => *holders,
            None if self.lock(byte, libc::F_RDLCK)? => 0,
            None => return Ok(false),
        };
        self.holders.insert(byte, Holders::Shared(holders + 1));
        Ok(true)
    }

    /// Releases a name that was acquired exclusively or shared.
    pub fn release(&mut self, name: &str) {
        let byte = byte_of(name);
        if let Some(Holders::Shared(holders @ 2..)) = self.holders.get_mut(&byte) {
            *holders -= 1;
        } else if self.holders.remove(&byte).is_some() {
            // Unlocking cannot fail after locking has succeeded.
            let _ = self.lock(byte, libc::F_UNLCK);
        }
    }

    fn lock(&self, byte: i64, kind: libc::c_int) -> io::Result<bool> {
        byte_lock::lock(&self.file, Holder::File, kind, byte)
    }
}

/// Returns the byte for a name: FNV-1a, which is the same in every build. Two names with the same byte exclude each
/// other, without further harm.
fn byte_of(name: &str) -> i64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Neither negative nor beyond the maximum length of a file.
    (hash >> 2) as i64
}
