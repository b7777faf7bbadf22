//! A folder that containers with networks of their own share (`FARCALL_SOCKET_DIR`): a listener is found there under
//! the addresses that others reach it by. Abstract names end at the network namespace; a file does not.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{fs, io, process, ptr};

use farcall_softnic::{admit_group, is_network_forced, socket_directory};
use farcall_wire::cm::{PortSpace, place};
use rustix::net::{self, SocketAddrUnix};

use crate::errno::Errno;
use crate::{address, port};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// A listener as others find it in the folder. Dropped, it is there no more.
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

/// The folder; `None` if none is named, or everything is to go by the network, which leads out of the host.
fn folder() -> Option<PathBuf> {
    socket_directory().filter(|_| !is_network_forced())
}

/// Whether an address that is none of this network namespace may be another container's.
pub fn leads_to(to: &SocketAddr) -> bool {
    folder().is_some() && !to.ip().is_loopback()
}

/// The name of a listener at an address of another network.
///
/// # Errors
/// `ENAMETOOLONG`. `None`: no folder is shared.
pub fn name(space: PortSpace, to: &SocketAddr) -> Option<Result<SocketAddrUnix, Errno>> {
    let path = folder()?.join(place::file_name(space, to));
    Some(SocketAddrUnix::new(&path).map_err(|error| error.raw_os_error()))
}

/// Makes a listener known in the folder; `None` if there is no folder, or no other network can reach it.
pub fn publish(space: PortSpace, bound: &SocketAddr, is_v6_only: bool) -> Option<Published> {
    let folder = folder()?;
    let addresses = addresses_of(bound, is_v6_only);
    if addresses.is_empty() {
        return None;
    }
    let published = publish_in(&folder, space, &addresses);
    if let Err(error) = &published {
        crate::complain(format_args!(
            "other containers cannot find {bound} in {}: {error}",
            folder.display()
        ));
    }
    published.ok()
}

fn publish_in(folder: &Path, space: PortSpace, addresses: &[SocketAddr]) -> io::Result<Published> {
    // A socket has one name; the others, under which it is looked for, are links to that.
    let unique = RandomState::new().build_hasher().finish() as u32;
    let first = folder.join(format!("cm-v1-{}-{unique:08x}.sock", process::id()));
    let socket = port::socket().map_err(io::Error::from_raw_os_error)?;
    net::bind(&socket, &SocketAddrUnix::new(&first)?)?;
    let mut published = Published { socket, paths: vec![first.clone()] };
    admit_group(&first).map_err(io::Error::other)?;
    net::listen(&published.socket, BACKLOG)?;
    for address in addresses {
        let path = folder.join(place::file_name(space, address));
        claim(&first, &path)?;
        published.paths.push(path);
    }
    fs::remove_file(&first)?;
    published.paths.remove(0);
    Ok(published)
}

/// Links a name to our socket, and replaces what a dead process left.
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

/// Whether a process listens at a name. It sees a connection that is closed at once.
fn has_owner(name: &Path) -> io::Result<bool> {
    let visitor = port::socket().map_err(io::Error::from_raw_os_error)?;
    Ok(!matches!(
        net::connect(&visitor, &SocketAddrUnix::new(name)?),
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT)
    ))
}

/// Under which addresses others reach a listener: its own, or all of this network namespace.
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

/// The addresses of this network namespace's interfaces.
fn own_addresses() -> Vec<IpAddr> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: fills the variable with a list, or says that it cannot.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut ips = Vec::new();
    // SAFETY: the list that was just made, of which nothing has been freed.
    let mut next = unsafe { first.as_ref() };
    while let Some(of) = next {
        // SAFETY: as above; an address is as long as its family says, or null.
        unsafe {
            // Others than IP are none to listen at.
            ips.extend(address::ip(of.ifa_addr).map(|address| address.ip()));
            next = of.ifa_next.as_ref();
        }
    }
    // SAFETY: made above; nothing of it is in use.
    unsafe { libc::freeifaddrs(first) };
    ips
}
