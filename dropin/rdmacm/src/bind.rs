//! Local and remote addresses of endpoints.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use farcall_layout::rdmacm::{CmId, PathRecord};
use libc::sockaddr;

use crate::abroad::{Far, mapped};
use crate::channel::complete;
use crate::connection_manager::Notice;
use crate::errno::{Errno, answer, invalid, refused};
use crate::id::{self, IdObject, Own, Stage};
use crate::listener::Listening;
use crate::service::connection_manager;
use crate::symbols::export;
use crate::{address, device, port, shared};

/// Default and maximum backlog: that of the kernel's connection manager.
const BACKLOG_MAX: usize = 1024;

/// 1024 bytes: supported by every Ethernet link, and offered there by the kernel's software RNIC.
pub const FAR_MTU: u8 = 3;

/// Assigns a local address and its port to an endpoint.
fn bind(of: &IdObject, own: &mut Own, wanted: SocketAddr) -> Result<(), Errno> {
    own.require(Stage::New)?;
    if !address::is_local(&wanted) {
        let why = format_args!("{wanted} is no address of this host");
        return Err(refused(libc::EADDRNOTAVAIL, why));
    }
    let (port, bound) = match port::reserve(of.space, &wanted) {
        // The port belongs to another endpoint that shares it; only that endpoint can listen at it.
        Err(libc::EADDRINUSE) if own.is_shared => (None, wanted),
        reserved => reserved.map(|(port, bound)| (Some(port), bound))?,
    };
    let socket = port::socket()?;
    if !bound.ip().is_unspecified() {
        of.attach()?;
    }
    let mut manager = connection_manager()?;
    let end = manager.end(of.token)?;
    (end.socket, end.port) = (Some(socket), port);
    drop(manager);
    of.show_local(own, bound);
    own.stage = Stage::Bound;
    Ok(())
}

/// Resolves the route of an endpoint to an address. Returns the error to report if there is none.
fn find_way(of: &IdObject, own: &mut Own, to: SocketAddr) -> Result<(), Errno> {
    let to = address::destination(to);
    let is_far = !address::is_local(&to) && !shared::leads_to(&to);
    if is_far {
        go_abroad(of, &to)?;
    }
    let local = own.local.ok_or_else(|| invalid("the identifier has no address"))?;
    if local.ip().is_unspecified() {
        of.show_local(own, SocketAddr::new(address::source_towards(&to)?, local.port()));
    }
    of.attach()?;
    of.show_remote(own, to);
    let gid = if is_far { mapped(&to.ip()).octets() } else { device::device()?.gid };
    // SAFETY: `of.c()` points into `of`, which is live. The program reads this field only after the call or the event
    // that reports the resolved address.
    unsafe { (*of.c()).route.addr.ib.dgid = gid };
    own.is_far = is_far;
    own.stage = Stage::AddressResolved;
    Ok(())
}

/// Prepares an endpoint for a peer on another host.
fn go_abroad(of: &IdObject, to: &SocketAddr) -> Result<(), Errno> {
    let mut manager = connection_manager()?;
    if let Err(number) = manager.go_abroad() {
        let why = format!(
            "{to} is no address of this host and network namespace, and there is no way to other hosts: error {number} \
             (containers with networks of their own: share a directory through FARCALL_SOCKET_DIR)"
        );
        crate::complain(format_args!("{why}"));
        return Err(refused(libc::ENODEV, format_args!("{why}")));
    }
    manager.end(of.token)?.far = Some(Far::new(mapped(&to.ip())));
    Ok(())
}

fn resolve(of: &IdObject, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), Errno> {
    let mut own = of.own();
    if own.stage == Stage::New {
        let from = from.unwrap_or_else(|| address::any_like(&to));
        bind(of, &mut own, from)?;
    }
    own.require(Stage::Bound)?;
    if let Some(local) = own.local.filter(|local| local.is_ipv4() != to.is_ipv4()) {
        return Err(refused(libc::EINVAL, format_args!("{local} and {to} are not of one family")));
    }
    of.show_remote(&mut own, to);
    let notice = match find_way(of, &mut own, to) {
        Ok(()) => Notice::AddressResolved,
        Err(number) => Notice::AddressError(number),
    };
    connection_manager()?.tell(of.token, notice);
    Ok(())
}

fn resolve_route(of: &IdObject) -> Result<(), Errno> {
    let mut own = of.own();
    own.require(Stage::AddressResolved)?;
    let path = Box::into_raw(Box::new(path_of(of, &own)?));
    // SAFETY: `of.c()` points into `of`, which is live. Only this library writes these fields; `id::destroy` frees the
    // record.
    unsafe {
        (*of.c()).route.path_rec = path;
        (*of.c()).route.num_paths = 1;
    }
    own.stage = Stage::RouteResolved;
    drop(own);
    connection_manager()?.tell(of.token, Notice::RouteResolved);
    Ok(())
}

/// Returns the path from the device to itself, or to another host's device.
fn path_of(of: &IdObject, own: &Own) -> Result<PathRecord, Errno> {
    let nic = device::device()?;
    // Selector 2 means "exactly".
    Ok(PathRecord {
        dgid: of.resolved_gid(),
        sgid: nic.gid,
        dlid_be: 0,
        slid_be: 0,
        raw_traffic: 0,
        flow_label_be: 0,
        hop_limit: 1,
        traffic_class: own.tos,
        reversible: 1,
        numb_path: 1,
        pkey_be: 0xffff,
        sl: 0,
        mtu_selector: 2,
        mtu: if own.is_far { nic.mtu.min(FAR_MTU) } else { nic.mtu },
        rate_selector: 2,
        rate: 0,
        packet_life_time_selector: 2,
        packet_life_time: own.ack_timeout.saturating_sub(1),
        preference: 0,
    })
}

fn listen(of: &IdObject, backlog: c_int) -> Result<(), Errno> {
    let mut own = of.own();
    if own.stage == Stage::New {
        bind(of, &mut own, SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0))?;
    }
    own.require(Stage::Bound)?;
    // Requests are only accepted if there is a device.
    device::device()?;
    let backlog = usize::try_from(backlog).ok().filter(|count| (1..BACKLOG_MAX).contains(count));
    let listening = Listening::new(backlog.unwrap_or(BACKLOG_MAX), own.is_v6_only, of.is_datagram());
    let mut manager = connection_manager()?;
    let end = manager.end(of.token)?;
    let socket = end.socket.as_ref().ok_or_else(|| invalid("the identifier has no socket"))?;
    let anothers = || refused(libc::EADDRINUSE, format_args!("another end has the port"));
    end.port.as_mut().ok_or_else(anothers)?.listen(socket)?;
    end.listening = Some(listening);
    manager.watch_end(of.token)?;
    if let Some(bound) = own.local
        && let Some(published) = shared::publish(of.space, &bound, own.is_v6_only)
    {
        manager.watch(published.socket.as_fd(), of.token)?;
        manager.end(of.token)?.published = Some(published);
    }
    if own.local.is_some_and(|bound| !bound.ip().is_loopback())
        && let Err(number) = manager.go_abroad()
    {
        tracing::info!("nobody comes from other hosts: error {number}");
    }
    own.stage = Stage::Listening;
    Ok(())
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_bind_addr`.
        fn rdma_bind_addr(id: *mut CmId, addr: *mut sockaddr) -> c_int {
            // SAFETY: contract of `rdma_bind_addr` (man page): `id` is a live identifier, and `addr` is a valid
            // address.
            answer(unsafe {
                let of = id::object(id);
                address::read(addr).and_then(|wanted| bind(of, &mut of.own(), wanted))
            })
        }

        /// `man rdma_resolve_addr`: returns without delay.
        fn rdma_resolve_addr(
            id: *mut CmId, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, _timeout_ms: c_int,
        ) -> c_int {
            // SAFETY: contract of `rdma_resolve_addr` (man page): `id` is live; addresses are null or valid.
            answer(unsafe {
                let from = if src_addr.is_null() { Ok(None) } else { address::read(src_addr).map(Some) };
                let resolved = from.and_then(|from| resolve(id::object(id), from, address::read(dst_addr)?));
                resolved.and_then(|()| complete(id))
            })
        }

        /// `man rdma_resolve_route`: returns without delay.
        fn rdma_resolve_route(id: *mut CmId, _timeout_ms: c_int) -> c_int {
            // SAFETY: contract of `rdma_resolve_route` (man page): `id` is a live identifier.
            answer(unsafe { resolve_route(id::object(id)).and_then(|()| complete(id)) })
        }

        /// `man rdma_listen`.
        fn rdma_listen(id: *mut CmId, backlog: c_int) -> c_int {
            // SAFETY: contract of `rdma_listen` (man page): `id` is a live identifier.
            answer(listen(unsafe { id::object(id) }, backlog))
        }
    }
}
