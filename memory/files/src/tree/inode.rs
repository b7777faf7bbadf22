//! Inodes: the metadata of a file, a directory or a link.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BLOCK_BYTES;
use super::directory::Directory;
use super::extents::Extents;

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

/// The kind bits of a mode.
pub const KIND_BITS: u32 = 0o170_000;
/// A directory.
pub const DIRECTORY: u32 = 0o040_000;
/// A file of bytes.
pub const REGULAR: u32 = 0o100_000;
/// A symbolic link.
pub const SYMLINK: u32 = 0o120_000;
/// Set-user-ID.
pub const SETUID: u32 = 0o4_000;
/// Set-group-ID.
pub const SETGID: u32 = 0o2_000;
/// Execute permission of the group. Without it set-group-ID does not change the group of a program.
pub const GROUP_EXECUTE: u32 = 0o010;

/// Credentials of a request, as far as the tree needs them: the kernel has checked permissions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// User of new inodes.
    pub uid: u32,
    /// Group of new inodes.
    pub gid: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Content {
    Bytes(File),
    Directory(Directory),
    Symlink(Vec<u8>),
    /// A socket, a pipe or a device, which has no content.
    Special,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct File {
    pub len_bytes: u64,
    pub extents: Extents,
    /// `true` if the last block may contain other bytes than zeros after the end. They are overwritten before the file
    /// grows.
    pub is_tail_dirty: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Inode {
    pub content: Content,
    /// Kind and permissions.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub rdev: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Number of references of the kernel; the inode exists at least while this is not zero.
    #[serde(skip)]
    pub lookups: u64,
    /// Number of open handles.
    #[serde(skip)]
    pub opens: u64,
}

/// Attributes for `stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of stat(2)")]
pub struct Attributes {
    pub ino: u64,
    pub size: u64,
    /// Number of allocated blocks, in units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
}

impl Inode {
    pub fn attributes(&self, ino: u64) -> Attributes {
        let (size, blocks) = match &self.content {
            Content::Bytes(file) => (file.len_bytes, file.extents.count() * (BLOCK_BYTES / 512)),
            Content::Symlink(target) => (target.len() as u64, 0),
            Content::Directory(_) => (BLOCK_BYTES, 8),
            Content::Special => (0, 0),
        };
        let Self { mode, uid, gid, rdev, atime, mtime, ctime, links, .. } = *self;
        Attributes { ino, size, blocks, atime, mtime, ctime, mode, nlink: links, uid, gid, rdev }
    }

    /// Renumbers the names of a directory that has used all of its cookies.
    pub fn renumber_if_exhausted(&mut self) {
        if let Content::Directory(directory) = &mut self.content {
            directory.renumber_if_exhausted();
        }
    }

    pub const fn is_directory(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }

    /// Returns whether the inode is unreachable: it has no name, reference or handle.
    pub const fn is_unused(&self) -> bool {
        self.links == 0 && self.lookups == 0 && self.opens == 0
    }
}
