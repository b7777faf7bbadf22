//! Sharing of the port among the processes of a user in a network namespace.
//!
//! The first process binds all sockets that the port will ever have, its *slots*, and a listener at a path of the
//! user's own. A later process connects there and receives the same sockets, including the listener. Any process of the
//! port can therefore reply, and the number of a slot never changes when processes exit. Slots are owned through file
//! locks, which the kernel releases when their process exits; the next process that joins takes a free slot. Packets
//! are steered by a table of blocks of queue pair numbers ([`super::steering`]). It is in memory that all processes
//! share, and changed under a lock.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farcall_shm::fork::DontForkFd;
use farcall_shm::{Mutex, sealed_memfd};
use farcall_verbs::{Error, Result};
use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::{self, Errno};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process;

use super::socket::{OP, allow_gro, bind_shared, drain, fail, last_errno};
use super::steering::{BLOCKS, Table};
use crate::process::FdHandler;
use crate::process::rendezvous::{
    MAX_FDS, TrustLevel, authorize_peer, recv_frame, rendezvous_directory, send_frame, wait_for_frame,
};

/// Maximum number of processes that share a port.
pub(super) const SLOTS: usize = MAX_FDS - 2;

/// Timeout for a process that shares the port to reply, or to change the table.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Message that accompanies the descriptors: the version of this protocol.
const VERSION: &[u8] = b"farcall-roce-port-4";

/// A number that the processes of the port share, stored after the table.
#[derive(Clone, Copy)]
pub(super) enum SharedWord {
    /// Time of `CLOCK_MONOTONIC` in nanoseconds until which GRO is off in all processes; 0 if it is on.
    GroPausedUntil,
    /// Number of changes of the holder of queue pair 1.
    ManagementEpoch,
    /// Number of times that its holders have announced that they run.
    ManagementBeat,
}

/// Length in bytes of the table and the shared words.
const SHARED_BYTES: usize = BLOCKS + 3 * 8;

impl SharedWord {
    fn at(self) -> u64 {
        (BLOCKS + 8 * self as usize) as u64
    }
}

/// Offsets of the file locks, after all data: of the slots, and of the table.
const SLOT_LOCKS_AT: usize = SHARED_BYTES;
const TABLE_LOCK_AT: usize = SLOT_LOCKS_AT + SLOTS;

/// The shared port, and the slot of this process.
pub(super) struct SharedPort {
    sockets: Vec<DontForkFd>,
    listener: DontForkFd,
    table: DontForkFd,
    own: usize,
    table_mutex: Mutex<()>,
}

/// Lock of the table; dropping it releases the lock.
struct TableLock<'a>(&'a DontForkFd);

impl Drop for TableLock<'_> {
    fn drop(&mut self) {
        let _ = lock(self.0.as_fd(), libc::F_UNLCK, TABLE_LOCK_AT);
    }
}

/// Sets or queries the lock of one byte. The lock belongs to the process and not to the descriptor.
fn lock_call(
    fd: BorrowedFd<'_>,
    call: libc::c_int,
    kind: libc::c_int,
    at: usize,
) -> rustix::io::Result<libc::c_int> {
    // SAFETY: all bytes zero are a valid `flock`, which is plain data.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    (lock.l_start, lock.l_len) = (at as libc::off_t, 1);
    // SAFETY: these calls take a `flock`, and `lock` is a local variable that outlives the call.
    match unsafe { libc::fcntl(fd.as_raw_fd(), call, &raw mut lock) } {
        0 => Ok(lock.l_type.into()),
        _ => Err(last_errno()),
    }
}

fn lock(fd: BorrowedFd<'_>, kind: libc::c_int, at: usize) -> rustix::io::Result<()> {
    lock_call(fd, libc::F_SETLK, kind, at).map(drop)
}

/// Returns the path, without extension, at which the processes of the user in this network namespace find each other.
fn stem() -> Result<PathBuf> {
    let namespace = fs::stat("/proc/self/ns/net").map_or(0, |stat| stat.st_ino);
    let user = process::geteuid().as_raw();
    Ok(rendezvous_directory()?.join(format!("roce-v1-{user}-{namespace}")))
}

/// Retries for as long as other processes may hold a lock.
fn retry_until_timeout<T>(what: &str, mut attempt: impl FnMut() -> rustix::io::Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(Errno::AGAIN | Errno::ACCESS) if began.elapsed() < JOIN_TIMEOUT => {
                std::thread::sleep(RETRY_INTERVAL)
            }
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let what = format!("{what}: another process of this user holds it (is one of them stopped?)");
                return Err(Error::os(OP, what, Errno::AGAIN));
            }
            result => return result.map_err(|e| Error::os(OP, what, e)),
        }
    }
}

/// Acquires the lock for joining or creating a port.
fn lock_creation(path: &Path) -> Result<OwnedFd> {
    retry_until_timeout(&format!("lock {}", path.display()), || {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let lock_file = fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        fs::flock(&lock_file, FlockOperation::NonBlockingLockExclusive)?;
        let stat = fs::fstat(&lock_file)?;
        if stat.st_uid != process::geteuid().as_raw() {
            return Err(Errno::PERM);
        }
        // The file was removed in the meantime, as old files are.
        if stat.st_nlink == 0 { Err(Errno::AGAIN) } else { Ok(lock_file) }
    })
}

fn unix_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(fail("create a Unix socket"))
}

/// Result of a request for the port.
enum JoinReply {
    NoProcess,
    /// The process that accepted the request exited before it replied.
    Exited,
    Sockets(Vec<OwnedFd>),
}

/// Requests the sockets from a process that shares the port; `None` if there is none.
fn request_sockets(address: &SocketAddrUnix) -> Result<Option<Vec<OwnedFd>>> {
    // Another process handles the next request. At most as many processes can exit as there are slots.
    for _ in 0..SLOTS {
        match request_sockets_once(address)? {
            JoinReply::NoProcess => return Ok(None),
            JoinReply::Sockets(fds) => return Ok(Some(fds)),
            JoinReply::Exited => {}
        }
    }
    Err(fail("get an answer from the processes that share it: they end one after the other")(
        Errno::CONNRESET,
    ))
}

fn request_sockets_once(address: &SocketAddrUnix) -> Result<JoinReply> {
    let socket = unix_socket()?;
    let connected =
        retry_until_timeout("ask the processes that share it", || match net::connect(&socket, address) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(false),
            Err(errno) => Err(errno),
        })?;
    if !connected {
        return Ok(JoinReply::NoProcess);
    }
    if authorize_peer(socket.as_fd(), "process that shares the RoCEv2 port")? != TrustLevel::SameUser {
        return Err(fail("share it with another user")(Errno::PERM));
    }
    if !wait_for_frame(socket.as_fd(), JOIN_TIMEOUT) {
        return Err(fail("get an answer from the processes of this user that share it (are they stopped?)")(
            Errno::TIMEDOUT,
        ));
    }
    match recv_frame(socket.as_fd()) {
        Ok(Some((version, _))) if version != VERSION => {
            Err(fail("share it with another build of Farcall; use one")(Errno::PROTO))
        }
        Ok(Some((_, fds))) if fds.len() != MAX_FDS => {
            Err(fail("take its sockets (RLIMIT_NOFILE must allow 66 descriptors more)")(Errno::MFILE))
        }
        Ok(Some((_, fds))) => Ok(JoinReply::Sockets(fds)),
        Ok(None) | Err(Errno::CONNRESET) => Ok(JoinReply::Exited),
        Err(errno) => Err(fail("get an answer from the processes that share it")(errno)),
    }
}

/// Binds all sockets and the listener.
fn create(path: &Path, address: &SocketAddrUnix) -> Result<Vec<OwnedFd>> {
    let mut fds = bind_shared(SLOTS)?;
    let table = sealed_memfd("farcall-roce-port", SHARED_BYTES as u64, 0)?;
    match fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(fail("remove the socket of the processes that had it before")(errno)),
    }
    let listener = unix_socket()?;
    net::bind(&listener, address).map_err(fail("bind the socket where others ask for it"))?;
    fs::chmod(path, Mode::RUSR | Mode::WUSR)
        .map_err(fail("keep others from the socket where it is asked for"))?;
    net::listen(&listener, SLOTS as i32).map_err(fail("listen where others ask for it"))?;
    fds.extend([table, listener]);
    Ok(fds)
}

impl SharedPort {
    /// Takes a slot of the port. Creates the port if no process of this user has it in this network namespace.
    ///
    /// # Errors
    /// Returns an error if another user holds the port, if it has no free slot, or if the processes that share it do
    /// not reply.
    pub(super) fn join() -> Result<Self> {
        let stem = stem()?;
        let (path, lock_file) = (stem.with_extension("sock"), stem.with_extension("lock"));
        let _creation_lock = lock_creation(&lock_file)?;
        let refuse = |_| Error::invalid(OP, format!("{} is too long for a socket", path.display()));
        let address = SocketAddrUnix::new(&path).map_err(refuse)?;
        let mut fds = match request_sockets(&address)? {
            Some(fds) => fds,
            None => create(&path, &address)?,
        };
        let last_two = fds.split_off(SLOTS);
        let [table, listener]: [OwnedFd; 2] = last_two.try_into().expect("as many as were counted");
        let (table, listener) = (DontForkFd::new(table), DontForkFd::new(listener));
        let free = (0..SLOTS).find(|slot| lock(table.as_fd(), libc::F_WRLCK, SLOT_LOCKS_AT + slot).is_ok());
        let Some(own) = free else {
            return Err(Error::Exhausted {
                operation: OP,
                what: "processes that share it",
                limit: SLOTS as u64,
                remedy: "stop some of them, or use other network namespaces",
            });
        };
        let sockets = fds.into_iter().map(DontForkFd::new).collect();
        let port = Self { sockets, listener, table, own, table_mutex: Mutex::default() };
        let is_alone = (0..SLOTS).all(|slot| slot == own || !port.has_owner(slot));
        if is_alone {
            port.allow_gro(true);
        }
        port.change(|table| table.forget(|slot| slot == own))?;
        // Packets of the slot's previous owner.
        drain(port.socket());
        Ok(port)
    }

    /// Returns the socket of this process.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.sockets[self.own].as_fd()
    }

    /// Returns the socket at which other processes request the port.
    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Steers packets for a block of queue pair numbers to the socket of this process.
    ///
    /// # Errors
    /// Returns an error if there are too many blocks, or if another process does not release the table's lock.
    pub(super) fn steer(&self, block: u32) -> Result<()> {
        self.change(|table| {
            table.0[block as usize % BLOCKS] = self.own as u8 + 1;
        })
    }

    /// Steers packets for a block to the socket of this process, unless another existing process has the block and
    /// `may_claim` returns `false`. `take` is called under the table's lock if the block was taken. Returns whether it
    /// was.
    ///
    /// # Errors
    /// See [`SharedPort::steer`].
    pub(super) fn claim(
        &self,
        block: u32,
        is_tried: bool,
        may_claim: impl FnOnce() -> bool,
        take: impl FnOnce(),
    ) -> Result<bool> {
        let at = block as usize % BLOCKS;
        if !is_tried && self.is_of_other_process(block) {
            return Ok(false);
        }
        let mut is_taken = false;
        self.change(|table| {
            let is_of_other_process = table.0[at] != 0 && table.0[at] != self.own as u8 + 1;
            is_taken = !is_of_other_process || may_claim();
            if is_taken {
                table.0[at] = self.own as u8 + 1;
                take();
            }
        })?;
        Ok(is_taken)
    }

    /// Returns the slot of the existing process that has a block; `None` if there is none.
    fn owner(&self, block: u32) -> rustix::io::Result<Option<usize>> {
        let mut entry = [0_u8; 1];
        let read = io::pread(&self.table, &mut entry, u64::from(block) % BLOCKS as u64)?;
        let owner = usize::from(entry[0]).checked_sub(1).filter(|owner| read == 1 && *owner < SLOTS);
        Ok(owner.filter(|owner| *owner == self.own || self.has_owner(*owner)))
    }

    /// Returns whether another process has a block.
    pub(super) fn is_of_other_process(&self, block: u32) -> bool {
        self.owner(block).is_ok_and(|owner| owner.is_some_and(|owner| owner != self.own))
    }

    /// Reads a shared word; 0 if it cannot be read.
    pub(super) fn word(&self, word: SharedWord) -> u64 {
        let mut bytes = [0; 8];
        match io::pread(&self.table, &mut bytes, word.at()) {
            Ok(8) => u64::from_ne_bytes(bytes),
            _ => 0,
        }
    }

    /// Writes a shared word.
    pub(super) fn set_word(&self, word: SharedWord, number: u64) {
        // The file is memory that all processes hold, so the write cannot fail.
        let _written = io::pwrite(&self.table, &number.to_ne_bytes(), word.at());
    }

    /// Turns GRO on or off for all sockets of the port.
    pub(super) fn allow_gro(&self, is_allowed: bool) {
        self.sockets.iter().for_each(|socket| allow_gro(socket.as_fd(), is_allowed));
    }

    /// Returns the slot of this process.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// Changes the table, from which the blocks of exited processes are removed, and steers packets by it.
    fn change(&self, work: impl FnOnce(&mut Table)) -> Result<()> {
        let fd = self.table.as_fd();
        // The file lock below belongs to the process and does not exclude its other threads.
        let _here = self.table_mutex.lock();
        retry_until_timeout("change its table", || lock(fd, libc::F_WRLCK, TABLE_LOCK_AT))?;
        let _table_lock = TableLock(&self.table);
        let mut table = Table([0; BLOCKS]);
        let len_bytes = io::pread(fd, &mut table.0, 0).map_err(fail("read its table"))?;
        // Checked, because another process of the user wrote it.
        if len_bytes != BLOCKS || table.0.iter().any(|entry| usize::from(*entry) > SLOTS) {
            return Err(fail("read its table")(Errno::PROTO));
        }
        table.forget(|slot| slot != self.own && !self.has_owner(slot));
        work(&mut table);
        table.attach(self.socket(), self.own)?;
        match io::pwrite(fd, &table.0, 0) {
            Ok(BLOCKS) => Ok(()),
            Ok(_) => Err(fail("write its table")(Errno::IO)),
            Err(errno) => Err(fail("write its table")(errno)),
        }
    }

    /// Returns whether another process owns a slot.
    fn has_owner(&self, slot: usize) -> bool {
        let lock_kind = lock_call(self.table.as_fd(), libc::F_GETLK, libc::F_WRLCK, SLOT_LOCKS_AT + slot);
        lock_kind != Ok(libc::F_UNLCK)
    }
}

impl FdHandler for SharedPort {
    /// Handles a process that requests the port. Never blocks.
    fn on_readable(&self) {
        let client = match net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(client) => client,
            // Another process of the port has accepted the connection, or the requester has exited.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(errno) => {
                tracing::warn!("RoCEv2 port: no other process can join: {errno} (check RLIMIT_NOFILE)");
                // Other processes of the port may be able to accept it. Pauses, because the listener stays readable.
                std::thread::sleep(RETRY_INTERVAL);
                return;
            }
        };
        if authorize_peer(client.as_fd(), "process that asks for the RoCEv2 port")
            .is_ok_and(|trust_level| trust_level == TrustLevel::SameUser)
        {
            let mut fds: Vec<_> = self.sockets.iter().map(AsFd::as_fd).collect();
            fds.extend([self.table.as_fd(), self.listener.as_fd()]);
            // If the message cannot be sent, the requester has exited.
            let _ = send_frame(client.as_fd(), VERSION, &fds);
        }
    }
}
