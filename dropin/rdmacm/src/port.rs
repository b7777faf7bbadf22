//! Ports: their owners, and the sockets of listeners. Both are in the user's rendezvous directory, where other users
//! cannot create them first.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_softnic::{admit_group, rendezvous_directory};
use farcall_verbs::with_sources;
use farcall_wire::cm::{PortSpace, socket_name};
use rustix::io::Errno as OsError;
use rustix::net::{self, SocketAddrUnix};

use crate::connection_journal::{ConnectionJournal, JournaledConnection, RecordIndex};
use crate::errno::{Errno, invalid, refused, system};
use crate::local_socket::socket;
use crate::port_locks::PortLocks;
use crate::{address, shared};

/// First ephemeral port, by IANA's assignment.
const EPHEMERAL_FIRST: u16 = 49_152;
/// Number of ephemeral ports.
const EPHEMERAL_COUNT: u16 = 16_384;
/// Backlog of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The locks of a process: a forked child has none of its parent's.
struct Locks {
    pid: u32,
    directory: PathBuf,
    of: PortLocks,
}

static LOCKS: Mutex<Option<Locks>> = Mutex::new(None);

fn locks() -> MutexGuard<'static, Option<Locks>> {
    LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `run` with the locks of this process, which are created on first use.
fn with_locks<T>(run: impl FnOnce(&mut Locks) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut known = locks();
    let pid = std::process::id();
    if known.as_ref().is_none_or(|locks| locks.pid != pid) {
        let directory = directory()?;
        let path = directory.join(format!("cm-v1-{}.lock", rustix::process::geteuid().as_raw()));
        let of =
            PortLocks::open(&path).map_err(system(&format!("no locks for ports in {}", path.display())))?;
        *known = Some(Locks { pid, directory, of });
    }
    run(known.as_mut().ok_or_else(|| invalid("no locks for ports"))?)
}

fn directory() -> Result<PathBuf, Errno> {
    rendezvous_directory().map_err(|error| {
        crate::complain(format_args!("{}", with_sources(&error)));
        refused(libc::EACCES, format_args!("{}", with_sources(&error)))
    })
}

/// Returns the inode of the network namespace.
fn network() -> u64 {
    fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// A port that this process owns until this is dropped.
pub struct Port {
    /// Name of its address; and of the unspecified address of the family, if that is another one.
    name: String,
    shared: Option<String>,
    path: PathBuf,
    is_listened_at: bool,
}

impl Drop for Port {
    fn drop(&mut self) {
        if self.is_listened_at {
            let _ = fs::remove_file(&self.path);
        }
        if let Some(locks) = locks().as_mut() {
            for name in [Some(&self.name), self.shared.as_ref()].into_iter().flatten() {
                locks.of.release(name);
            }
        }
    }
}

/// Reserves a port. Port 0 means any free port; the reserved address is returned.
///
/// # Errors
/// Returns `EADDRINUSE` if the port is in use.
pub fn reserve(space: PortSpace, address: &SocketAddr) -> Result<(Port, SocketAddr), Errno> {
    with_locks(|locks| {
        let network = network();
        let mut take = |address: &SocketAddr| {
            locks.take(network, space, address).map_err(system(&format!("{address} cannot be locked")))
        };
        if address.port() != 0 {
            let port = take(address)?.ok_or_else(|| {
                refused(
                    libc::EADDRINUSE,
                    format_args!("{address} is another end's, of this process or another"),
                )
            })?;
            return Ok((port, *address));
        }
        let start = RandomState::new().build_hasher().finish() as u16;
        for at in 0..EPHEMERAL_COUNT {
            let mut candidate = *address;
            candidate.set_port(EPHEMERAL_FIRST + start.wrapping_add(at) % EPHEMERAL_COUNT);
            if let Some(port) = take(&candidate)? {
                return Ok((port, candidate));
            }
        }
        Err(refused(libc::EADDRNOTAVAIL, format_args!("no port is free at {address}")))
    })
}

impl Locks {
    fn take(&mut self, network: u64, space: PortSpace, address: &SocketAddr) -> io::Result<Option<Port>> {
        let name = socket_name::name(network, space, address);
        let path = self.directory.join(&name);
        // Another user's file, in a directory that users share.
        if is_anothers(&path) || !self.of.take(&name)? {
            return Ok(None);
        }
        let wildcard = socket_name::name(network, space, &socket_name::wildcard(address));
        let shared = (wildcard != name).then_some(wildcard);
        match shared.as_ref().map_or(Ok(true), |shared| self.of.share(shared)) {
            Ok(true) => Ok(Some(Port { name, shared, path, is_listened_at: false })),
            other => {
                self.of.release(&name);
                other.map(|_| None)
            }
        }
    }

    /// Removes the sockets of exited processes: those whose names are not locked.
    fn sweep(&mut self) {
        let prefix = socket_name::network_prefix(network());
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.starts_with(&prefix)) else { continue };
            if !is_anothers(&entry.path()) && self.of.take(name).unwrap_or(false) {
                let _ = fs::remove_file(entry.path());
                self.of.release(name);
            }
        }
    }
}

/// Returns whether the file at a path belongs to another user.
fn is_anothers(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.uid() != rustix::process::geteuid().as_raw())
}

impl Port {
    /// Listens at the port.
    ///
    /// # Errors
    /// Returns the kernel's error; `EINVAL` if the path is too long for a socket.
    pub fn listen(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        let path = &self.path;
        let name = SocketAddrUnix::new(path)
            .map_err(|_| invalid(format_args!("{} is too long for a socket (107 bytes)", path.display())))?;
        with_locks(|locks| {
            locks.sweep();
            // The port is reserved, so a file at this path is stale.
            let _ = fs::remove_file(path);
            Ok(())
        })?;
        net::bind(socket, &name).map_err(system(&format!("no socket at {}", path.display())))?;
        self.is_listened_at = true;
        admit_group(path).map_err(|error| refused(libc::EACCES, format_args!("{}", with_sources(&error))))?;
        net::listen(socket, BACKLOG).map_err(system("listen"))
    }
}

/// Returns the path of the socket where other processes of this user forward messages to the process with number
/// `slot` among those that share the RoCEv2 port. It is not named like a port, because such files are removed when
/// their lock is free.
fn process_path(slot: u32) -> Result<PathBuf, Errno> {
    Ok(directory()?.join(format!("mad-v1-net{}-process-{slot}.sock", network())))
}

/// Listens for forwarded messages. This process owns the slot, so a file at this path is stale.
///
/// # Errors
/// Returns the kernel's error.
pub fn listen_as(slot: u32) -> Result<OwnedFd, Errno> {
    let (socket, path) = (socket()?, process_path(slot)?);
    let _ = fs::remove_file(&path);
    let name = SocketAddrUnix::new(&path).map_err(OsError::raw_os_error)?;
    net::bind(&socket, &name).map_err(system(&format!("no socket at {}", path.display())))?;
    net::listen(&socket, BACKLOG).map_err(system("listen"))?;
    Ok(socket)
}

/// Opens the journal of the connections with other hosts of this user's processes. Also returns the records of the
/// previous process with this slot.
///
/// # Errors
/// Returns the kernel's error.
pub fn open_journal(
    slot: u32,
) -> Result<(ConnectionJournal, Vec<(RecordIndex, JournaledConnection)>), Errno> {
    let user = rustix::process::geteuid().as_raw();
    let path = directory()?.join(format!("mad-v1-net{}-{user}.connections", network()));
    ConnectionJournal::open(&path, slot)
        .map_err(system(&format!("no connections are noted in {}", path.display())))
}

/// Connects to another process.
///
/// # Errors
/// Returns the kernel's error.
pub fn reach_process(slot: u32) -> Result<OwnedFd, Errno> {
    let (socket, path) = (socket()?, process_path(slot)?);
    let name = SocketAddrUnix::new(&path).map_err(OsError::raw_os_error)?;
    net::connect(&socket, &name).map_err(OsError::raw_os_error)?;
    Ok(socket)
}

/// Result of an attempt to reach a listener.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    Yes,
    /// No listener.
    NoListener,
    /// A listener is there, and its backlog is full.
    Busy,
}

/// Connects a socket to the listener at an address.
///
/// # Errors
/// Returns the kernel's error.
pub fn reach(socket: &OwnedFd, space: PortSpace, to: &SocketAddr) -> Result<Reached, Errno> {
    let here = || -> Result<Vec<_>, Errno> {
        let directory = directory()?;
        let names = socket_name::listeners_at(network(), space, to).into_iter();
        Ok(names
            .map(|name| SocketAddrUnix::new(directory.join(name)).map_err(OsError::raw_os_error))
            .collect())
    };
    let names: Vec<Result<SocketAddrUnix, Errno>> =
        if address::is_local(to) { here()? } else { shared::name(space, to).into_iter().collect() };
    for name in names {
        match net::connect(socket, &name?) {
            Ok(()) => return Ok(Reached::Yes),
            Err(OsError::CONNREFUSED | OsError::NOENT) => {}
            Err(OsError::AGAIN) => return Ok(Reached::Busy),
            Err(error) => return Err(error.raw_os_error()),
        }
    }
    Ok(Reached::NoListener)
}
