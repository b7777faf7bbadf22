//! Queue pair 1 for the connection manager, which is another library: see [`farcall_softnic::Management`]. Functions
//! return 0 or a number, or a negative `errno`.

use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use farcall_softnic::Management;

/// With the process whose it is: a forked child opens its own.
static MANAGEMENT: Mutex<Option<(u32, Arc<Management>)>> = Mutex::new(None);

fn opened() -> Option<Arc<Management>> {
    let known = MANAGEMENT.lock().unwrap_or_else(PoisonError::into_inner);
    known.as_ref().filter(|(pid, _)| *pid == process::id()).map(|(_, management)| management.clone())
}

fn negative(error: &farcall_verbs::Error) -> c_int {
    -crate::errno::number(error)
}

/// Opens it. Returns a descriptor that becomes readable when a datagram comes, and says which of the processes that
/// share the port this one is.
///
/// # Safety
/// `slot` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_management_open(slot: *mut u32) -> c_int {
    let mut known = MANAGEMENT.lock().unwrap_or_else(PoisonError::into_inner);
    let ours = known.as_ref().filter(|(pid, _)| *pid == process::id());
    // Whoever opened it before goes on using its descriptor.
    let management = match ours.map_or_else(|| Management::open().map(Arc::new), |(_, open)| Ok(open.clone()))
    {
        Ok(management) => management,
        Err(error) => return negative(&error),
    };
    // SAFETY: the caller's variable.
    unsafe { slot.write(management.slot() as u32) };
    let descriptor = management.arrived().as_raw_fd();
    *known = Some((process::id(), management));
    descriptor
}
farcall_trace::symver!("FARCALL_1", farcall_management_open);

/// Takes what comes, unless another process does: 1 if it is ours.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_management_claim() -> c_int {
    let Some(management) = opened() else { return -libc::ENODEV };
    management.claim().map_or_else(|error| negative(&error), c_int::from)
}
farcall_trace::symver!("FARCALL_1", farcall_management_claim);

/// Sends a datagram to the queue pair 1 of an address.
///
/// # Safety
/// Both must be readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_management_send(dst: *const [u8; 16], bytes: *const [u8; 256]) -> c_int {
    let Some(management) = opened() else { return -libc::ENODEV };
    // SAFETY: the caller's promise.
    let sent = unsafe { management.send(Ipv6Addr::from(*dst), &*bytes) };
    sent.map_or_else(|error| negative(&error), |()| 0)
}
farcall_trace::symver!("FARCALL_1", farcall_management_send);

/// Takes the next datagram: 1 if there was one.
///
/// # Safety
/// All must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_management_take(
    src: *mut [u8; 16],
    dst: *mut [u8; 16],
    bytes: *mut [u8; 256],
) -> c_int {
    let Some(datagram) = opened().and_then(|management| management.take()) else { return 0 };
    // SAFETY: the caller's promise.
    unsafe {
        src.write(datagram.src.octets());
        dst.write(datagram.dst.octets());
        bytes.write(datagram.bytes);
    }
    1
}
farcall_trace::symver!("FARCALL_1", farcall_management_take);

/// Counts a connection of another host that was refused, as one too many.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_management_count_refused() {
    if let Some(management) = opened() {
        management.count_refused();
    }
}
farcall_trace::symver!("FARCALL_1", farcall_management_count_refused);
