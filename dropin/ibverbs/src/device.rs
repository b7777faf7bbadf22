//! The list of devices.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use farcall_softnic::SoftNic;
use farcall_verbs::{Provider, with_sources};

use crate::symbols::export;
use crate::{errno, faults};
use farcall_layout::{ABSENT, Device};

/// `IBV_NODE_CA`.
const NODE_CA: c_int = 1;
/// `IBV_TRANSPORT_IB`, which RoCE devices report as well.
const TRANSPORT_IB: c_int = 0;

/// A device, and its state in this library. Some libraries read beyond the end of `struct ibv_device` to identify the
/// driver, and find zeros there.
#[repr(C)]
pub struct DeviceObject {
    pub device: Device,
    beyond: [u64; 32],
    pub guid_be: u64,
    pub provider_device: Arc<dyn farcall_verbs::Device>,
}

// SAFETY: the pointers in the structure are null, and the other fields never change.
unsafe impl Send for DeviceObject {}
// SAFETY: the pointers in the structure are null, and the other fields never change.
unsafe impl Sync for DeviceObject {}

/// Copies a text into a C array, truncated to its length.
pub fn copy_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}

impl DeviceObject {
    fn new(
        index: usize,
        provider_device: Arc<dyn farcall_verbs::Device>,
    ) -> Result<Self, farcall_verbs::Error> {
        let name = provider_device.name().to_owned();
        let guid = provider_device.open()?.query_device()?.node_guid;
        let device = Device {
            ops: [ABSENT; 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: copy_text(&name),
            dev_name: copy_text(&format!("uverbs{index}")),
            dev_path: copy_text(&format!("/sys/class/infiniband_verbs/uverbs{index}")),
            ibdev_path: copy_text(&format!("/sys/class/infiniband/{name}")),
        };
        Ok(Self { device, beyond: [0; 32], guid_be: guid.to_be(), provider_device })
    }
}

/// Contains the amount of registered memory, in MiB, that is remapped so that peers can map it; 0: none.
const MOVE_VARIABLE: &str = "FARCALL_MOVE_MIB";

/// Default of that variable. A fork copies remapped memory.
const MOVE_MIB: u64 = 256;

fn moved_bytes_max() -> u64 {
    let Some(text) = farcall_shm::trusted_variable(MOVE_VARIABLE) else { return MOVE_MIB << 20 };
    match text.to_str().and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(mib) => mib.saturating_mul(1 << 20),
        None => {
            crate::complain(format_args!("{MOVE_VARIABLE}={text:?} is no number of MiB: nothing is moved"));
            0
        }
    }
}

/// Returns the devices, which are found once and remain valid until the process exits.
fn devices() -> Result<&'static [DeviceObject], c_int> {
    static DEVICES: OnceLock<Result<Vec<DeviceObject>, c_int>> = OnceLock::new();
    let found = DEVICES.get_or_init(|| {
        let faults = faults::asked_for()?;
        let softnic = SoftNic::new().moving_registered_memory(moved_bytes_max());
        let found = softnic.devices().and_then(|devices| {
            let devices = devices.into_iter().map(|device| match &faults {
                Some(faults) => faults.around(device),
                None => device,
            });
            devices.enumerate().map(|(index, device)| DeviceObject::new(index, device)).collect()
        });
        Ok(found.unwrap_or_else(|error| {
            crate::complain(format_args!("no device: {}", with_sources(&error)));
            Vec::new()
        }))
    });
    found.as_deref().map_err(|number| *number)
}

/// # Safety
/// `device` must have been returned by [`ibv_get_device_list`].
pub unsafe fn object<'a>(device: *mut Device) -> &'a DeviceObject {
    // SAFETY: contract of this function. The device is the first field of its object (`repr(C)`), which is never
    // freed.
    unsafe { &*device.cast::<DeviceObject>() }
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_get_device_list`.
        fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut Device {
            let devices = match devices() {
                Ok(devices) => devices,
                Err(number) => return errno::null(number),
            };
            // SAFETY: allocates zeroed memory for the pointers and the terminating null; `ibv_free_device_list` frees
            // it.
            let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut Device>()) }.cast::<*mut Device>();
            if list.is_null() {
                return errno::null(libc::ENOMEM);
            }
            for (at, device) in devices.iter().enumerate() {
                // SAFETY: `at` is less than the number of allocated elements.
                unsafe { *list.add(at) = ptr::from_ref(&device.device).cast_mut() };
            }
            if !num_devices.is_null() {
                // SAFETY: contract of `ibv_get_device_list` (man page): `num_devices`, which is not null, is valid.
                unsafe { *num_devices = devices.len() as c_int };
            }
            list
        }

        /// `man ibv_get_device_list`.
        fn ibv_free_device_list(list: *mut *mut Device) {
            // SAFETY: contract of `ibv_free_device_list` (man page): `list` was returned by `ibv_get_device_list`,
            // which allocates it by `calloc`.
            unsafe { libc::free(list.cast::<c_void>()) }
        }

        /// `man ibv_get_device_name`.
        fn ibv_get_device_name(device: *mut Device) -> *const c_char {
            // SAFETY: contract of `ibv_get_device_name` (man page): `device` is valid.
            unsafe { (*device).name.as_ptr() }
        }

        /// `man ibv_get_device_guid`: big-endian.
        fn ibv_get_device_guid(device: *mut Device) -> u64 {
            // SAFETY: contract of `ibv_get_device_guid` (man page): `device` is valid.
            unsafe { object(device) }.guid_be
        }
    }
    "IBVERBS_1.9" {
        /// `man ibv_get_device_index`: the index is assigned by the kernel, which does not know this device.
        fn ibv_get_device_index(_device: *mut Device) -> c_int {
            errno::to_return_value(Err(libc::EOPNOTSUPP))
        }
    }
}
