//! The protocol between kernel and daemon over /dev/fuse: linux/fuse.h, version 7.

use std::time::Duration;

use rustix::io::Errno;

use crate::tree::{Attributes, ROOT, Result, Time};

/// Protocol version of this build, and the minor version of the oldest supported kernel: 5.4, which supports requests
/// of 1 MiB.
pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 40;
pub const MINOR_MIN: u32 = 31;

/// Maximum transfer per request in bytes: larger ones do not improve throughput, and the kernel has the same limit.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Length in bytes of the buffer for requests: a write, and the headers before its data.
pub const REQUEST_BYTES_MAX: usize = TRANSFER_BYTES_MAX + 4096;
/// Length of the header of a reply in bytes.
pub const OUT_HEADER_BYTES: usize = 16;

/// Maximum time that the kernel may cache a reply. No other client changes the volume while this mount holds it.
pub const VALID_MAX: Duration = Duration::from_secs(3_600);

/// Number of low bits of a node number that contain the inode number. The higher bits contain the era in which the
/// kernel received it: an inode of an earlier era (another mount has changed the tree since) is not confused with one
/// that has the same number now.
const INO_BITS: u32 = 48;
/// Maximum era.
pub const ERA_MAX: u16 = u16::MAX;

/// Returns the node number of an inode in an era. The root has the same number in all eras.
pub const fn node_of(ino: u64, era: u16) -> u64 {
    if ino == ROOT { ino } else { handle_of(ino, era) }
}

/// Returns the handle of an inode that was opened in an era.
pub const fn handle_of(ino: u64, era: u16) -> u64 {
    ino | (era as u64) << INO_BITS
}

/// Returns the inode number in a node number.
pub const fn ino_of(node: u64) -> u64 {
    node & ((1 << INO_BITS) - 1)
}

/// Returns whether the kernel received a node number or a handle in this era.
pub const fn is_of_era(node: u64, era: u16) -> bool {
    node >> INO_BITS == era as u64
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Opcode {
    Lookup = 1,
    Forget = 2,
    Getattr = 3,
    Setattr = 4,
    Readlink = 5,
    Symlink = 6,
    Mknod = 8,
    Mkdir = 9,
    Unlink = 10,
    Rmdir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    Statfs = 17,
    Release = 18,
    Fsync = 20,
    Setxattr = 21,
    Getxattr = 22,
    Listxattr = 23,
    Removexattr = 24,
    Flush = 25,
    Init = 26,
    Opendir = 27,
    Readdir = 28,
    Releasedir = 29,
    Fsyncdir = 30,
    Create = 35,
    Interrupt = 36,
    Destroy = 38,
    BatchForget = 42,
    Fallocate = 43,
    Readdirplus = 44,
    Rename2 = 45,
    Lseek = 46,
    Syncfs = 50,
    Tmpfile = 51,
}

impl Opcode {
    const ALL: [Self; 38] = [
        Self::Lookup,
        Self::Forget,
        Self::Getattr,
        Self::Setattr,
        Self::Readlink,
        Self::Symlink,
        Self::Mknod,
        Self::Mkdir,
        Self::Unlink,
        Self::Rmdir,
        Self::Rename,
        Self::Link,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Statfs,
        Self::Release,
        Self::Fsync,
        Self::Setxattr,
        Self::Getxattr,
        Self::Listxattr,
        Self::Removexattr,
        Self::Flush,
        Self::Init,
        Self::Opendir,
        Self::Readdir,
        Self::Releasedir,
        Self::Fsyncdir,
        Self::Create,
        Self::Interrupt,
        Self::Destroy,
        Self::BatchForget,
        Self::Fallocate,
        Self::Readdirplus,
        Self::Rename2,
        Self::Lseek,
        Self::Syncfs,
        Self::Tmpfile,
    ];

    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|opcode| *opcode as u32 == number)
    }
}

/// A request.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// `None` if this build does not know it.
    pub opcode: Option<Opcode>,
    pub unique: u64,
    /// Inode number.
    pub node: u64,
    /// Node number, which includes the era.
    pub named: u64,
    /// Era in which the request is handled.
    pub era: u16,
    pub uid: u32,
    pub gid: u32,
    pub body: Fields<'a>,
    /// The complete request.
    pub bytes: &'a [u8],
    /// Time for which the kernel may cache the reply.
    pub valid: Duration,
}

/// The kernel resends the request: the process that read it first has exited (FUSE_UNIQUE_RESEND).
const RESENT: u64 = 1 << 63;

impl<'a> Request<'a> {
    /// Decodes a request; `None` if the bytes are not one.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (len_bytes, opcode) = (fields.u32().ok()?, fields.u32().ok()?);
        let (unique, node) = (fields.u64().ok()?, fields.u64().ok()?);
        let (uid, gid) = (fields.u32().ok()?, fields.u32().ok()?);
        fields.skip(8).ok()?;
        let is_whole = len_bytes as usize == bytes.len();
        let (opcode, body, valid) = (Opcode::of(opcode), fields, Duration::ZERO);
        let (named, node, era) = (node, ino_of(node), 0);
        is_whole.then_some(Self { opcode, unique, node, named, era, uid, gid, body, bytes, valid })
    }

    /// Returns the same request with an era.
    pub const fn in_era(&self, era: u16) -> Self {
        Self { era, ..*self }
    }

    /// Returns whether the kernel received the node number `node` in this era.
    pub const fn is_current(&self, node: u64) -> bool {
        node == ROOT || is_of_era(node, self.era)
    }

    /// Returns the same request with a validity time: no other client changes the volume for that long.
    pub fn valid_for(&self, valid: Duration) -> Self {
        Self { valid: valid.min(VALID_MAX), ..*self }
    }

    /// Returns its number, which is the same when it is resent.
    pub const fn number(&self) -> u64 {
        self.unique & !RESENT
    }

    pub const fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }

    /// Returns whether the request was a lookup of a name that does not exist: the tree is unchanged.
    pub fn is_lookup_of_nothing(&self, reply: &[u8]) -> bool {
        self.opcode == Some(Opcode::Lookup) && reply.iter().take(8).all(|byte| *byte == 0)
    }
}

/// Sequential decoder of the fields of a structure. Returns `EIO` if the structure is too short.
#[derive(Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, len_bytes: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len_bytes).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Errno::IO)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    pub fn skip(&mut self, len_bytes: usize) -> Result<()> {
        self.take(len_bytes).map(drop)
    }

    /// Decodes a zero-terminated string.
    pub fn name(&mut self) -> Result<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::IO)?;
        let name = self.take(end)?;
        self.skip(1)?;
        Ok(name)
    }
}

/// Encoder of the body of a reply.
pub trait Body {
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_attributes(&mut self, attributes: &Attributes);

    /// Appends the reply to GETATTR and SETATTR.
    fn put_attr_out(&mut self, attributes: &Attributes, valid: Duration) {
        self.put_u64(valid.as_secs());
        self.put_u32(valid.subsec_nanos());
        self.put_u32(0);
        self.put_attributes(attributes);
    }

    /// Appends the reply to LOOKUP and to requests that create a name. `node` is the node number of the inode.
    fn put_entry_out(&mut self, node: u64, attributes: &Attributes, valid: Duration) {
        self.put_u64(node);
        self.put_u64(0);
        [valid; 2].into_iter().for_each(|valid| self.put_u64(valid.as_secs()));
        [valid; 2].into_iter().for_each(|valid| self.put_u32(valid.subsec_nanos()));
        self.put_attributes(attributes);
    }

    /// Appends a negative reply to LOOKUP: the name does not exist, and only the kernel's own requests can create it
    /// while the reply is valid.
    fn put_no_entry(&mut self, valid: Duration) {
        self.put_u64(0);
        self.put_u64(0);
        self.put_u64(valid.as_secs());
        self.put_u64(0);
        self.put_u32(valid.subsec_nanos());
        self.put_u32(0);
        (0..11).for_each(|_| self.put_u64(0));
    }
}

impl Body for Vec<u8> {
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_ne_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_ne_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_ne_bytes());
    }

    fn put_attributes(&mut self, attributes: &Attributes) {
        let Attributes { ino, size, blocks, atime, mtime, ctime, mode, nlink, uid, gid, rdev } = *attributes;
        [ino, size, blocks].into_iter().for_each(|value| self.put_u64(value));
        [atime, mtime, ctime].into_iter().for_each(|time: Time| self.put_u64(time.seconds.cast_unsigned()));
        [atime, mtime, ctime].into_iter().for_each(|time: Time| self.put_u32(time.nanos));
        let block_bytes = crate::tree::BLOCK_BYTES as u32;
        [mode, nlink, uid, gid, rdev, block_bytes, 0].into_iter().for_each(|value| self.put_u32(value));
    }
}

/// Flags of FUSE_INIT that this build uses if the kernel offers them.
pub mod features {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const HAS_RESEND: u64 = 1 << 39;

    pub const WANTED: u64 = ASYNC_READ
        | BIG_WRITES
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | MAX_PAGES
        | CACHE_SYMLINKS
        | INIT_EXT
        | DIRECT_IO_ALLOW_MMAP
        | HAS_RESEND;
}

/// Returns the message that requests resending of all unanswered requests (FUSE_NOTIFY_RESEND).
pub fn resend() -> Vec<u8> {
    const RESEND: i32 = 7;
    let mut message = Vec::new();
    message.put_u32(OUT_HEADER_BYTES as u32);
    message.put_u32(RESEND.cast_unsigned());
    message.put_u64(0);
    message
}

/// Returns the message that invalidates the kernel's cached attributes of an inode (FUSE_NOTIFY_INVAL_INODE).
pub fn invalidate_attributes(node: u64) -> Vec<u8> {
    const INVAL_INODE: i32 = 2;
    let mut message = Vec::new();
    message.put_u32((OUT_HEADER_BYTES + 24) as u32);
    message.put_u32(INVAL_INODE.cast_unsigned());
    message.put_u64(0);
    message.put_u64(node);
    // A negative offset: cached bytes stay.
    message.put_u64(u64::MAX);
    message.put_u64(0);
    message
}

/// Replies to FUSE_INIT.
///
/// # Errors
/// Returns `EPROTO` if the kernel is older than required.
pub fn init(mut body: Fields<'_>, reply: &mut Vec<u8>) -> Result<()> {
    let (major, minor, max_readahead, flags) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
    let offered = u64::from(flags) | u64::from(body.u32().unwrap_or(0)) << 32;
    if major != MAJOR || minor < MINOR_MIN || offered & features::MAX_PAGES == 0 {
        return Err(Errno::PROTO);
    }
    let taken = offered & features::WANTED;
    reply.put_u32(MAJOR);
    reply.put_u32(MINOR);
    reply.put_u32(max_readahead);
    reply.put_u32(taken as u32);
    // Maximum number of background requests, and the congestion threshold.
    reply.put_u16(64);
    reply.put_u16(48);
    reply.put_u32(TRANSFER_BYTES_MAX as u32);
    // Time granularity: one nanosecond.
    reply.put_u32(1);
    reply.put_u16((TRANSFER_BYTES_MAX / 4096) as u16);
    reply.put_u16(0);
    reply.put_u32((taken >> 32) as u32);
    (0..7).for_each(|_| reply.put_u32(0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_lengths_of_the_kernel() {
        let attributes =
            crate::Tree::new(1, crate::Caller::default(), Time::default()).attributes(1).unwrap();
        let len = |put: &dyn Fn(&mut Vec<u8>)| {
            let mut body = Vec::new();
            put(&mut body);
            body.len()
        };
        assert_eq!(len(&|body| body.put_attributes(&attributes)), 88);
        assert_eq!(len(&|body| body.put_attr_out(&attributes, VALID_MAX)), 104);
        assert_eq!(len(&|body| body.put_entry_out(1, &attributes, VALID_MAX)), 128);
        assert_eq!(len(&|body| body.put_no_entry(VALID_MAX)), 128);
        let offer: Vec<u8> = [7, 40, 0, u32::MAX, u32::MAX].into_iter().flat_map(u32::to_ne_bytes).collect();
        assert_eq!(len(&|body| init(Fields(&offer), body).unwrap()), 64);
        assert_eq!(init(Fields(&offer[..8]), &mut Vec::new()), Err(Errno::IO));
        assert!(Request::parse(&[0; 39]).is_none());
    }

    #[test]
    fn distinguishes_inodes_of_different_eras_but_the_root() {
        assert_eq!((node_of(7, 0), node_of(ROOT, 3), ino_of(node_of(7, ERA_MAX))), (7, ROOT, 7));
        let bytes = crate::fuse::requests::lookup(2, node_of(7, 3), "name");
        let request = Request::parse(&bytes).unwrap();
        assert_eq!((request.node, request.named), (7, node_of(7, 3)));
        assert!(request.in_era(3).is_current(request.named) && !request.in_era(4).is_current(request.named));
        assert!(request.in_era(4).is_current(ROOT) && !is_of_era(handle_of(ROOT, 3), 4));
    }
}
