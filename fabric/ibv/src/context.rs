//! An opened device.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};

use farcall_verbs::{
    AsyncEvent, CompChannel, Context, CqInitAttr, DeviceAttr, Error, Gid, GidChoice, GidEntry, LinkLayer,
    Mtu, OpCaps, PortAttr, PortState, ProtectionDomain, RawCq, Result,
};

use crate::channel::Channel;
use crate::cq::Cq;
use crate::domain::Domain;
use crate::open_device::{OpenDevice, set_non_blocking};
use crate::pd::Pd;
use crate::{event, fault, gid_table, probe};
use farcall_layout as abi;

pub(crate) struct IbvContext {
    open: Arc<OpenDevice>,
    attr: OnceLock<DeviceAttr>,
    /// Configured GID index.
    gid_index: Option<u32>,
}

impl IbvContext {
    pub(crate) fn new(open: OpenDevice, gid_index: Option<u32>) -> Result<Self> {
        set_non_blocking(open.async_fd())?;
        Ok(Self { open: Arc::new(open), attr: OnceLock::new(), gid_index })
    }

    fn ask_device(&self) -> Result<DeviceAttr> {
        let mut raw = MaybeUninit::<abi::DeviceAttr>::zeroed();
        // SAFETY: the function fills in the structure, for which all zeros are valid; the device is open.
        let returned = unsafe { (self.open.library.query_device)(self.open.as_ptr(), raw.as_mut_ptr()) };
        fault::check(returned)
            .map_err(|source| Error::os("query_device", format!("device {}", self.open.name), source))?;
        // SAFETY: the structure is plain data that was zeroed and then filled in.
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
    // SAFETY: the array contains a C string: the library terminates it, and the structure was zeroed.
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
    attr.max_pd = count(raw.max_pd);
    attr.max_ah = count(raw.max_ah);
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

/// Returns the MTU with libibverbs' number; the smallest for unknown numbers.
fn mtu(code: c_int) -> Mtu {
    Mtu::from_raw(count(code).min(Mtu::Mtu4096 as u32)).unwrap_or(Mtu::Mtu256)
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
        let mut raw = abi::PortAttr::default();
        // SAFETY: the function fills in the structure, or only its older beginning; the device is open.
        let returned = unsafe { (self.open.library.query_port)(self.open.as_ptr(), port_num, &raw mut raw) };
        fault::check(returned).map_err(|source| {
            Error::os(
                "query_port",
                format!("port {port_num} of {}; ports count from 1", self.open.name),
                source,
            )
        })?;
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
        // SAFETY: the function writes the 16 bytes of `gid`; the device is open.
        let returned =
            unsafe { (self.open.library.query_gid)(self.open.as_ptr(), port_num, at, &raw mut gid.0) };
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
