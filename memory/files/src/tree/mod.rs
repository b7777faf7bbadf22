//! The metadata of a file system, without I/O: operations return the loads and stores to execute.
//!
//! Data is in blocks of an address space. Invariant: a file never shows the earlier contents of a block. A block added
//! to a file is a hole until a store of the complete block has succeeded ([`Tree::plan_write`]), so neither a reused
//! block nor a failed store can show data of another file. Bytes after the end of a file are overwritten before the
//! end moves past them.

mod blocks;
mod data;
mod directory;
mod extents;
mod image;
mod inode;
mod names;
mod privileges;
mod xattrs;

use std::collections::BTreeMap;

use rustix::io::Errno;

pub use blocks::Blocks;
pub(crate) use data::Allocate;
pub use data::{FILE_BYTES_MAX, Load, Store, WritePlan};
pub use directory::NAME_BYTES_MAX;
pub use image::BadImage;
pub use inode::{Attributes, Caller, DIRECTORY, KIND_BITS, REGULAR, SYMLINK, Time};
pub use names::{Entry, Exchange};
pub use xattrs::SetXattr;

use blocks::FreeBlocks;
use directory::Directory;
use inode::{Content, File, Inode};

/// Length of a block in bytes: a page of the address space.
pub const BLOCK_BYTES: u64 = farcall_memory::PAGE_BYTES as u64;
/// Inode number of the root.
pub const ROOT: u64 = 1;
/// Number of blocks per inode. It limits the number of inodes, and so the memory of the tree.
const BLOCKS_AN_INODE: u64 = 2;

/// Result of an operation.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// A tree of directories and files.
#[derive(Debug)]
pub struct Tree {
    inodes: BTreeMap<u64, Inode>,
    next_ino: u64,
    free: FreeBlocks,
    blocks: u64,
}

/// Capacity and free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Total number of blocks.
    pub blocks: u64,
    /// Number of free blocks.
    pub blocks_free: u64,
    /// Maximum number of inodes.
    pub inodes: u64,
    /// Number of further inodes that can be created.
    pub inodes_free: u64,
}

/// Changes made by `setattr`.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "the names of stat(2)")]
pub struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    pub ctime: Option<Time>,
}

impl Tree {
    /// Creates an empty tree over `blocks` blocks, with a root that belongs to `owner`.
    pub fn new(blocks: u64, owner: Caller, now: Time) -> Self {
        let mut tree =
            Self { inodes: BTreeMap::new(), next_ino: ROOT + 1, free: FreeBlocks::new(blocks), blocks };
        let mut root = inode(Content::Directory(Directory::new(ROOT)), DIRECTORY | 0o755, owner, 0, now);
        root.links = 2;
        tree.inodes.insert(ROOT, root);
        tree
    }

    /// Returns the capacity and the free space.
    pub fn usage(&self) -> Usage {
        let inodes = self.inodes_max();
        Usage {
            blocks: self.blocks,
            blocks_free: self.free.free(),
            inodes,
            inodes_free: inodes.saturating_sub(self.inodes.len() as u64),
        }
    }

    const fn inodes_max(&self) -> u64 {
        self.blocks / BLOCKS_AN_INODE + 16
    }

    fn get(&self, ino: u64) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Errno::NOENT)
    }

    fn get_mut(&mut self, ino: u64) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Errno::NOENT)
    }

    fn directory(&self, ino: u64) -> Result<&Directory> {
        match &self.get(ino)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn directory_mut(&mut self, ino: u64) -> Result<&mut Directory> {
        match &mut self.get_mut(ino)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn file(&self, ino: u64) -> Result<&File> {
        match &self.get(ino)?.content {
            Content::Bytes(file) => Ok(file),
            Content::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    fn file_mut(&mut self, ino: u64) -> Result<&mut File> {
        match &mut self.get_mut(ino)?.content {
            Content::Bytes(file) => Ok(file),
            Content::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns the attributes for `stat`.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn attributes(&self, ino: u64) -> Result<Attributes> {
        Ok(self.get(ino)?.attributes(ino))
    }

    /// Changes permissions, owners and times.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn change(&mut self, ino: u64, changes: Changes, now: Time) -> Result<Attributes> {
        let inode = self.get_mut(ino)?;
        let Changes { mode, uid, gid, atime, mtime, ctime } = changes;
        inode.mode = mode.map_or(inode.mode, |mode| inode.mode & KIND_BITS | mode & !KIND_BITS);
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        inode.atime = atime.unwrap_or(inode.atime);
        inode.mtime = mtime.unwrap_or(inode.mtime);
        inode.ctime = ctime.unwrap_or(now);
        Ok(inode.attributes(ino))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if the inode is no symbolic link.
    pub fn readlink(&self, ino: u64) -> Result<&[u8]> {
        match &self.get(ino)?.content {
            Content::Symlink(target) => Ok(target),
            _ => Err(Errno::INVAL),
        }
    }

    /// Counts a reference of the kernel to the inode, which prevents its removal until it is forgotten.
    pub fn add_lookup(&mut self, ino: u64) {
        if let Ok(inode) = self.get_mut(ino) {
            inode.lookups += 1;
        }
    }

    /// Releases `lookups` references of the kernel.
    pub fn forget(&mut self, ino: u64, lookups: u64) {
        if let Ok(inode) = self.get_mut(ino) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
            self.drop_if_unused(ino);
        }
    }

    /// Counts an open handle.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn open(&mut self, ino: u64) -> Result<()> {
        self.get_mut(ino)?.opens += 1;
        Ok(())
    }

    /// Releases an open handle.
    pub fn close(&mut self, ino: u64) {
        if let Ok(inode) = self.get_mut(ino) {
            inode.opens = inode.opens.saturating_sub(1);
            self.drop_if_unused(ino);
        }
    }

    /// Releases all references and handles after the file system was unmounted.
    pub fn forget_all(&mut self) {
        self.inodes.values_mut().for_each(|inode| (inode.lookups, inode.opens) = (0, 0));
        let unused: Vec<u64> =
            self.inodes.iter().filter(|(_, inode)| inode.is_unused()).map(|(ino, _)| *ino).collect();
        unused.into_iter().for_each(|ino| self.drop_if_unused(ino));
    }

    fn drop_if_unused(&mut self, ino: u64) {
        if !self.inodes.get(&ino).is_some_and(Inode::is_unused) {
            return;
        }
        if let Some(Inode { content: Content::Bytes(file), .. }) = self.inodes.remove(&ino) {
            file.extents.runs().for_each(|(_, run)| self.free.release(run.blocks));
        }
    }

    fn insert(&mut self, inode: Inode) -> Result<u64> {
        if self.inodes.len() as u64 >= self.inodes_max() {
            return Err(Errno::NOSPC);
        }
        let ino = self.next_ino;
        self.next_ino += 1;
        self.inodes.insert(ino, inode);
        Ok(ino)
    }
}

fn inode(content: Content, mode: u32, owner: Caller, rdev: u32, now: Time) -> Inode {
    Inode {
        content,
        mode,
        uid: owner.uid,
        gid: owner.gid,
        links: 1,
        rdev,
        atime: now,
        mtime: now,
        ctime: now,
        xattrs: BTreeMap::new(),
        lookups: 0,
        opens: 0,
    }
}
