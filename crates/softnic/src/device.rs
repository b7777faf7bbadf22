//! The device and its context: what a program opens.

use std::os::fd::RawFd;
use std::sync::Arc;

use farcall_verbs::{
    Access, AddressHandle, AhAttr, AsyncEvent, CompChannel, Context, CqInitAttr, Device, DeviceAttr, Error,
    Gid, LinkLayer, Mtu, OpCaps, PortAttr, PortState, ProtectionDomain, Provider, QpInitAttr, QpType, RawCq,
    RawMr, RawQp, RawSrq, Result, SrqInitAttr,
};

use crate::NAME;
use crate::channel::Channel;
use crate::cq::{Cq, CqCore};
use crate::datagram::{DatagramQp, SoftAddressHandle};
use crate::events::Events;
use crate::mr::Mr;
use crate::process::Process;
use crate::qp::{Connected, MAX_INLINE_BYTES, MAX_SGE, MAX_WR, Qp};
use crate::regions::MAX_REGIONS;
use crate::rendezvous::gid;
use crate::srq::Srq;

/// Completions that a queue may be asked to hold. It holds as many as its queue pairs can produce, whatever was asked for; but
/// programs compute with this number.
const MAX_CQE: u32 = (1 << 22) - 1;

/// The software RNIC of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftNic {
    moved_bytes_max: u64,
}

impl SoftNic {
    /// The provider. Nothing is allocated before a device is opened.
    pub fn new() -> Self {
        Self::default()
    }

    /// With devices that move up to `bytes_max` of the memory that this process registers (`reg_mr`) to where peers can map
    /// it, in place: faster to reach than memory left as it was. Only whole pages of private anonymous memory, and only
    /// while the program has a single thread; what is not moved works as ever. A program that forks without the handlers
    /// of `fork(3)`, or has the kernel write to such memory while it registers it, must not ask for this.
    pub fn moving_registered_memory(self, bytes_max: u64) -> Self {
        Self { moved_bytes_max: bytes_max }
    }

    fn device(self) -> SoftDevice {
        SoftDevice { moved_bytes_max: self.moved_bytes_max }
    }

    /// The GID that the device has here, without opening it: processes with the same one reach each other.
    pub fn gid() -> Gid {
        gid()
    }

    /// Opens its one device.
    ///
    /// # Errors
    /// If the system refuses sockets, memory or a thread; the text says which and what to do.
    pub fn open() -> Result<Arc<dyn Context>> {
        Self::new().device().open()
    }
}

impl Provider for SoftNic {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        Ok(vec![Arc::new(self.device())])
    }
}

struct SoftDevice {
    moved_bytes_max: u64,
}

impl Device for SoftDevice {
    fn name(&self) -> &str {
        "softnic0"
    }

    fn provider(&self) -> &'static str {
        NAME
    }

    fn open(&self) -> Result<Arc<dyn Context>> {
        let (process, events) = (Process::get()?, Arc::new(Events::new()?));
        Ok(Arc::new(SoftContext { process, events, moved_bytes_max: self.moved_bytes_max }))
    }
}

struct SoftContext {
    process: Arc<Process>,
    events: Arc<Events>,
    moved_bytes_max: u64,
}

fn require_port(operation: &'static str, port_num: u8) -> Result<()> {
    if port_num == 1 {
        Ok(())
    } else {
        Err(Error::invalid(operation, format!("port {port_num}; the device has port 1")))
    }
}

impl Context for SoftContext {
    fn query_device(&self) -> Result<DeviceAttr> {
        self.process.require_here("query_device")?;
        let gid = self.process.gid();
        let guid = u64::from_be_bytes(gid.0[8..].try_into().expect("eight bytes"));
        let mut attr = DeviceAttr::new(guid);
        attr.fw_ver = env!("CARGO_PKG_VERSION").into();
        attr.max_qp = 1 << 20;
        attr.max_qp_wr = MAX_WR;
        attr.max_sge = MAX_SGE as u32;
        attr.max_cq = 1 << 16;
        attr.max_cqe = MAX_CQE;
        attr.max_mr = MAX_REGIONS as u32;
        attr.max_mr_size = 1 << 40;
        attr.max_inline_data = MAX_INLINE_BYTES;
        attr.max_qp_rd_atom = 128;
        attr.max_srq = 1 << 16;
        attr.max_srq_wr = MAX_WR;
        attr.max_srq_sge = MAX_SGE as u32;
        attr.rc = Connected::Reliable.ops();
        attr.uc = Connected::Unreliable.ops();
        attr.ud = OpCaps::SEND | OpCaps::SEND_IMM | OpCaps::SRQ;
        Ok(attr)
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        require_port("query_port", port_num)?;
        Ok(PortAttr {
            state: PortState::Active,
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::Mtu4096,
            gid_tbl_len: 1,
            lid: 0,
            link_layer: LinkLayer::Ethernet,
        })
    }

    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid> {
        require_port("query_gid", port_num)?;
        if index == 0 {
            Ok(self.process.gid())
        } else {
            Err(Error::invalid("query_gid", format!("entry {index} of 1")))
        }
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>> {
        self.process.require_here("alloc_pd")?;
        let (process, events) = (self.process.clone(), self.events.clone());
        let moved_bytes_max = self.moved_bytes_max;
        Ok(Arc::new(Domain { number: process.next_pd(), process, events, moved_bytes_max }))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>> {
        self.process.require_here("create_comp_channel")?;
        Ok(Arc::new(Channel::new()?))
    }

    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<Box<dyn RawCq>> {
        self.process.require_here("create_cq")?;
        if !(1..=MAX_CQE).contains(&attr.cqe) {
            let what = format!("cqe {}; a queue holds 1 to {MAX_CQE} completions", attr.cqe);
            return Err(Error::invalid("create_cq", what));
        }
        let channel = match attr.channel {
            None => None,
            Some(channel) => Some(channel.as_any().downcast_ref::<Channel>().ok_or_else(|| {
                Error::invalid("create_cq", "the completion channel is of another provider")
            })?),
        };
        let core = CqCore::new(self.process.next_cq(), channel)?;
        if channel.is_some() {
            self.process.add_sleeper(&core);
        }
        Ok(Box::new(Cq::new(core)))
    }

    fn async_event_fd(&self) -> Option<RawFd> {
        Some(self.events.fd())
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.events.take()
    }
}

struct Domain {
    process: Arc<Process>,
    /// Of the device that it was made on.
    events: Arc<Events>,
    number: u32,
    moved_bytes_max: u64,
}

impl ProtectionDomain for Domain {
    fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        self.process.require_here("alloc_mr")?;
        Ok(Box::new(Mr::allocate(&self.process, self.number, len_bytes, access)?))
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        self.process.require_here("reg_mr")?;
        let (pd, bytes_max) = (self.number, self.moved_bytes_max);
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { Mr::register(&self.process, pd, addr, len_bytes, access, bytes_max)? }))
    }

    unsafe fn rereg_mr(
        &self,
        mr: &dyn RawMr,
        memory: Option<(*mut u8, usize)>,
        access: Option<Access>,
    ) -> Result<Box<dyn RawMr>> {
        self.process.require_here("rereg_mr")?;
        let mr = mr.as_any().downcast_ref::<Mr>();
        let mr = mr.ok_or_else(|| Error::invalid("rereg_mr", "the region is of another provider"))?;
        let (memory, access) = (memory.unwrap_or((mr.addr(), mr.len_bytes())), access.unwrap_or(mr.access()));
        let (pd, bytes_max) = (self.number, self.moved_bytes_max);
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { mr.register_anew(&self.process, pd, memory, access, bytes_max)? }))
    }

    fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Box<dyn RawQp>> {
        self.process.require_here("create_qp")?;
        Ok(match attr.qp_type {
            QpType::Ud => Box::new(DatagramQp::create(&self.process, &self.events, self.number, attr)?),
            _ => Box::new(Qp::create(&self.process, &self.events, self.number, attr)?),
        })
    }

    fn create_srq(&self, attr: &SrqInitAttr) -> Result<Box<dyn RawSrq>> {
        self.process.require_here("create_srq")?;
        Ok(Box::new(Srq::create(&self.process, &self.events, self.number, attr)?))
    }

    fn create_ah(&self, attr: &AhAttr) -> Result<Box<dyn AddressHandle>> {
        self.process.require_here("create_ah")?;
        Ok(Box::new(SoftAddressHandle::create(&self.process, self.number, attr)?))
    }
}
