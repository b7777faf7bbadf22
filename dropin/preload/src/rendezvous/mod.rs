//! Pairing of the two ends of a connection, outside of the connection.
//!
//! Pairing costs far more than a round trip by TCP. So both ends count transfers, and a connection that ends before it
//! has lasted costs no system call more than TCP. Then:
//!
//! 1. The end that connected makes a Unix socket in the user's own directory, named by network namespace and addresses.
//! 2. The end that accepted, which counts a little further, finds it; otherwise it tries again after twice as many
//!    transfers. It makes memory and doorbells, and sends them there without waiting.
//! 3. The connecting end receives them when it uses the connection next.
//!
//! Until then, and if the other end never appears, all bytes use TCP. Each end checks the user of the other one. The
//! accepting end queries the kernel which socket (its inode) is at the other end of the TCP connection, and the
//! connecting end continues only if that is its own: what an earlier connection of the same addresses left behind is
//! refused.

mod handoff;
mod offer;
mod proof;
pub mod socket;

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use farcall_stats::PathReason;

use self::proof::SocketInode;
use crate::sock::{Sock, Stage};
use crate::{config, confined, descriptors, options, protocols, sock};

/// Converts an IPv4-mapped IPv6 address to the IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns both addresses of a TCP connection within this host; `None` for all other sockets. While a connection is
/// being made the kernel does not report the peer's address; `requested` is then used instead.
fn addresses_within_host(fd: c_int, requested: Option<SocketAddr>) -> Option<(SocketAddr, SocketAddr)> {
    if descriptors::has_stream(fd) || confined::is_confined() || !protocols::is_tcp(fd) {
        return None;
    }
    // SAFETY: the program's descriptor, for two queries; the kernel returns an error for a wrong one.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let local = canonical(SocketAddr::try_from(rustix::net::getsockname(fd).ok()?).ok()?);
    let peer = rustix::net::getpeername(fd).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    let peer = canonical(peer.or(requested)?);
    let is_within = local.ip() == peer.ip() || (local.ip().is_loopback() && peer.ip().is_loopback());
    (is_within && local != peer).then_some((local, peer))
}

/// Returns whether connections of the socket `fd`, or those that it accepts, may move.
pub fn is_candidate(fd: c_int) -> bool {
    config::is_on() && !confined::is_confined() && protocols::is_known_as_tcp(fd)
}

/// Called after `connect` with an IP address, for a [candidate](is_candidate).
pub fn connected(fd: c_int, requested: SocketAddr) {
    let sock = sock::new(Stage::Connected, config::transfers_before_pairing() / 4 * 3);
    if config::reports()
        && let Some((local, peer)) = addresses_within_host(fd, Some(requested))
        && config::admits(peer)
    {
        sock.describe(local, peer);
    }
    sock::put(fd, &sock);
}

/// Called after `accept` returned `fd`, for a listener that is a [candidate](is_candidate).
pub fn accepted(fd: c_int) {
    let sock = sock::new(Stage::Accepted, config::transfers_before_pairing());
    if config::reports()
        && let Some((local, peer)) = addresses_within_host(fd, None)
        && config::admits(local)
    {
        sock.describe(local, peer);
    }
    sock::put(fd, &sock);
}

/// Performs the next step of the pairing, because the connection has had the required number of transfers.
#[cold]
pub fn advance(fd: c_int, sock: &Sock) {
    sock.while_pairing(|| {
        let stage = sock.stage();
        let result = match stage {
            Stage::Connected => offer::publish(fd, sock),
            Stage::Published => offer::check::<SocketInode>(fd, sock),
            Stage::Accepted => offer::find_connector::<SocketInode>(fd, sock),
            _ => Ok(()),
        };
        if let Err(why) = result {
            sock.stay_on_tcp(why);
        }
    });
}

/// Records which connection it is, unless it is known; `Err` if it must stay on TCP.
fn describe(
    fd: c_int,
    sock: &Sock,
    service: impl FnOnce(SocketAddr, SocketAddr) -> SocketAddr,
) -> Result<(), PathReason> {
    if sock.addresses().is_none() {
        // An end whose connection has no peer of this host is not listed.
        let (local, peer) = addresses_within_host(fd, None).ok_or(PathReason::NotPaired)?;
        if !config::admits(service(local, peer)) {
            return Err(PathReason::NotPaired);
        }
        sock.describe(local, peer);
    }
    sock.set_reports_inq(options::reports_inq(fd));
    if options::needs_kernel(fd) { Err(PathReason::KernelFeature) } else { Ok(()) }
}
