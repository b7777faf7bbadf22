//! Local and remote addresses of endpoints.

use std::ffi::c_int;
use std::net::SocketAddr;

use farcall_layout::rdmacm::{CmId, PathRecord};
use libc::sockaddr;

use crate::errno::{Errno, invalid, refused, to_return_value};
use crate::event::complete;
use crate::event_queue::QueuedEvent;
use crate::id::{self, CmIdObject};
use crate::id_state::{CmIdState, Stage};
use crate::listener::Listening;
use crate::local_socket::socket;
use crate::service::{self, connection_manager};
use crate::symbols::export;
use crate::{address, device, port, shared};

/// Default and maximum backlog: that of the kernel's connection manager.
const BACKLOG_MAX: usize = 1024;

/// Assigns a local address and its port to an endpoint.
fn bind(of: &CmIdObject, id_state: &mut CmIdState, wanted: SocketAddr) -> Result<(), Errno> {
    id_state.require(Stage::New)?;
    if !address::is_local(&wanted) {
        let why = format_args!("{wanted} is no address of this host");
        return Err(refused(libc::EADDRNOTAVAIL, why));
    }
    let (port, bound) = match port::reserve(of.space, &wanted) {
        // The port belongs to another endpoint that shares it; only that endpoint can listen at it.
        Err(libc::EADDRINUSE) if id_state.options.is_shared => (None, wanted),
        reserved => reserved.map(|(port, bound)| (Some(port), bound))?,
    };
    let socket = socket()?;
    if !bound.ip().is_unspecified() {
        of.attach()?;
    }
    connection_manager()?.end(of.token)?.bind(socket, port);
    of.set_local(id_state, bound);
    id_state.enter(Stage::Bound);
    Ok(())
}

/// Resolves the route of an endpoint to an address. Returns the error to report if there is none.
fn find_route(of: &CmIdObject, id_state: &mut CmIdState, to: SocketAddr) -> Result<(), Errno> {
    let to = address::destination(to);
    let is_remote = !address::is_local(&to) && !shared::is_shared_address(&to);
    if is_remote {
        open_remote(of, &to)?;
    }
    let local = id_state.local().ok_or_else(|| invalid("the identifier has no address"))?;
    if local.ip().is_unspecified() {
        of.set_local(id_state, SocketAddr::new(address::source_towards(&to)?, local.port()));
    }
    of.attach()?;
    of.set_remote(id_state, to);
    let gid = if is_remote { address::mapped(&to.ip()).octets() } else { device::device()?.gid };
    // SAFETY: `of.c()` points into `of`, which is live. The program reads this field only after the call or the event
    // that reports the resolved address.
    unsafe { (*of.c()).route.addr.ib.dgid = gid };
    id_state.resolved(is_remote);
    Ok(())
}

/// Prepares an endpoint for a peer on another host.
fn open_remote(of: &CmIdObject, to: &SocketAddr) -> Result<(), Errno> {
    let mut manager = connection_manager()?;
    if let Err(number) = service::open_remote(&mut manager) {
        let why = format!(
            "{to} is no address of this host and network namespace, and there is no way to other hosts: error {number} \
             (containers with networks of their own: share a directory through FARCALL_SOCKET_DIR)"
        );
        crate::complain(format_args!("{why}"));
        return Err(refused(libc::ENODEV, format_args!("{why}")));
    }
    manager.end(of.token)?.set_remote_peer(address::mapped(&to.ip()));
    Ok(())
}

fn resolve(of: &CmIdObject, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), Errno> {
    let mut id_state = of.lock_state();
    if id_state.is_new() {
        let from = from.unwrap_or_else(|| address::any_like(&to));
        bind(of, &mut id_state, from)?;
    }
    id_state.require(Stage::Bound)?;
    if let Some(local) = id_state.local().filter(|local| local.is_ipv4() != to.is_ipv4()) {
        return Err(refused(libc::EINVAL, format_args!("{local} and {to} are not of one family")));
    }
    of.set_remote(&mut id_state, to);
    let notice = match find_route(of, &mut id_state, to) {
        Ok(()) => QueuedEvent::AddressResolved,
        Err(number) => QueuedEvent::AddressError(number),
    };
    connection_manager()?.queue_event(of.token, notice);
    Ok(())
}

fn resolve_route(of: &CmIdObject) -> Result<(), Errno> {
    let mut id_state = of.lock_state();
    id_state.require(Stage::AddressResolved)?;
    let path = Box::into_raw(Box::new(path_of(of, &id_state)?));
    // SAFETY: `of.c()` points into `of`, which is live. Only this library writes these fields;
    // `create_id::destroy` frees the record.
    unsafe {
        (*of.c()).route.path_rec = path;
        (*of.c()).route.num_paths = 1;
    }
    id_state.enter(Stage::RouteResolved);
    drop(id_state);
    connection_manager()?.queue_event(of.token, QueuedEvent::RouteResolved);
    Ok(())
}

/// Returns the path from the device to itself, or to another host's device.
fn path_of(of: &CmIdObject, id_state: &CmIdState) -> Result<PathRecord, Errno> {
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
        traffic_class: id_state.options.tos,
        reversible: 1,
        numb_path: 1,
        pkey_be: 0xffff,
        sl: 0,
        mtu_selector: 2,
        mtu: id_state.path_mtu(nic.mtu),
        rate_selector: 2,
        rate: 0,
        packet_life_time_selector: 2,
        packet_life_time: id_state.options.ack_timeout.saturating_sub(1),
        preference: 0,
    })
}

fn listen(of: &CmIdObject, backlog: c_int) -> Result<(), Errno> {
    let mut id_state = of.lock_state();
    if id_state.is_new() {
        bind(of, &mut id_state, SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0))?;
    }
    id_state.require(Stage::Bound)?;
    // Requests are only accepted if there is a device.
    device::device()?;
    let backlog = usize::try_from(backlog).ok().filter(|count| (1..BACKLOG_MAX).contains(count));
    let listening =
        Listening::new(backlog.unwrap_or(BACKLOG_MAX), id_state.options.is_v6_only, of.is_datagram());
    let mut manager = connection_manager()?;
    manager.listen(of.token, listening)?;
    if let Some(bound) = id_state.local()
        && let Some(published) = shared::publish(of.space, &bound, id_state.options.is_v6_only)
    {
        manager.publish(of.token, published)?;
    }
    if id_state.local().is_some_and(|bound| !bound.ip().is_loopback())
        && let Err(number) = service::open_remote(&mut manager)
    {
        tracing::info!("no other host can connect: error {number}");
    }
    id_state.enter(Stage::Listening);
    Ok(())
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_bind_addr`.
        fn rdma_bind_addr(id: *mut CmId, addr: *mut sockaddr) -> c_int {
            // SAFETY: contract of `rdma_bind_addr` (man page): `id` is a live identifier, and `addr` is a valid
            // address.
            to_return_value(unsafe {
                let of = id::object(id);
                address::read(addr).and_then(|wanted| bind(of, &mut of.lock_state(), wanted))
            })
        }

        /// `man rdma_resolve_addr`: returns without delay.
        fn rdma_resolve_addr(
            id: *mut CmId, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, _timeout_ms: c_int,
        ) -> c_int {
            // SAFETY: contract of `rdma_resolve_addr` (man page): `id` is live; addresses are null or valid.
            to_return_value(unsafe {
                let from = if src_addr.is_null() { Ok(None) } else { address::read(src_addr).map(Some) };
                let resolved = from.and_then(|from| resolve(id::object(id), from, address::read(dst_addr)?));
                resolved.and_then(|()| complete(id))
            })
        }

        /// `man rdma_resolve_route`: returns without delay.
        fn rdma_resolve_route(id: *mut CmId, _timeout_ms: c_int) -> c_int {
            // SAFETY: contract of `rdma_resolve_route` (man page): `id` is a live identifier.
            to_return_value(unsafe { resolve_route(id::object(id)).and_then(|()| complete(id)) })
        }

        /// `man rdma_listen`.
        fn rdma_listen(id: *mut CmId, backlog: c_int) -> c_int {
            // SAFETY: contract of `rdma_listen` (man page): `id` is a live identifier.
            to_return_value(listen(unsafe { id::object(id) }, backlog))
        }
    }
}
