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

/// An opened device. It stays open as long as the process (man `rdma_get_devices`).
pub struct NicDevice {
    pub context: *mut Context,
    /// For programs that bring none of their own.
    pub pd: *mut Pd,
    pub gid: [u8; 16],
    /// The GUID of its channel adapter.
    pub ca_guid: u64,
    /// The largest packet, a number of `enum ibv_mtu`.
    pub mtu: u8,
    /// READs and atomics that a queue pair can have under way, and accept.
    pub max_rd_atomic: u8,
    /// Whose it is: a forked child opens its own.
    pid: u32,
}

// SAFETY: the context and the domain may be used by any thread (libibverbs' promise); nothing here changes.
unsafe impl Send for NicDevice {}
// SAFETY: as above.
unsafe impl Sync for NicDevice {}

/// The device of this process, opened when it is first asked for.
///
/// # Errors
/// `ENODEV` when libibverbs has none; what it says when it cannot be opened.
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
    // SAFETY: a list of devices, null at its end, which is freed once; the context stays open.
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
    // SAFETY: the caller's context; the structures are whole, plain numbers, for which zero is a value.
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
            // SAFETY: zeroed memory for a pointer and the null at the end; `rdma_free_devices` frees it.
            let list = unsafe { libc::calloc(2, size_of::<*mut Context>()) }.cast::<*mut Context>();
            if list.is_null() {
                return errno::null(refused(libc::ENOMEM, format_args!("no memory for the list")));
            }
            if let Some(context) = found {
                // SAFETY: inside of what was allocated.
                unsafe { *list = context };
            }
            if !num_devices.is_null() {
                // SAFETY: the caller's variable.
                unsafe { *num_devices = found.is_some().into() };
            }
            list
        }

        /// `man rdma_free_devices`.
        fn rdma_free_devices(list: *mut *mut Context) {
            // SAFETY: allocated by `calloc` above.
            unsafe { libc::free(list.cast()) }
        }
    }
}
