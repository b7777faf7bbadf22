//! The provider and its devices.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::sync::Arc;

use farcall_verbs::{Context, Device, Error, Provider, Result};

use crate::context::IbvContext;
use crate::library::library;
use crate::object::Object;
use crate::open_device::OpenDevice;
use crate::{NAME, fault, survey};
use farcall_layout::{self as abi, Functions};

/// The provider over the system's libibverbs.
#[derive(Clone, Debug, Default)]
pub struct Ibv {
    only: Option<String>,
    gid_index: Option<u32>,
}

impl Ibv {
    /// Creates the provider. The library is loaded when devices are listed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Restricts the provider to one device.
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.only = Some(name.into());
        self
    }

    /// Sets the GID index that peers use as the address, instead of the automatic choice.
    #[must_use]
    pub fn gid_index(mut self, index: u32) -> Self {
        self.gid_index = Some(index);
        self
    }
}

impl Provider for Ibv {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Returns all devices, those with an active port first, and iWARP devices, which cannot be connected, last.
    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        let library = library()?;
        let list = DeviceList::get(library)?;
        let mut names: Vec<String> = list.iter().map(|device| device_name(library, device)).collect();
        if let (true, Some(device)) = (names.is_empty(), survey::kernel_devices().first()) {
            return Err(fault::no_access(&device.name, device.node_state()));
        }
        names.sort_by_key(|name| (survey::is_iwarp(name), !survey::has_active_port(name)));
        if let Some(only) = &self.only {
            if !names.contains(only) {
                let there = if names.is_empty() { "none".into() } else { names.join(", ") };
                return Err(Error::invalid(
                    "find device",
                    format!("no RDMA device {only}; there is: {there}"),
                ));
            }
            names.retain(|name| name == only);
        }
        let gid_index = self.gid_index;
        let device = |name| -> Arc<dyn Device> { Arc::new(IbvDevice { library, name, gid_index }) };
        Ok(names.into_iter().map(device).collect())
    }
}

struct IbvDevice {
    library: &'static Functions,
    name: String,
    gid_index: Option<u32>,
}

impl Device for IbvDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn provider(&self) -> &'static str {
        NAME
    }

    fn open(&self) -> Result<Arc<dyn Context>> {
        let list = DeviceList::get(self.library)?;
        let device =
            list.iter().find(|device| device_name(self.library, *device) == self.name).ok_or_else(|| {
                Error::invalid("open device", format!("{} is gone; list the devices again", self.name))
            })?;
        // SAFETY: `list` is not freed yet, so `device` is valid; the opened context holds its own reference to it.
        let raw = unsafe {
            let opened = (self.library.open_device)(device.as_ptr());
            let fail = |source| fault::open(&self.name, survey::node_state(&self.name), source);
            Object::new(opened, "device context", self.library.close_device, fail)?
        };
        let open = OpenDevice::new(self.library, raw, self.name.clone());
        Ok(Arc::new(IbvContext::new(open, self.gid_index)?))
    }
}

fn device_name(library: &Functions, device: NonNull<abi::Device>) -> String {
    // SAFETY: the caller's list is not freed yet, so `device` is valid; its name is a C string inside it.
    unsafe { CStr::from_ptr((library.get_device_name)(device.as_ptr())) }.to_string_lossy().into_owned()
}

/// The library's list of devices, which is freed when dropped.
struct DeviceList {
    library: &'static Functions,
    list: NonNull<*mut abi::Device>,
    len: usize,
}

impl DeviceList {
    fn get(library: &'static Functions) -> Result<Self> {
        let mut len: c_int = 0;
        // SAFETY: the function sets the length and returns an array that the library allocated.
        let list = unsafe { (library.get_device_list)(&raw mut len) };
        let list = fault::non_null(list, |source| {
            Error::os("list devices", format!("the kernel has no RDMA: {}", survey::NO_DEVICES), source)
        })?;
        Ok(Self { library, list, len: usize::try_from(len).unwrap_or(0) })
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<abi::Device>> {
        // SAFETY: the library's array has this length, and is freed only in `drop`.
        let list = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.len) };
        list.iter().filter_map(|device| NonNull::new(*device))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: `get_device_list` returned the list, which is freed only here; opened devices remain valid.
        unsafe { (self.library.free_device_list)(self.list.as_ptr()) };
    }
}
