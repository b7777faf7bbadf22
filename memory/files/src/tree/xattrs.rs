//! Extended attributes.

use rustix::io::Errno;

use super::{Result, Time, Tree};

/// Maximum total length in bytes of names and values of one inode: the limit of Linux for one value.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Precondition on an existing value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// None.
    Any,
    /// The value must not exist.
    Create,
    /// The value must exist.
    Replace,
}

impl Tree {
    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `EEXIST` or `ENODATA` according to `how`; `ENOSPC` if the inode has too many.
    pub fn set_xattr(&mut self, ino: u64, name: &[u8], value: &[u8], how: SetXattr, now: Time) -> Result<()> {
        // Rejected because access control lists are not enforced: storing them would suggest that they are.
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

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is none.
    pub fn xattr(&self, ino: u64, name: &[u8]) -> Result<&[u8]> {
        self.get(ino)?.xattrs.get(name).map(|value| &**value).ok_or(Errno::NODATA)
    }

    /// Returns all names, each followed by a zero byte.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn xattr_names(&self, ino: u64) -> Result<Vec<u8>> {
        Ok(self.get(ino)?.xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect())
    }

    /// Removes an extended attribute.
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
