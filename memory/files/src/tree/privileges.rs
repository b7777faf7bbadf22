//! Privileges of a program file that end when another program changes its data.
//!
//! The kernel removes them at `chown`, `truncate` and `fallocate` with separate requests. For a write with direct I/O
//! it leaves that to the file system.

use super::inode::{GROUP_EXECUTE, SETGID, SETUID};
use super::{Time, Tree};

/// Name of the extended attribute that contains the capabilities of a program.
const CAPABILITIES: &[u8] = b"security.capability";

impl Tree {
    /// Removes the capabilities of a file that is written to, and with `set_ids` also its set-user-ID and set-group-ID
    /// bits. The set-group-ID bit is kept if the group has no execute permission, as in Linux. Returns whether
    /// anything has changed.
    pub(crate) fn drop_privileges(&mut self, ino: u64, set_ids: bool, now: Time) -> bool {
        let Ok(inode) = self.get_mut(ino) else { return false };
        let mut dropped = inode.mode & if set_ids { SETUID | SETGID } else { 0 };
        if inode.mode & GROUP_EXECUTE == 0 {
            dropped &= !SETGID;
        }
        inode.mode &= !dropped;
        let has_changed = inode.xattrs.remove(CAPABILITIES).is_some() || dropped != 0;
        if has_changed {
            inode.ctime = now;
        }
        has_changed
    }
}
