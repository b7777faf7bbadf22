//! An opened device.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use farcall_verbs::{
    AsyncEvent, CompChannel, Context, CqInitAttr, DeviceAttr, Error, Gid, GidChoice, GidEntry, LinkLayer,
    Mtu, OpCaps, PortAttr, PortState, ProtectionDomain, RawCq, Result,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::abi;
use crate::channel::Channel;
use crate::cq::Cq;
use crate::domain::{Domain, Pd};
use crate::library::Library;
use crate::{event, fault, gid_table, probe};

/// What every object of the device keeps alive.
pub(crate) struct OpenDevice {
    pub(crate) library: &'static Library,
    raw: NonNull<abi::Context>,
    pub(crate) name: String,
    next_id: AtomicU32,
}

// SAFETY: libibverbs' objects may be used from any thread at once; the fields read here are constant after opening.
unsafe impl Send for OpenDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenDevice {}

impl OpenDevice {
    pub(crate) fn new(library: &'static Library, raw: NonNull<abi::Context>, name: String) -> Self {
        Self { library, raw, name, next_id: AtomicU32::new(1) }
    }

    pub(crate) fn as_ptr(&self) -> *mut abi::Context {
        self.raw.as_ptr()
    }

    /// Its functions.
    pub(crate) fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the context lives as long as `self`, and nobody changes its table after opening.
        unsafe { &(*self.raw.as_ptr()).ops }
    }

    /// Whether it is an iWARP device, which only the connection manager can connect.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: the context keeps its device alive.
        unsafe { (*(*self.raw.as_ptr()).device).transport_type == abi::TRANSPORT_IWARP }
    }

    fn async_fd(&self) -> RawFd {
        // SAFETY: the context lives as long as `self`.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }

    /// A number for a queue of this device.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: opened by `open_device`; every object made of it held a reference to `self` and is gone.
        fault::note_destroy("device context", unsafe { (self.library.close_device)(self.raw.as_ptr()) });
    }
}

/// Makes a descriptor of the library's non-blocking, as the traits promise.
pub(crate) fn set_non_blocking(fd: RawFd) -> Result<()> {
    // SAFETY: the caller owns the object whose descriptor this is.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl_getfl(fd)
        .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|errno| Error::os("fcntl", "make an event descriptor non-blocking", errno))
}

pub(crate) struct IbvContext {
    open: Arc<OpenDevice>,
    attr: OnceLock<DeviceAttr>,
    /// What its user told us to take.
    gid_index: Option<u32>,
}

impl IbvContext {
    pub(crate) fn new(open: OpenDevice, gid_index: Option<u32>) -> Result<Self> {
        set_non_blocking(open.async_fd())?;
        Ok(Self { open: Arc::new(open), attr: OnceLock::new(), gid_index })
    }

    fn ask_device(&self) -> Result<DeviceAttr> {
        let mut raw = MaybeUninit::<abi::DeviceAttr>::zeroed();
        // SAFETY: the function fills in the structure, for which all zeroes are valid.
        let returned = unsafe { (self.open.library.query_device)(self.open.as_ptr(), raw.as_mut_ptr()) };
        fault::check(returned)
            .map_err(|source| Error::os("query_device", format!("device {}", self.open.name), source))?;
        // SAFETY: plain data, zeroed and then filled in.
        let raw = unsafe { raw.assume_init() };
        let probed = probe::of_device(&self.open, raw.node_guid)?;
        Ok(translate_device(&raw, &probed))
    }
}

fn count(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn translate_device(raw: &abi::DeviceAttr, probed: &probe::Probed) -> DeviceAttr {
    let mut attr = DeviceAttr::new(u64::from_be(raw.node_guid));
    // SAFETY: the array is a C string (the library terminates it; the structure was zeroed).
    attr.fw_ver = unsafe { CStr::from_ptr(raw.fw_ver.as_ptr()) }.to_string_lossy().into_owned();
    attr.max_qp = count(raw.max_qp);
    attr.max_qp_wr = count(raw.max_qp_wr);
    attr.max_sge = count(raw.max_sge);
    attr.max_cq = count(raw.max_cq);
    attr.max_cqe = count(raw.max_cqe);
    attr.max_mr = count(raw.max_mr);
    attr.max_mr_size = raw.max_mr_size;
    attr.max_inline_data = probed.inline_max_bytes;
    let rd_atom = raw.max_qp_rd_atom.min(raw.max_qp_init_rd_atom);
    attr.max_qp_rd_atom = u8::try_from(rd_atom.max(0)).unwrap_or(u8::MAX);
    attr.phys_port_cnt = raw.phys_port_cnt;
    attr.max_srq = count(raw.max_srq);
    attr.max_srq_wr = count(raw.max_srq_wr);
    attr.max_srq_sge = count(raw.max_srq_sge);
    let srq = if raw.max_srq > 0 { OpCaps::SRQ } else { OpCaps::empty() };
    let atomic = if raw.atomic_cap != 0 { OpCaps::ATOMIC } else { OpCaps::empty() };
    let messages = OpCaps::SEND | OpCaps::SEND_IMM;
    let writes = OpCaps::WRITE | OpCaps::WRITE_IMM;
    let if_made = |is_made: bool, caps: OpCaps| if is_made { caps } else { OpCaps::empty() };
    attr.rc = if_made(probed.rc, messages | writes | OpCaps::READ | atomic | srq);
    attr.uc = if_made(probed.uc, messages | writes);
    attr.ud = if_made(probed.ud, messages | srq);
    attr
}

fn mtu(code: c_int) -> Mtu {
    match code {
        2 => Mtu::Mtu512,
        3 => Mtu::Mtu1024,
        4 => Mtu::Mtu2048,
        5.. => Mtu::Mtu4096,
        _ => Mtu::Mtu256,
    }
}

fn port_state(code: c_int) -> PortState {
    match code {
        2 => PortState::Init,
        3 => PortState::Armed,
        4 => PortState::Active,
        _ => PortState::Down,
    }
}

impl Context for IbvContext {
    fn query_device(&self) -> Result<DeviceAttr> {
        if let Some(attr) = self.attr.get() {
            return Ok(attr.clone());
        }
        let attr = self.ask_device()?;
        Ok(self.attr.get_or_init(|| attr).clone())
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        let mut raw = MaybeUninit::<abi::PortAttr>::zeroed();
        // SAFETY: the function fills in the structure or the older beginning of it; all zeroes are valid.
        let returned =
            unsafe { (self.open.library.query_port)(self.open.as_ptr(), port_num, raw.as_mut_ptr()) };
        fault::check(returned).map_err(|source| {
            Error::os(
                "query_port",
                format!("port {port_num} of {}; ports count from 1", self.open.name),
                source,
            )
        })?;
        // SAFETY: plain data, zeroed and then filled in.
        let raw = unsafe { raw.assume_init() };
        let is_ethernet = raw.link_layer == 2 || self.open.is_iwarp();
        Ok(PortAttr {
            state: port_state(raw.state),
            max_mtu: mtu(raw.max_mtu),
            active_mtu: mtu(raw.active_mtu),
            gid_tbl_len: count(raw.gid_tbl_len),
            lid: raw.lid,
            link_layer: if is_ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
        })
    }

    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid> {
        let mut gid = Gid::default();
        let at = c_int::try_from(index)
            .map_err(|_| Error::invalid("query_gid", format!("index {index} is in no table")))?;
        // SAFETY: the function fills in the 16 bytes.
        let returned =
            unsafe { (self.open.library.query_gid)(self.open.as_ptr(), port_num, at, &raw mut gid) };
        fault::check(returned).map_err(|source| {
            Error::os("query_gid", format!("entry {index} of port {port_num} of {}", self.open.name), source)
        })?;
        Ok(gid)
    }

    fn query_gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        let port = self.query_port(port_num)?;
        let shape = (port.link_layer, port.gid_tbl_len);
        Ok(gid_table::read(&self.open.name, port_num, shape, |index| self.query_gid(port_num, index).ok()))
    }

    fn choose_gid(&self, port_num: u8) -> Result<GidChoice> {
        let table = self.query_gid_table(port_num)?;
        match self.gid_index {
            Some(index) => GidChoice::at(index, table),
            None => GidChoice::automatic(self.query_port(port_num)?.link_layer, table),
        }
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>> {
        Ok(Arc::new(Domain(Arc::new(Pd::new(&self.open)?))))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>> {
        Ok(Arc::new(Channel::new(&self.open)?))
    }

    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<Box<dyn RawCq>> {
        Ok(Box::new(Cq::new(&self.open, attr)?))
    }

    fn async_event_fd(&self) -> Option<RawFd> {
        Some(self.open.async_fd())
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        event::next(&self.open)
    }
}
