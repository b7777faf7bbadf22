//! Blocks of queue pair numbers, and where their sockets are.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::trust::configured_group;
use crate::fork::UnforkedFd;
use farcall_verbs::{Error, Gid, Result};
use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process;

/// Queue pair numbers have 24 bits: 12 for the block, 12 inside it.
const INDEX_BITS: u32 = 12;

/// Queue pairs in one block.
pub(crate) const BLOCK_QPS: u32 = 1 << INDEX_BITS;

/// Names a directory whose sockets are used instead of abstract ones: for containers that share it.
const DIR_VARIABLE: &str = "FARCALL_SOCKET_DIR";

/// The block of a queue pair number.
pub(crate) const fn block_of(qpn: u32) -> u32 {
    qpn >> INDEX_BITS
}

/// A block that this process owns while it lives.
pub(crate) struct Block {
    number: u32,
    listener: UnforkedFd,
    /// With a socket directory: the lock that makes the path ours.
    _lock: Option<UnforkedFd>,
}

impl Block {
    /// The queue pair number of an index.
    pub(crate) const fn qpn(&self, index: u32) -> u32 {
        self.number << INDEX_BITS | (index & (BLOCK_QPS - 1))
    }

    pub(crate) fn listener(&self) -> &UnforkedFd {
        &self.listener
    }
}

/// The directory that containers share, if one is named.
pub fn socket_directory() -> Option<PathBuf> {
    std::env::var_os(DIR_VARIABLE).map(PathBuf::from)
}

fn path_in(directory: &std::path::Path, block: u32) -> PathBuf {
    directory.join(format!("softnic-v1-{block}.sock"))
}

/// The address of a block's socket.
pub(crate) fn socket_address(block: u32) -> Result<SocketAddrUnix> {
    let address = match socket_directory() {
        Some(directory) => SocketAddrUnix::new(path_in(&directory, block)),
        None => SocketAddrUnix::new_abstract_name(format!("farcall/softnic/v1/{block}").as_bytes()),
    };
    address.map_err(|e| Error::os("rendezvous address", format!("{DIR_VARIABLE} gives too long a path"), e))
}

/// The GID of this rendezvous space: processes with the same one reach each other's sockets.
pub(crate) fn gid() -> Gid {
    let mut id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().into_bytes();
    let space = match socket_directory() {
        Some(directory) => fs::stat(&directory).map(|s| (s.st_dev, s.st_ino)),
        None => fs::stat("/proc/self/ns/net").map(|s| (s.st_dev, s.st_ino)),
    };
    let (dev, ino) = space.unwrap_or((0, 0));
    id.extend(dev.to_le_bytes());
    id.extend(ino.to_le_bytes());
    let mut gid = *b"\xfd\x46\x43\x01\0\0\0\0\0\0\0\0\0\0\0\0";
    gid[8..].copy_from_slice(&fnv1a(&id).to_be_bytes());
    Gid(gid)
}

/// FNV-1a: the same in every build, which the standard library's hashers do not promise.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

fn listen_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| Error::os("socket", "create a rendezvous socket (check RLIMIT_NOFILE)", e))
}

/// Claims a free block, starting at a random one.
pub(crate) fn claim_block() -> Result<Block> {
    const OP: &str = "claim a block of queue pair numbers";
    let last = (1_u32 << (24 - INDEX_BITS)) - 1;
    let start = RandomState::new().build_hasher().finish() as u32;
    for i in 0..last {
        // Block 0 holds the special queue pairs 0 and 1.
        let number = 1 + start.wrapping_add(i) % last;
        let listener = listen_socket()?;
        let lock = match socket_directory() {
            Some(directory) => match claim_path(&directory, number)? {
                Some(lock) => Some(lock),
                None => continue,
            },
            None => None,
        };
        match net::bind(&listener, &socket_address(number)?) {
            Ok(()) => {
                if let Some(directory) = socket_directory() {
                    admit_group(&path_in(&directory, number))?;
                }
                net::listen(&listener, 128)
                    .map_err(|e| Error::os(OP, "listen on the rendezvous socket", e))?;
                return Ok(Block {
                    number,
                    listener: UnforkedFd::new(listener),
                    _lock: lock.map(UnforkedFd::new),
                });
            }
            Err(rustix::io::Errno::ADDRINUSE) => {}
            Err(e) => return Err(Error::os(OP, format!("bind the rendezvous socket ({DIR_VARIABLE})"), e)),
        }
    }
    Err(Error::Exhausted {
        operation: OP,
        what: "blocks",
        limit: last.into(),
        remedy: "stop some softnic processes",
    })
}

/// Lets members of the configured group at a socket in a directory, and nobody else but its owner.
///
/// # Errors
/// If the owner is no member of the group, or the name of the group cannot be understood.
pub fn admit_group(path: &std::path::Path) -> Result<()> {
    const OP: &str = "admit a group to a socket path";
    let fail = |e| Error::os(OP, format!("{} (are you a member of FARCALL_GROUP?)", path.display()), e);
    let mode = Mode::RUSR | Mode::WUSR;
    let Some(group) = configured_group()? else { return fs::chmod(path, mode).map_err(fail) };
    fs::chown(path, None, Some(fs::Gid::from_raw(group))).map_err(fail)?;
    fs::chmod(path, mode | Mode::RGRP | Mode::WGRP).map_err(fail)
}

/// Locks a path of a socket directory and removes what a dead owner left there; `None` if it has a live owner.
fn claim_path(directory: &std::path::Path, block: u32) -> Result<Option<OwnedFd>> {
    const OP: &str = "claim a socket path";
    let lock_path = directory.join(format!("softnic-v1-{block}.lock"));
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = fs::open(&lock_path, flags, Mode::RUSR | Mode::WUSR);
    if opened.is_err() && fs::stat(&lock_path).is_ok_and(|stat| stat.st_uid != process::geteuid().as_raw()) {
        // It is another user's.
        return Ok(None);
    }
    let lock = opened.map_err(|e| {
        Error::os(
            OP,
            format!("open {} (does {DIR_VARIABLE} exist and belong to you?)", lock_path.display()),
            e,
        )
    })?;
    if fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    match fs::unlink(path_in(directory, block)) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(Some(lock)),
        Err(e) => Err(Error::os(OP, "remove a dead owner's socket", e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_one_owner_and_is_free_after_it() {
        let a = claim_block().unwrap();
        let b = claim_block().unwrap();
        assert_ne!(a.number, b.number);
        assert_eq!(block_of(a.qpn(77)), a.number);
        let rival = listen_socket().unwrap();
        let address = socket_address(a.number).unwrap();
        assert!(net::bind(&rival, &address).is_err());
        drop(a);
        assert!(net::bind(&rival, &address).is_ok());
    }

    #[test]
    fn the_gid_is_the_same_for_every_process_here() {
        assert_eq!(gid(), gid());
        assert_eq!(gid().0[..3], [0xfd, b'F', b'C']);
    }
}
