//! Extended attributes.

use rustix::io::Errno;

use super::{Result, Time, Tree};

/// Names and values of one inode together: as much as one value may have in Linux.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Whether a value may, or must, be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// It does not matter.
    Any,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

impl Tree {
    /// Sets one.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA` as `how` says; `ENOSPC` if the inode has too many.
    pub fn set_xattr(&mut self, ino: u64, name: &[u8], value: &[u8], how: SetXattr, now: Time) -> Result<()> {
        // Access control lists say who may do what: kept, but not enforced, they would be a lie.
        if name.starts_with(b"system.posix_acl_") {
            return Err(Errno::OPNOTSUPP);
        }
        let inode = self.get_mut(ino)?;
        let earlier = inode.xattrs.get(name).map(Vec::len);
        match (how, earlier) {
            (SetXattr::Create, Some(_)) => return Err(Errno::EXIST),
            (SetXattr::Replace, None) => return Err(Errno::NODATA),
            _ => {}
        }
        let used: usize = inode.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        let freed = earlier.map_or(0, |len| name.len() + len);
        if used - freed + name.len() + value.len() > XATTR_BYTES_MAX {
            return Err(Errno::NOSPC);
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        inode.ctime = now;
        Ok(())
    }

    /// A value.
    ///
    /// # Errors
    /// `ENODATA` if there is none.
    pub fn xattr(&self, ino: u64, name: &[u8]) -> Result<&[u8]> {
        self.get(ino)?.xattrs.get(name).map(|value| &**value).ok_or(Errno::NODATA)
    }

    /// All names, each with a zero behind it.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn xattr_names(&self, ino: u64) -> Result<Vec<u8>> {
        Ok(self.get(ino)?.xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect())
    }

    /// Removes one.
    ///
    /// # Errors
    /// `ENODATA` if there is none.
    pub fn remove_xattr(&mut self, ino: u64, name: &[u8], now: Time) -> Result<()> {
        let inode = self.get_mut(ino)?;
        inode.xattrs.remove(name).ok_or(Errno::NODATA)?;
        inode.ctime = now;
        Ok(())
    }
}
