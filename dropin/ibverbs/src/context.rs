//! An opened device: its function tables, attributes and events.

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;

use farcall_verbs::{GidType, LinkLayer, OpCaps};

use crate::attributes::Limits;
use crate::device::copy_text;
use crate::errno;
use crate::live;
use crate::registry::Registry;
use crate::symbols::{export, unsupported};
use farcall_layout::{Context, DeviceAttr, DeviceAttrEx, GidEntry, PortAttr, Values, VerbsContext};

#[repr(C)]
pub struct ContextObject {
    verbs: VerbsContext,
    pub provider: Arc<dyn farcall_verbs::Context>,
    pub registry: Registry,
    /// Descriptor in place of the device node's, which programs poll or set to close-on-exec.
    _command: OwnedFd,
    guid_be: u64,
    /// Limits for the attributes of queue pairs.
    pub limits: Limits,
}

impl ContextObject {
    /// Creates the object of an opened device with its function tables. `command` is the descriptor that the tables
    /// contain.
    pub fn open(
        verbs: VerbsContext,
        provider: Arc<dyn farcall_verbs::Context>,
        command: OwnedFd,
        guid_be: u64,
        limits: Limits,
    ) -> *mut Context {
        let made = Box::new(Self {
            verbs,
            provider,
            registry: Registry::default(),
            _command: command,
            guid_be,
            limits,
        });
        // SAFETY: the address of a field of the box that was just leaked; `ibv_close_device` frees it.
        unsafe {
            let context = ptr::addr_of_mut!((*Box::into_raw(made)).verbs.context);
            live::CONTEXTS.insert(context);
            context
        }
    }
}

/// # Safety
/// `context` must have been returned by [`ContextObject::open`] and be open.
pub unsafe fn object<'a>(context: *mut Context) -> &'a ContextObject {
    // SAFETY: contract of this function: `context` is open. It is the last field of the `VerbsContext` at the start of
    // its `ContextObject` (`repr(C)`).
    unsafe { &*context.byte_sub(offset_of!(VerbsContext, context)).cast::<ContextObject>() }
}

/// `IBV_ATOMIC_HCA`, which all common devices report. Atomics are the processor's own, which corresponds to
/// `IBV_ATOMIC_GLOB`, but with that value UCX does not use them.
const ATOMIC_HCA: c_int = 1;
/// `IBV_DEVICE_SYS_IMAGE_GUID`, `IBV_DEVICE_RC_RNR_NAK_GEN`, `IBV_DEVICE_SRQ_RESIZE`.
const CAP_FLAGS: u32 = 1 << 11 | 1 << 12 | 1 << 13;

/// An unassigned OUI; programs interpret 0 as a failed query.
const NO_VENDOR: u32 = 0xff_ffff;

fn fill_device(of: &ContextObject) -> Result<DeviceAttr, farcall_verbs::Error> {
    let attr = of.provider.query_device()?;
    let int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    // SAFETY: a structure of integers, for which zero is valid.
    let mut filled: DeviceAttr = unsafe { std::mem::zeroed() };
    filled.fw_ver = copy_text(&attr.fw_ver);
    filled.node_guid = of.guid_be;
    filled.sys_image_guid = of.guid_be;
    filled.vendor_id = NO_VENDOR;
    filled.max_mr_size = attr.max_mr_size;
    filled.page_size_cap = !0xfff;
    filled.max_qp = int(attr.max_qp);
    filled.max_qp_wr = int(attr.max_qp_wr);
    filled.device_cap_flags = CAP_FLAGS;
    filled.max_sge = int(attr.max_sge);
    filled.max_sge_rd = int(attr.max_sge);
    filled.max_cq = int(attr.max_cq);
    filled.max_cqe = int(attr.max_cqe);
    filled.max_mr = int(attr.max_mr);
    filled.max_pd = int(attr.max_pd);
    filled.max_qp_rd_atom = attr.max_qp_rd_atom.into();
    filled.max_qp_init_rd_atom = attr.max_qp_rd_atom.into();
    filled.max_res_rd_atom = int(attr.max_qp).saturating_mul(attr.max_qp_rd_atom.into());
    filled.atomic_cap = if attr.rc.contains(OpCaps::ATOMIC) { ATOMIC_HCA } else { 0 };
    filled.max_ah = int(attr.max_ah);
    filled.max_srq = int(attr.max_srq);
    filled.max_srq_wr = int(attr.max_srq_wr);
    filled.max_srq_sge = int(attr.max_srq_sge);
    filled.max_pkeys = 1;
    filled.phys_port_cnt = attr.phys_port_cnt;
    Ok(filled)
}

/// See `man ibv_query_device_ex`. The larger structure of a newer header is filled with zeros.
pub unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    _input: *const c_uint,
    attr: *mut DeviceAttrEx,
    len_bytes: usize,
) -> c_int {
    // SAFETY: contract of `ibv_query_device_ex` (man page): `context` is open.
    let filled = match fill_device(unsafe { object(context) }) {
        Ok(filled) => filled,
        Err(error) => return errno::number(&error),
    };
    // SAFETY: contract of `ibv_query_device_ex` (man page): `attr` has `len_bytes` bytes; fields beyond them are not
    // written.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, len_bytes);
        if len_bytes >= size_of::<DeviceAttr>() {
            let ports = filled.phys_port_cnt.into();
            (*attr).orig_attr = filled;
            if len_bytes >= offset_of!(DeviceAttrEx, hca_core_clock_khz) + 8 {
                (*attr).completion_timestamp_mask = u64::MAX;
                (*attr).hca_core_clock_khz = 1_000_000;
            }
            if len_bytes >= offset_of!(DeviceAttrEx, phys_port_cnt_ex) + 4 {
                (*attr).phys_port_cnt_ex = ports;
            }
        }
    }
    0
}

pub unsafe extern "C" fn query_rt_values(_context: *mut Context, values: *mut Values) -> c_int {
    const RAW_CLOCK: u32 = 1;
    // SAFETY: contract of `ibv_query_rt_values_ex` (man page): `values` is valid.
    unsafe {
        if (*values).comp_mask & !RAW_CLOCK != 0 {
            return errno::refused(libc::EOPNOTSUPP, format_args!("there is the raw clock alone"));
        }
        (*values).raw_clock.tv_sec = 0;
        (*values).raw_clock.tv_nsec = farcall_trace::now_ns() as libc::c_long;
    }
    0
}

/// `IBV_PORT_CM_SUP`, `IBV_PORT_IP_BASED_GIDS`.
pub const PORT_CAP_FLAGS: u32 = 1 << 16 | 1 << 26;
/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// Four lanes of 25 Gb/s; the software RNIC has no fixed rate.
const WIDTH_4X: u8 = 2;
const SPEED_25: u8 = 32;
pub const LANES: u32 = 4;
/// Speed of a lane.
pub const SPEED_GBPS: u32 = 25;
const LINK_UP: u8 = 5;

pub unsafe extern "C" fn query_port(
    context: *mut Context,
    port_num: u8,
    attr: *mut PortAttr,
    len_bytes: usize,
) -> c_int {
    // SAFETY: contract of `ibv_query_port` (man page): `context` is open.
    let port = match unsafe { object(context) }.provider.query_port(port_num) {
        Ok(port) => port,
        Err(error) => return errno::number(&error),
    };
    let filled = PortAttr {
        state: port.state as c_int,
        max_mtu: port.max_mtu as c_int,
        active_mtu: port.active_mtu as c_int,
        gid_tbl_len: port.gid_tbl_len as c_int,
        port_cap_flags: PORT_CAP_FLAGS,
        max_msg_sz: 1 << 31,
        pkey_tbl_len: 1,
        lid: port.lid,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_25,
        phys_state: LINK_UP,
        link_layer: port.link_layer as u8,
        flags: if port.link_layer == LinkLayer::Ethernet { GRH_REQUIRED } else { 0 },
        ..PortAttr::default()
    };
    // SAFETY: contract of `ibv_query_port`: `attr` has `len_bytes` bytes; at most that number is written.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, len_bytes);
        let known = len_bytes.min(size_of::<PortAttr>());
        ptr::copy_nonoverlapping(ptr::from_ref(&filled).cast::<u8>(), attr.cast::<u8>(), known);
    }
    0
}

/// Length of the first fields of `struct ibv_port_attr`: the complete structure of programs compiled with old headers.
const OLD_PORT_ATTR_BYTES: usize = offset_of!(PortAttr, link_layer);

export! {
    "IBVERBS_1.1" {
        /// `man ibv_close_device`.
        fn ibv_close_device(context: *mut Context) -> c_int {
            if let Err(number) = live::CONTEXTS.remove(context) {
                return errno::to_return_value(Err(number));
            }
            // SAFETY: `ContextObject::open` made it with `Box::into_raw`, and `remove` succeeds only once. Contract of
            // `ibv_close_device` (man page): it is not used after the call.
            drop(unsafe {
                Box::from_raw(context.byte_sub(offset_of!(VerbsContext, context)).cast::<ContextObject>())
            });
            0
        }

        /// `man ibv_query_device`.
        fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
            // SAFETY: contract of `ibv_query_device` (man page): `context` is open and `attr` is valid.
            errno::code(unsafe { fill_device(object(context)).map(|filled| attr.write(filled)) })
        }

        /// `man ibv_query_port`, for programs whose header does not use the extended function.
        fn ibv_query_port(context: *mut Context, port_num: u8, attr: *mut PortAttr) -> c_int {
            // SAFETY: contract of `ibv_query_port` (man page): `context` is open, and `attr` has at least these bytes.
            unsafe { query_port(context, port_num, attr, OLD_PORT_ATTR_BYTES) }
        }

        /// `man ibv_query_gid`: returns -1 if there is no such entry.
        fn ibv_query_gid(context: *mut Context, port_num: u8, index: c_int, gid: *mut [u8; 16]) -> c_int {
            // SAFETY: contract of `ibv_query_gid` (man page): `context` is open.
            let found = unsafe { object(context) }.provider.query_gid(port_num, index as u32);
            // SAFETY: contract of `ibv_query_gid` (man page): `gid` is valid.
            errno::to_return_value(found.map(|found| unsafe { gid.write(found.0) }).map_err(|error| errno::number(&error)))
        }

        /// `man ibv_query_pkey`: the only table entry is the default partition.
        fn ibv_query_pkey(_context: *mut Context, port_num: u8, index: c_int, pkey_be: *mut u16) -> c_int {
            if port_num != 1 || index != 0 {
                return errno::to_return_value(Err(errno::refused(libc::EINVAL, format_args!("port {port_num}, index {index}"))));
            }
            // SAFETY: contract of `ibv_query_pkey` (man page): `pkey_be` is valid.
            unsafe { *pkey_be = 0xffff };
            0
        }
    }
    "IBVERBS_1.5" {
        /// `man ibv_get_pkey_index`.
        fn ibv_get_pkey_index(_context: *mut Context, port_num: u8, pkey_be: u16) -> c_int {
            match (port_num, pkey_be) {
                (1, 0xffff) => 0,
                _ => errno::to_return_value(Err(errno::refused(libc::EINVAL, format_args!("port {port_num}, key {pkey_be:#x}")))),
            }
        }
    }
    "IBVERBS_1.11" {
        /// `man ibv_query_gid_ex`.
        fn _ibv_query_gid_ex(
            context: *mut Context, port_num: u32, index: u32, entry: *mut GidEntry, flags: u32, entry_bytes: usize,
        ) -> c_int {
            if let Err(number) = check_entry(flags, entry_bytes) {
                return number;
            }
            // SAFETY: contract of `ibv_query_gid_ex` (man page): `context` is open.
            let of = unsafe { object(context) };
            let port = u8::try_from(port_num).ok().and_then(|port| of.provider.query_port(port).ok());
            // An index beyond the table, for which the kernel returns `EINVAL`; an empty entry has a different error.
            if port.is_none_or(|port| index >= port.gid_tbl_len) {
                return errno::refused(libc::EINVAL, format_args!("port {port_num}, index {index}"));
            }
            let table = gid_entries(of, port_num);
            match table.into_iter().find(|found| found.gid_index == index) {
                Some(found) => {
                    // SAFETY: contract of `ibv_query_gid_ex` (man page): `entry` is valid.
                    unsafe { entry.write(found) };
                    0
                }
                None => errno::refused(libc::ENODATA, format_args!("the entry is empty")),
            }
        }

        /// `man ibv_query_gid_table`: returns the number of entries, or a negative error number, also if there is no
        /// room for all.
        fn _ibv_query_gid_table(
            context: *mut Context, entries: *mut GidEntry, max_entries: usize, flags: u32, entry_bytes: usize,
        ) -> isize {
            if let Err(number) = check_entry(flags, entry_bytes) {
                return -(number as isize);
            }
            // SAFETY: contract of `ibv_query_gid_table` (man page): `context` is open.
            let table = gid_entries(unsafe { object(context) }, 1);
            // Like the kernel: an array that is too short is an error, and not filled with a part of the table.
            if table.len() > max_entries {
                let why = format_args!("{} entries, and room for {max_entries}", table.len());
                return -(errno::refused(libc::EINVAL, why) as isize);
            }
            for (at, entry) in table.iter().enumerate() {
                // SAFETY: contract of `ibv_query_gid_table` (man page): the array has `max_entries` elements of
                // `entry_bytes` bytes; the table has at most `max_entries` (checked above).
                unsafe { entries.byte_add(at * entry_bytes).write(*entry) };
            }
            table.len() as isize
        }
    }
}

// There are no kernel objects to import.
unsupported! {
    "IBVERBS_1.10" {
        Null: ibv_import_device ibv_import_pd ibv_import_mr;
        Nothing: ibv_unimport_pd ibv_unimport_mr;
    }
    "IBVERBS_1.13" {
        Null: ibv_import_dm;
        Nothing: ibv_unimport_dm;
    }
}

/// Checks that the format of a program's entries is supported.
fn check_entry(flags: u32, entry_bytes: usize) -> Result<(), c_int> {
    if flags == 0 && entry_bytes >= size_of::<GidEntry>() {
        return Ok(());
    }
    Err(errno::refused(libc::EINVAL, format_args!("flags {flags:#x}, entries of {entry_bytes} bytes")))
}

/// Returns the index of a network device; 0 if there is none with that name.
fn ifindex(netdev: &str) -> u32 {
    let name = std::ffi::CString::new(netdev).unwrap_or_default();
    // SAFETY: `name` is a C string that outlives the call.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Returns the table of a port; empty if there is no such port.
pub fn gid_entries(of: &ContextObject, port_num: u32) -> Vec<GidEntry> {
    let Ok(port) = u8::try_from(port_num) else { return Vec::new() };
    let table = of.provider.query_gid_table(port).unwrap_or_default();
    table
        .into_iter()
        .map(|entry| GidEntry {
            gid: entry.gid.0,
            gid_index: entry.index,
            port_num,
            gid_type: match entry.gid_type {
                GidType::RoceV1 => 1,
                GidType::RoceV2 => 2,
                _ => 0,
            },
            ndev_ifindex: entry.netdev.as_deref().map_or(0, ifindex),
        })
        .collect()
}
