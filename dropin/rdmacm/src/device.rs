//! The device: one for all addresses of this host.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::process;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use farcall_layout::{Context, Functions, Pd};

use crate::errno::{self, Errno, check, made, refused};
use crate::symbols::export;
use crate::verbs::verbs;

/// The port of the device.
pub const PORT: u8 = 1;

/// The opened device. It remains open until the process exits (man `rdma_get_devices`).
pub struct NicDevice {
    pub context: *mut Context,
    /// For programs that provide none.
    pub pd: *mut Pd,
    pub gid: [u8; 16],
    /// The GUID of its channel adapter.
    pub ca_guid: u64,
    /// The maximum packet length, as a value of `enum ibv_mtu`.
    pub mtu: u8,
    /// Maximum number of outstanding READs and atomics of a queue pair, as requester and as responder.
    pub max_rd_atomic: u8,
    /// The process that opened it: a forked child opens its own.
    pid: u32,
}

// SAFETY: libibverbs permits the use of a context and a protection domain in any thread, and the other fields never
// change.
unsafe impl Send for NicDevice {}
// SAFETY: libibverbs permits the concurrent use of a context and a protection domain, and the other fields never
// change.
unsafe impl Sync for NicDevice {}

/// Returns the device of this process, which is opened on first use.
///
/// # Errors
/// Returns `ENODEV` if libibverbs has no device, or its error if the device cannot be opened.
pub fn device() -> Result<&'static NicDevice, Errno> {
    static DEVICE: Mutex<Option<&'static NicDevice>> = Mutex::new(None);
    let mut known = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = known.filter(|device| device.pid == process::id()) {
        return Ok(device);
    }
    let opened: &'static NicDevice = Box::leak(Box::new(open(verbs()?)?));
    *known = Some(opened);
    Ok(opened)
}

fn open(verbs: &Functions) -> Result<NicDevice, Errno> {
    // SAFETY: `get_device_list` returns a list that ends with null and is freed once. The opened context does not
    // depend on the list (man `ibv_get_device_list`).
    unsafe {
        let list = made((verbs.get_device_list)(ptr::null_mut()))?;
        let first = *list;
        let context = if first.is_null() {
            Err(refused(libc::ENODEV, format_args!("libibverbs has no device")))
        } else {
            made((verbs.open_device)(first))
        };
        (verbs.free_device_list)(list);
        describe(verbs, context?)
    }
}

/// # Safety
/// `context` must be open.
unsafe fn describe(verbs: &Functions, context: *mut Context) -> Result<NicDevice, Errno> {
    let (mut attr, mut port) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
    let mut gid = [0; 16];
    // SAFETY: contract of this function: `context` is open. The structures consist of integers, for which zero is
    // valid.
    unsafe {
        check((verbs.query_device)(context, attr.as_mut_ptr()))?;
        check((verbs.query_port)(context, PORT, port.as_mut_ptr()))?;
        check((verbs.query_gid)(context, PORT, 0, &raw mut gid))?;
        let (attr, port) = (attr.assume_init(), port.assume_init());
        let pd = made((verbs.alloc_pd)(context))?;
        let most = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom).clamp(0, 254);
        Ok(NicDevice {
            context,
            pd,
            gid,
            ca_guid: u64::from_be(attr.node_guid),
            mtu: port.active_mtu.clamp(1, 5) as u8,
            max_rd_atomic: most as u8,
            pid: process::id(),
        })
    }
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_get_devices`.
        fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut Context {
            let found = match device() {
                Ok(device) => Some(device.context),
                Err(libc::ENODEV) => None,
                Err(number) => return errno::null(number),
            };
            // SAFETY: allocates zeroed memory for one pointer and the terminating null; `rdma_free_devices` frees it.
            let list = unsafe { libc::calloc(2, size_of::<*mut Context>()) }.cast::<*mut Context>();
            if list.is_null() {
                return errno::null(refused(libc::ENOMEM, format_args!("no memory for the list")));
            }
            if let Some(context) = found {
                // SAFETY: the first of two allocated elements.
                unsafe { *list = context };
            }
            if !num_devices.is_null() {
                // SAFETY: contract of `rdma_get_devices` (man page): `num_devices`, which is not null, points to a
                // variable.
                unsafe { *num_devices = found.is_some().into() };
            }
            list
        }

        /// `man rdma_free_devices`.
        fn rdma_free_devices(list: *mut *mut Context) {
            // SAFETY: contract of `rdma_free_devices` (man page): `list` was returned by `rdma_get_devices`, which
            // allocates it by `calloc`.
            unsafe { libc::free(list.cast()) }
        }
    }
}
