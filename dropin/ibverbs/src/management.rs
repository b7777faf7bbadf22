//! Queue pair 1 for the connection manager, which is another library: see [`farcall_softnic::Management`]. The
//! functions return 0 or a positive number, or a negative `errno`.

use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use farcall_softnic::Management;

/// With the process that opened it: a forked child opens its own.
static MANAGEMENT: Mutex<Option<(u32, Arc<Management>)>> = Mutex::new(None);

fn opened() -> Option<Arc<Management>> {
    let known = MANAGEMENT.lock().unwrap_or_else(PoisonError::into_inner);
    known.as_ref().filter(|(pid, _)| *pid == process::id()).map(|(_, management)| management.clone())
}

fn negative(error: &farcall_verbs::Error) -> c_int {
    -crate::errno::number(error)
}

/// Opens queue pair 1. Returns a descriptor that becomes readable when a datagram arrives, and stores in `slot` the
/// number of this process among those that share the port.
///
/// # Safety
/// `slot` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_management_open(slot: *mut u32) -> c_int {
    let mut known = MANAGEMENT.lock().unwrap_or_else(PoisonError::into_inner);
    let ours = known.as_ref().filter(|(pid, _)| *pid == process::id());
    // If it is already open, its descriptor is returned again.
    let management = match ours.map_or_else(|| Management::open().map(Arc::new), |(_, open)| Ok(open.clone()))
    {
        Ok(management) => management,
        Err(error) => return negative(&error),
    };
    // SAFETY: contract of this function: `slot` is valid for writes.
    unsafe { slot.write(management.slot() as u32) };
    let descriptor = management.arrived().as_raw_fd();
    *known = Some((process::id(), management));
    descriptor
}
farcall_trace::symver!("FARCALL_1", farcall_management_open);

/// Claims the receive side, unless another process has it. Returns 1 if this process has it.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_management_claim() -> c_int {
    let Some(management) = opened() else { return -libc::ENODEV };
    management.claim().map_or_else(|error| negative(&error), c_int::from)
}
farcall_trace::symver!("FARCALL_1", farcall_management_claim);

/// Sends a datagram to queue pair 1 at an address.
///
/// # Safety
/// Both pointers must be valid for reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_management_send(dst: *const [u8; 16], bytes: *const [u8; 256]) -> c_int {
    let Some(management) = opened() else { return -libc::ENODEV };
    // SAFETY: contract of this function: both pointers are valid for reads.
    let sent = unsafe { management.send(Ipv6Addr::from(*dst), &*bytes) };
    sent.map_or_else(|error| negative(&error), |()| 0)
}
farcall_trace::symver!("FARCALL_1", farcall_management_send);

/// Like [`farcall_management_send`], if this process still has the receive side. Returns 1 if the datagram was sent.
///
/// # Safety
/// Both pointers must be valid for reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_management_send_as_holder(
    dst: *const [u8; 16],
    bytes: *const [u8; 256],
) -> c_int {
    let Some(management) = opened() else { return -libc::ENODEV };
    // SAFETY: contract of this function: both pointers are valid for reads.
    let sent = unsafe { management.send_as_holder(Ipv6Addr::from(*dst), &*bytes) };
    sent.map_or_else(|error| negative(&error), c_int::from)
}
farcall_trace::symver!("FARCALL_1", farcall_management_send_as_holder);

/// Returns 1 if this process still has the receive side.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_management_is_held() -> c_int {
    opened().is_some_and(|management| management.is_held()).into()
}
farcall_trace::symver!("FARCALL_1", farcall_management_is_held);

/// Receives the next datagram. Returns 1 if there was one.
///
/// # Safety
/// All pointers must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_management_take(
    src: *mut [u8; 16],
    dst: *mut [u8; 16],
    bytes: *mut [u8; 256],
) -> c_int {
    let Some(datagram) = opened().and_then(|management| management.take()) else { return 0 };
    // SAFETY: contract of this function: all pointers are valid for writes.
    unsafe {
        src.write(datagram.src.octets());
        dst.write(datagram.dst.octets());
        bytes.write(datagram.bytes);
    }
    1
}
farcall_trace::symver!("FARCALL_1", farcall_management_take);

/// Counts a connection of another host that was refused because of a limit.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_management_count_refused() {
    if let Some(management) = opened() {
        management.count_refused();
    }
}
farcall_trace::symver!("FARCALL_1", farcall_management_count_refused);
