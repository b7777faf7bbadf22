//! A directory that containers with separate network namespaces share (`FARCALL_SOCKET_DIR`). Listeners are found
//! there under the addresses by which other containers reach them. Abstract socket names are limited to a network
//! namespace; files are not.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{fs, io, process, ptr};

use farcall_softnic::{admit_group, is_network_forced, socket_directory};
use farcall_wire::cm::{PortSpace, socket_name};
use rustix::net::{self, SocketAddrUnix};

use crate::errno::Errno;
use crate::{address, local_socket};

/// Backlog of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// A listener that is published in the directory until this is dropped.
pub struct Published {
    pub socket: OwnedFd,
    paths: Vec<PathBuf>,
}

impl Drop for Published {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the directory; `None` if none is configured, or all traffic must use the network, which leads to other
/// hosts.
fn directory() -> Option<PathBuf> {
    socket_directory().filter(|_| !is_network_forced())
}

/// Returns whether an address outside of this network namespace may belong to another container.
pub fn is_shared_address(to: &SocketAddr) -> bool {
    directory().is_some() && !to.ip().is_loopback()
}

/// Returns the socket name of a listener at an address of another network namespace.
///
/// # Errors
/// Returns `ENAMETOOLONG`. `None` if no directory is shared.
pub fn name(space: PortSpace, to: &SocketAddr) -> Option<Result<SocketAddrUnix, Errno>> {
    let path = directory()?.join(socket_name::file_name(space, to));
    Some(SocketAddrUnix::new(&path).map_err(|error| error.raw_os_error()))
}

/// Publishes a listener in the directory. `None` if there is no directory, or no other network namespace can reach the
/// listener.
pub fn publish(space: PortSpace, bound: &SocketAddr, is_v6_only: bool) -> Option<Published> {
    let directory = directory()?;
    let addresses = addresses_of(bound, is_v6_only);
    if addresses.is_empty() {
        return None;
    }
    let published = publish_in(&directory, space, &addresses);
    if let Err(error) = &published {
        crate::complain(format_args!(
            "other containers cannot find {bound} in {}: {error}",
            directory.display()
        ));
    }
    published.ok()
}

fn publish_in(directory: &Path, space: PortSpace, addresses: &[SocketAddr]) -> io::Result<Published> {
    // A socket has only one name; the names by which it is found are links to it.
    let unique = RandomState::new().build_hasher().finish() as u32;
    let first = directory.join(format!("cm-v1-{}-{unique:08x}.sock", process::id()));
    let socket = local_socket::socket().map_err(io::Error::from_raw_os_error)?;
    net::bind(&socket, &SocketAddrUnix::new(&first)?)?;
    let mut published = Published { socket, paths: vec![first.clone()] };
    admit_group(&first).map_err(io::Error::other)?;
    net::listen(&published.socket, BACKLOG)?;
    for address in addresses {
        let path = directory.join(socket_name::file_name(space, address));
        claim(&first, &path)?;
        published.paths.push(path);
    }
    fs::remove_file(&first)?;
    published.paths.remove(0);
    Ok(published)
}

/// Links a name to this process's socket, and replaces a link of an exited process.
fn claim(socket: &Path, name: &Path) -> io::Result<()> {
    for _ in 0..3 {
        match fs::hard_link(socket, name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            linked => return linked,
        }
        if has_owner(name)? {
            let what = format!("{} is another container's, which has the same address", name.display());
            return Err(io::Error::new(ErrorKind::AddrInUse, what));
        }
        match fs::remove_file(name) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Returns whether a process listens at a name. That process sees a connection that is closed at once.
fn has_owner(name: &Path) -> io::Result<bool> {
    let visitor = local_socket::socket().map_err(io::Error::from_raw_os_error)?;
    Ok(!matches!(
        net::connect(&visitor, &SocketAddrUnix::new(name)?),
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT)
    ))
}

/// Returns the addresses by which others reach a listener: its own, or all of this network namespace.
fn addresses_of(bound: &SocketAddr, is_v6_only: bool) -> Vec<SocketAddr> {
    let is_outer = |ip: &IpAddr| match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let is_heard = |ip: &IpAddr| bound.is_ipv6() && !is_v6_only || ip.is_ipv4() == bound.is_ipv4();
    let mut ips = if bound.ip().is_unspecified() { own_addresses() } else { vec![bound.ip()] };
    ips.retain(|ip| is_outer(ip) && is_heard(ip));
    ips.sort_unstable();
    ips.dedup();
    ips.into_iter().map(|ip| SocketAddr::new(ip, bound.port())).collect()
}

/// Returns the addresses of this network namespace's interfaces.
fn own_addresses() -> Vec<IpAddr> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `getifaddrs` initializes `first` with a list, or returns an error.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut ips = Vec::new();
    // SAFETY: `getifaddrs` returned the list, which is freed after the loop.
    let mut next = unsafe { first.as_ref() };
    while let Some(of) = next {
        // SAFETY: elements are valid until `freeifaddrs` below. An address is null, or has the length of its family,
        // as `address::ip` requires.
        unsafe {
            // Only IP addresses can be listened at.
            ips.extend(address::ip(of.ifa_addr).map(|address| address.ip()));
            next = of.ifa_next.as_ref();
        }
    }
    // SAFETY: `getifaddrs` returned the list, and it is not used any more.
    unsafe { libc::freeifaddrs(first) };
    ips
}
