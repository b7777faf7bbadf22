//! Sockets with the names that stand for an address and a port.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use farcall_wire::cm::{PortSpace, place};
use rustix::io::Errno as OsError;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::errno::{Errno, refused, system};
use crate::{address, shared};

/// Ports that are given out, as IANA reserves them.
const EPHEMERAL_FIRST: u16 = 49_152;
/// How many.
const EPHEMERAL_COUNT: u16 = 16_384;
/// Where the kernel lists Unix sockets.
const LIST: &str = "/proc/net/unix";

fn unix(name: &str) -> Result<SocketAddrUnix, OsError> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// A socket without a name.
///
/// # Errors
/// What the kernel says.
pub fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("no socket for an end"))
}

/// Makes a port ours as long as the socket lives. Port 0 stands for any that is free; what it became is returned.
///
/// # Errors
/// `EADDRINUSE` when it is another's.
pub fn reserve(space: PortSpace, address: &SocketAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let socket = socket()?;
    let bind = |address: &SocketAddr| net::bind(&socket, &unix(&place::name(space, address))?);
    if address.port() != 0 {
        // Without the list a conflict between one address and all of them goes unseen.
        let sockets = std::fs::read_to_string(LIST).unwrap_or_default();
        if place::is_covered(&sockets, space, address) {
            return Err(refused(libc::EADDRINUSE, format_args!("{address} is another end's")));
        }
        bind(address).map_err(system(&format!("{address} cannot be had")))?;
        return Ok((socket, *address));
    }
    let start = RandomState::new().build_hasher().finish() as u16;
    for at in 0..EPHEMERAL_COUNT {
        let mut candidate = *address;
        candidate.set_port(EPHEMERAL_FIRST + start.wrapping_add(at) % EPHEMERAL_COUNT);
        match bind(&candidate) {
            Ok(()) => return Ok((socket, candidate)),
            Err(OsError::ADDRINUSE) => {}
            Err(error) => return Err(system(&format!("{candidate} cannot be had"))(error)),
        }
    }
    Err(refused(libc::EADDRNOTAVAIL, format_args!("no port is free at {address}")))
}

/// What became of an attempt to reach a listener.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    Yes,
    /// Nobody listens.
    Nobody,
    /// A listener is there, and its backlog is full.
    Busy,
}

/// Connects a socket with the listener at an address.
///
/// # Errors
/// What the kernel says.
pub fn reach(socket: &OwnedFd, space: PortSpace, to: &SocketAddr) -> Result<Reached, Errno> {
    let here = || {
        let names = place::listeners_at(space, to).into_iter();
        names.map(|name| unix(&name).map_err(|error| error.raw_os_error())).collect()
    };
    let names: Vec<Result<SocketAddrUnix, Errno>> =
        if address::is_local(to) { here() } else { shared::name(space, to).into_iter().collect() };
    for name in names {
        match net::connect(socket, &name?) {
            Ok(()) => return Ok(Reached::Yes),
            Err(OsError::CONNREFUSED | OsError::NOENT) => {}
            Err(OsError::AGAIN) => return Ok(Reached::Busy),
            Err(error) => return Err(error.raw_os_error()),
        }
    }
    Ok(Reached::Nobody)
}
