//! Blocks of queue pair numbers, and the paths of their sockets.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use farcall_shm::fork::DontForkFd;
use farcall_verbs::{Error, Gid, Result};
use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::{self, Errno};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process;

use super::super::addresses::{TransportPolicy, device_addresses};
use super::super::local_gids::SPACE;
use super::directory::{admit_group, rendezvous_directory};

/// Number of bits of the index in a block. Queue pair numbers have 24 bits: 12 for the block, 12 for the index.
const INDEX_BITS: u32 = 12;

/// Number of queue pairs in a block.
pub(crate) const BLOCK_QPS: u32 = 1 << INDEX_BITS;

/// Maximum number of connections that wait for the service thread; the system reduces it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Number of blocks that are searched for files of exited processes when a block is claimed.
const SWEEP_LEN: u32 = 64;

/// Returns the block of a queue pair number.
pub(crate) const fn block_of(qpn: u32) -> u32 {
    qpn >> INDEX_BITS
}

/// A block that this process owns until it exits.
pub(crate) struct Block {
    number: u32,
    /// Indices in the order of their assignment, which is random so that numbers cannot be predicted.
    order: Box<[u16]>,
    pub(crate) listener: DontForkFd,
    /// Lock that makes this process the owner of the socket's path.
    _lock: DontForkFd,
}

impl Block {
    /// Returns the `nth` queue pair number of the block; `nth` is below [`BLOCK_QPS`].
    pub(crate) fn qpn(&self, nth: u32) -> u32 {
        self.number << INDEX_BITS | u32::from(self.order[nth as usize % self.order.len()])
    }
}

/// Returns all indices of a block in random order.
fn shuffled() -> Box<[u16]> {
    let mut order: Box<[u16]> = (0..BLOCK_QPS as u16).collect();
    // The hasher's keys are random, so its values cannot be predicted.
    let random = RandomState::new();
    for last in (1..order.len()).rev() {
        order.swap(last, (random.hash_one(last) % (last as u64 + 1)) as usize);
    }
    order
}

fn path_in(directory: &Path, block: u32) -> PathBuf {
    directory.join(format!("softnic-v1-{block}.sock"))
}

fn lock_path_in(directory: &Path, block: u32) -> PathBuf {
    directory.join(format!("softnic-v1-{block}.lock"))
}

/// Returns the path of the socket of the process that owns a queue pair number.
///
/// # Errors
/// Returns an error if there is no directory for rendezvous sockets.
pub fn rendezvous_path(qpn: u32) -> Result<PathBuf> {
    Ok(path_in(&rendezvous_directory()?, block_of(qpn)))
}

/// Returns the path at which a block's socket is bound, before it is renamed to its final path.
fn bound_path_in(directory: &Path, name: [u8; 4]) -> PathBuf {
    directory.join(format!("softnic-{:08x}.new", u32::from_ne_bytes(name)))
}

/// Returns the address of a block's socket.
pub(crate) fn socket_address(block: u32) -> Result<SocketAddrUnix> {
    to_address(&path_in(&rendezvous_directory()?, block))
}

fn to_address(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| {
        let what = format!(
            "{} is too long for a socket (107 bytes); name another FARCALL_SOCKET_DIR",
            path.display()
        );
        Error::invalid("rendezvous address", what)
    })
}

/// Returns the GID of this rendezvous space. Processes with the same GID reach each other's sockets.
///
/// # Errors
/// Returns an error if there is no directory for rendezvous sockets.
pub(crate) fn gid() -> Result<Gid> {
    let directory = rendezvous_directory()?;
    let stat = fs::stat(&directory).map_err(|e| {
        let what = format!("{} (does FARCALL_SOCKET_DIR exist and may you use it?)", directory.display());
        Error::os("find the rendezvous directory", what, e)
    })?;
    let mut id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().into_bytes();
    id.extend(stat.st_dev.to_le_bytes());
    id.extend(stat.st_ino.to_le_bytes());
    let mut gid = [0; 16];
    gid[..SPACE.len()].copy_from_slice(&SPACE);
    gid[8..].copy_from_slice(&fnv1a(&id).to_be_bytes());
    Ok(Gid(gid))
}

/// FNV-1a. It is the same in every build, which the standard library does not guarantee for its hashers.
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
    // Block 0 contains the special queue pairs 0 and 1.
    let nth = |i: u32| 1 + start.wrapping_add(i) % last;
    let directory = rendezvous_directory()?;
    for i in 0..last {
        let Some(lock) = claim_path(&directory, nth(i))? else { continue };
        let listener = listen_socket()?;
        match bind_unlisted(&listener, &directory, &lock, nth(i))? {
            Ok(()) => {}
            // The path belongs to another user, in a directory that both may change.
            Err(Errno::ADDRINUSE | Errno::EXIST | Errno::PERM | Errno::ACCESS | Errno::ISDIR) => continue,
            Err(e) => return Err(Error::os(OP, format!("bind a socket in {}", directory.display()), e)),
        }
        publish_addresses(&lock);
        net::listen(&listener, BACKLOG).map_err(|e| Error::os(OP, "listen on the rendezvous socket", e))?;
        (1..SWEEP_LEN).for_each(|further| remove_stale(&directory, nth(i + further)));
        return Ok(Block {
            number: nth(i),
            order: shuffled(),
            listener: DontForkFd::new(listener),
            _lock: DontForkFd::new(lock),
        });
    }
    Err(Error::Exhausted {
        operation: OP,
        what: "blocks",
        limit: last.into(),
        remedy: "stop some softnic processes, or set FARCALL_SOCKET_DIR to a directory in which other users cannot create files",
    })
}

/// Binds a socket at the path of a block. `/proc/net/unix` shows every user the path at which a socket was bound, so it
/// is bound at a random path and renamed. Only users with the right to list the directory can then find the block.
/// Until it is renamed, the lock file contains the random name, for the process that cleans up after this one.
///
/// # Errors
/// Returns the inner error if the path is taken or cannot be created.
fn bind_unlisted(
    listener: &OwnedFd,
    directory: &Path,
    lock: &OwnedFd,
    block: u32,
) -> Result<rustix::io::Result<()>> {
    let name = (RandomState::new().build_hasher().finish() as u32).to_ne_bytes();
    let bound = bound_path_in(directory, name);
    let address = to_address(&bound)?;
    let noted = fs::ftruncate(lock, 0).and_then(|()| io::pwrite(lock, &name, 0).map(drop));
    if let Err(errno) = noted.and_then(|()| net::bind(listener, &address)) {
        return Ok(Err(errno));
    }
    let renamed = admit_group(&bound).map(|()| rename_unless_taken(&bound, &path_in(directory, block)));
    if !matches!(renamed, Ok(Ok(()))) {
        let _ = fs::unlink(&bound);
    }
    renamed
}

fn rename_unless_taken(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match fs::renameat_with(fs::CWD, from, fs::CWD, to, fs::RenameFlags::NOREPLACE) {
        // The file system does not support the flag. The path was removed before, and this process holds the lock.
        Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to),
        result => result,
    }
}

/// Writes the addresses of this process's network into the lock file. A process in another network namespace that
/// shares the directory finds that they lead to this host.
fn publish_addresses(lock: &OwnedFd) {
    let addresses =
        TransportPolicy::configured().map(|policy| device_addresses(policy, &[])).unwrap_or_default();
    let bytes: Vec<u8> = addresses.iter().flat_map(|entry| entry.gid.0).collect();
    // Without them, only processes that share the network reach this one.
    let _ = fs::ftruncate(lock, 0);
    let _ = io::pwrite(lock, &bytes, 0);
}

/// Returns whether the owner of a lock exists and has published an address.
fn lists_address(lock_path: &Path, address: Gid) -> bool {
    let Ok(lock) = open_lock(lock_path, OFlags::empty()) else { return false };
    let is_alive = fs::flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
    let mut bytes = [0; 256];
    let len_bytes = io::pread(&lock, &mut bytes, 0).unwrap_or(0);
    is_alive && bytes[..len_bytes].chunks_exact(16).any(|told| told == address.0)
}

/// Returns whether the process that owns a queue pair number is reachable through this directory and has this address.
/// `is_local` states that the address is one of this host.
pub(crate) fn is_reachable_by_shm(qpn: u32, address: Gid, is_local: bool) -> bool {
    let Ok(directory) = rendezvous_directory() else { return false };
    let block = block_of(qpn);
    if is_local {
        path_in(&directory, block).exists()
    } else {
        lists_address(&lock_path_in(&directory, block), address)
    }
}

/// Returns whether a process that is reachable through this directory has this address.
pub(crate) fn is_published_address(address: Gid) -> bool {
    let Ok(entries) = rendezvous_directory().and_then(|directory| {
        std::fs::read_dir(&directory)
            .map_err(|_| Error::invalid("find peers", directory.display().to_string()))
    }) else {
        return false;
    };
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "lock"))
        .any(|path| lists_address(&path, address))
}

/// Locks a path and removes the files of an exited owner; `None` if another process owns the path.
fn claim_path(directory: &Path, block: u32) -> Result<Option<OwnedFd>> {
    const OP: &str = "claim a socket path";
    let lock_path = lock_path_in(directory, block);
    let lock = match open_lock(&lock_path, OFlags::CREATE) {
        Ok(lock) => lock,
        Err(_) if fs::lstat(&lock_path).is_ok_and(|stat| stat.st_uid != process::geteuid().as_raw()) => {
            return Ok(None);
        }
        Err(e) => {
            let what = format!(
                "open {} (does FARCALL_SOCKET_DIR exist and may you change it?)",
                lock_path.display()
            );
            return Err(Error::os(OP, what, e));
        }
    };
    if !is_own_lock(&lock) || is_listened_at(directory, block) {
        return Ok(None);
    }
    remove_unfinished(directory, &lock);
    match fs::unlink(path_in(directory, block)) {
        Ok(()) | Err(Errno::NOENT) => Ok(Some(lock)),
        Err(Errno::PERM | Errno::ACCESS | Errno::ISDIR) => Ok(None),
        Err(e) => Err(Error::os(OP, "remove an exited owner's socket", e)),
    }
}

fn open_lock(path: &Path, create: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    fs::open(path, flags | create, Mode::RUSR | Mode::WUSR)
}

/// Locks a file. Returns whether this process now owns the path: another process may hold the lock, or may have removed
/// the file when it cleaned up.
fn is_own_lock(lock: &OwnedFd) -> bool {
    fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        && fs::fstat(lock).is_ok_and(|stat| stat.st_nlink > 0 && stat.st_uid == process::geteuid().as_raw())
}

/// Returns whether a process listens at a block. An existing process may have lost its lock file to a cleaner of /tmp.
fn is_listened_at(directory: &Path, block: u32) -> bool {
    let Ok(address) = SocketAddrUnix::new(path_in(directory, block)) else { return false };
    listen_socket().is_ok_and(|socket| matches!(net::connect(&socket, &address), Ok(()) | Err(Errno::AGAIN)))
}

/// Removes the socket of an owner that exited before the socket was renamed. This process holds its lock `lock`.
fn remove_unfinished(directory: &Path, lock: &OwnedFd) {
    // Addresses are longer than a name.
    let mut noted = [0; 5];
    let read = io::pread(lock, &mut noted, 0);
    if let (Ok(4), [name @ .., _]) = (read, noted) {
        let _ = fs::unlink(bound_path_in(directory, name));
    }
}

/// Removes the files of an exited owner, so that the directory holds little more than the files of existing processes.
fn remove_stale(directory: &Path, block: u32) {
    let lock_path = lock_path_in(directory, block);
    if let Ok(lock) = open_lock(&lock_path, OFlags::empty())
        && is_own_lock(&lock)
        && !is_listened_at(directory, block)
    {
        remove_unfinished(directory, &lock);
        let _ = fs::unlink(path_in(directory, block));
        let _ = fs::unlink(lock_path);
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
        let directory = rendezvous_directory().unwrap();
        let (number, path) = (a.number, rendezvous_path(a.qpn(0)).unwrap());
        assert!(claim_path(&directory, number).unwrap().is_none() && path.exists());
        remove_stale(&directory, number);
        assert!(path.exists(), "what lives is left alone");
        // Like a program that removes old files.
        std::fs::remove_file(lock_path_in(&directory, number)).unwrap();
        assert!(claim_path(&directory, number).unwrap().is_none());
        remove_stale(&directory, number);
        assert!(path.exists(), "who listens lives");
        drop(a);
        remove_stale(&directory, number);
        assert!(!path.exists() && !lock_path_in(&directory, number).exists());
    }

    #[test]
    fn numbers_of_a_block_come_in_random_order_each_once() {
        let orders = [shuffled(), shuffled()];
        assert_ne!(orders[0], orders[1]);
        for order in orders {
            let follow = order.windows(2).filter(|two| two[0].abs_diff(two[1]) == 1).count();
            assert!(follow < 64, "{follow} numbers are beside the one before");
            let all: std::collections::HashSet<_> = order.iter().collect();
            assert_eq!(all.len(), BLOCK_QPS as usize);
        }
    }

    #[test]
    fn a_lock_that_was_removed_makes_nothing_ours() {
        let directory = std::env::temp_dir().join(format!("farcall-lock-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let late = open_lock(&lock_path_in(&directory, 5), OFlags::CREATE).unwrap();
        remove_stale(&directory, 5);
        let first = claim_path(&directory, 5).unwrap();
        assert!(first.is_some() && !is_own_lock(&late));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn lists_no_block_and_leaves_no_unfinished_socket() {
        let directory = std::env::temp_dir().join(format!("farcall-unlisted-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let lock = claim_path(&directory, 7).unwrap().unwrap();
        let listener = listen_socket().unwrap();
        bind_unlisted(&listener, &directory, &lock, 7).unwrap().unwrap();
        net::listen(&listener, 1).unwrap();
        assert!(is_listened_at(&directory, 7));
        let listed = std::fs::read_to_string("/proc/net/unix").unwrap();
        let of_ours = |line: &&str| line.contains(directory.to_str().unwrap());
        let names: Vec<&str> = listed.lines().filter(of_ours).collect();
        assert!(!names.is_empty() && names.iter().all(|name| name.ends_with(".new")), "{names:?}");
        // The path of another block is taken.
        std::fs::write(path_in(&directory, 8), "").unwrap();
        let other =
            (open_lock(&lock_path_in(&directory, 8), OFlags::CREATE).unwrap(), listen_socket().unwrap());
        let taken = bind_unlisted(&other.1, &directory, &other.0, 8).unwrap();
        assert_eq!(taken, Err(Errno::EXIST));
        // An owner that exited before its socket was renamed.
        let name = *b"abcd";
        std::fs::write(lock_path_in(&directory, 9), name).unwrap();
        std::fs::write(bound_path_in(&directory, name), "").unwrap();
        remove_stale(&directory, 9);
        let files: Vec<_> =
            std::fs::read_dir(&directory).unwrap().map(|file| file.unwrap().file_name()).collect();
        let is_new = |file: &&std::ffi::OsString| file.to_string_lossy().ends_with(".new");
        assert_eq!(files.iter().find(is_new), None, "{files:?}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_gid_is_the_same_for_every_process_here() {
        assert_eq!(gid().unwrap(), gid().unwrap());
        assert_eq!(gid().unwrap().0[..3], [0xfd, b'F', b'C']);
    }
}
