//! The device and its context, which a program opens.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use farcall_shm::readiness::LEN_BYTES;
use farcall_shm::{raise_descriptor_limit, trusted_variable};
use farcall_verbs::{
    Access, AddressHandle, AhAttr, AsyncEvent, CompChannel, Context, CqInitAttr, Device, DeviceAttr, Error,
    Gid, GidEntry, GidType, LinkLayer, MrMemory, Mtu, OpCaps, PortAttr, PortState, ProtectionDomain,
    Provider, QpInitAttr, QpType, RawCq, RawMr, RawQp, RawSrq, Result, SrqInitAttr, with_sources,
};

use super::captured::Captured;
use super::channel::Channel;
use super::cq::Cq;
use super::datagram::{DatagramQp, SoftAddressHandle};
use super::limits::{AH_MAX, PD_MAX, SRQ_MAX, cq_max, qp_max};
use super::mr::{MAX_MR_BYTES, Mr};
use super::qp::Qp;
use super::srq::Srq;
use super::{PORT, require_port};
use crate::NAME;
use crate::process::addresses::TransportPolicy;
use crate::process::regions::MAX_REGIONS;
use crate::process::rendezvous::authorize_user;
use crate::process::{Entry, gid_entries};
use crate::shm_transport::cq::CqCore;
use crate::shm_transport::events::Events;
use crate::shm_transport::qp::{MAX_INLINE_BYTES, MAX_SGE, MAX_WR};
use crate::shm_transport::srq::SrqCore;
use crate::shm_transport::{ObjectKind, ObjectReservation, ShmTransport};

/// Maximum number of completions that a program may request for a queue. A queue delivers as many as its queue pairs
/// produce, regardless of that number, but programs use it in computations.
const MAX_CQE: u32 = (1 << 22) - 1;

/// Environment variable with the name of the device.
const NAME_VARIABLE: &str = "FARCALL_DEVICE";

const DEFAULT_NAME: &str = "softnic0";

/// The software RNIC of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftNic {
    moved_bytes_max: u64,
}

impl SoftNic {
    /// Creates the provider. Nothing is allocated before a device is opened.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a provider whose devices move up to `bytes_max` bytes of registered memory (`reg_mr`) in place to a
    /// memfd that peers can map, which is faster to access than memory left as it was. Only complete pages of private
    /// anonymous memory are moved, and only while the process has a single thread. Other memory remains usable as
    /// before. The option must not be used by a program that forks without the handlers of `fork(3)`, or that lets the
    /// kernel write to such memory while it registers it.
    pub fn moving_registered_memory(self, bytes_max: u64) -> Self {
        Self { moved_bytes_max: bytes_max }
    }

    /// Returns the GID table that the device has on this host, without opening it. Processes with equal tables reach
    /// each other.
    pub fn gid_table() -> Vec<GidEntry> {
        gid_entries().map(Self::entries).unwrap_or_default()
    }

    /// Returns a description of the transports to this host and to other hosts.
    pub fn transports() -> String {
        match TransportPolicy::configured() {
            Ok(TransportPolicy::Auto) => {
                "this host by shared memory (inter-process communication, not a network), other \
                                    hosts by RoCEv2 on UDP port 4791"
                    .into()
            }
            Ok(TransportPolicy::SharedMemory) => {
                "this host only, by shared memory (FARCALL_TRANSPORT=shared-memory)".into()
            }
            Ok(TransportPolicy::RoCE) => "by RoCEv2 on UDP port 4791 only (FARCALL_TRANSPORT=roce)".into(),
            Err(error) => with_sources(&error),
        }
    }

    fn entries(table: Vec<Entry>) -> Vec<GidEntry> {
        let entry = |Entry { index, gid, netdev }| GidEntry {
            index,
            gid,
            gid_type: GidType::RoceV2,
            netdev: Some(netdev),
        };
        table.into_iter().map(entry).collect()
    }

    /// Returns the name of the device: `softnic0`, or the value of FARCALL_DEVICE, for programs that expect a certain
    /// name.
    ///
    /// # Errors
    /// Returns an error if the value is no valid device name.
    pub fn device_name() -> Result<String> {
        const LEN_MAX: usize = 63;
        let Some(name) = trusted_variable(NAME_VARIABLE) else { return Ok(DEFAULT_NAME.to_owned()) };
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_-".contains(&b);
        match name.to_str().filter(|name| (1..=LEN_MAX).contains(&name.len()) && name.bytes().all(is_plain)) {
            Some(name) => Ok(name.to_owned()),
            None => {
                let what =
                    format!("{NAME_VARIABLE}={name:?}: a name has 1 to {LEN_MAX} letters, digits, _ and -");
                Err(Error::invalid("name the device", what))
            }
        }
    }

    /// Opens the provider's only device.
    ///
    /// # Errors
    /// Returns an error if the system refuses sockets, memory or a thread; the message names the resource and the
    /// remedy.
    pub fn open() -> Result<Arc<dyn Context>> {
        SoftDevice::new(0)?.open()
    }
}

impl Provider for SoftNic {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        Ok(vec![Arc::new(SoftDevice::new(self.moved_bytes_max)?)])
    }
}

struct SoftDevice {
    name: String,
    moved_bytes_max: u64,
}

impl SoftDevice {
    fn new(moved_bytes_max: u64) -> Result<Self> {
        Ok(Self { name: SoftNic::device_name()?, moved_bytes_max })
    }
}

impl Device for SoftDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn provider(&self) -> &'static str {
        NAME
    }

    fn open(&self) -> Result<Arc<dyn Context>> {
        raise_descriptor_limit();
        let (shm, events) = (ShmTransport::get()?, Arc::new(Events::default()));
        let (captured, moved_bytes_max) = (Captured::of(&shm), self.moved_bytes_max);
        Ok(Arc::new(SoftContext { shm, events, captured, moved_bytes_max }))
    }
}

struct SoftContext {
    shm: Arc<ShmTransport>,
    events: Arc<Events>,
    captured: Option<Arc<Captured>>,
    moved_bytes_max: u64,
}

impl Context for SoftContext {
    fn query_device(&self) -> Result<DeviceAttr> {
        self.shm.core.process.require_here("query_device")?;
        let gid = self.shm.core.process.gids[0];
        let guid = u64::from_be_bytes(gid.0[8..].try_into().expect("eight bytes"));
        let mut attr = DeviceAttr::new(guid);
        attr.fw_ver = env!("CARGO_PKG_VERSION").into();
        attr.max_qp = qp_max();
        attr.max_qp_wr = MAX_WR;
        attr.max_sge = MAX_SGE as u32;
        attr.max_cq = cq_max();
        attr.max_cqe = MAX_CQE;
        attr.max_mr = MAX_REGIONS as u32;
        attr.max_mr_size = MAX_MR_BYTES;
        attr.max_inline_data = MAX_INLINE_BYTES;
        attr.max_qp_rd_atom = 128;
        attr.max_srq = SRQ_MAX;
        attr.max_pd = PD_MAX;
        attr.max_ah = AH_MAX;
        attr.max_srq_wr = MAX_WR;
        attr.max_srq_sge = MAX_SGE as u32;
        attr.rc = QpType::Rc.operations() | OpCaps::SRQ;
        attr.uc = QpType::Uc.operations();
        attr.ud = QpType::Ud.operations() | OpCaps::SRQ;
        Ok(attr)
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        require_port("query_port", port_num)?;
        Ok(PortAttr {
            state: PortState::Active,
            max_mtu: Mtu::Mtu4096,
            active_mtu: self.shm.core.process.port_mtu(),
            gid_tbl_len: self.shm.core.process.table.len() as u32,
            lid: 0,
            link_layer: LinkLayer::Ethernet,
        })
    }

    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid> {
        require_port("query_gid", port_num)?;
        let table = &self.shm.core.process.table;
        table.refresh();
        let entry_count = table.len();
        let Some(index) = usize::try_from(index).ok().filter(|index| *index < entry_count) else {
            let what = format!("entry {index}; the port has {entry_count}, from 0");
            return Err(Error::invalid("query_gid", what));
        };
        let gid = table.get(index);
        self.shm.core.process.on_gid_query(gid);
        Ok(gid)
    }

    fn query_gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        require_port("query_gid_table", port_num)?;
        let table = &self.shm.core.process.table;
        table.refresh();
        Ok(SoftNic::entries(table.entries()))
    }

    fn gid_now(&self, chosen: &GidEntry) -> GidEntry {
        if self.shm.core.process.is_reached_by(chosen.gid) {
            return chosen.clone();
        }
        self.choose_gid(PORT).map_or_else(|_| chosen.clone(), |choice| choice.entry)
    }

    fn check_user(&self, user: u32) -> Result<()> {
        authorize_user(user)
    }

    fn check_owner(&self, gid: Gid, qp_num: u32) -> Result<()> {
        const OP: &str = "check the owner of a queue pair";
        self.shm.core.process.require_here(OP)?;
        // Processes of other hosts cannot be checked.
        if self.shm.core.process.is_remote_path(OP, gid, qp_num)? {
            Ok(())
        } else {
            self.shm.core.process.authorize_qp_owner(qp_num)
        }
    }

    fn carries_to(&self, gid: Gid, qp_num: u32) -> bool {
        self.shm.core.process.carries_to(gid, qp_num)
    }

    fn whole_mtu(&self) -> Option<Mtu> {
        self.shm.core.process.whole_mtu()
    }

    fn check_connection(&self, own: IpAddr, peer: IpAddr) -> Result<()> {
        self.shm.core.process.check_connection("connect over TCP", own, peer)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>> {
        self.shm.core.process.require_here("alloc_pd")?;
        let reservation =
            ObjectReservation::new(&self.shm.object_counts, ObjectKind::Domain, "alloc_pd", PD_MAX)?;
        Ok(Arc::new(Domain {
            number: self.shm.core.process.next_number(),
            shm: self.shm.clone(),
            events: self.events.clone(),
            captured: self.captured.clone(),
            moved_bytes_max: self.moved_bytes_max,
            _reservation: reservation,
        }))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>> {
        self.shm.core.process.require_here("create_comp_channel")?;
        Ok(Arc::new(Channel::new()?))
    }

    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<Box<dyn RawCq>> {
        self.shm.core.process.require_here("create_cq")?;
        if !(1..=MAX_CQE).contains(&attr.cqe) {
            let what = format!("cqe {}; a queue holds 1 to {MAX_CQE} completions", attr.cqe);
            return Err(Error::invalid("create_cq", what));
        }
        let channel = match attr.channel.map(|channel| channel.as_any().downcast_ref::<Channel>()) {
            Some(None) => {
                return Err(Error::invalid("create_cq", "the completion channel is of another provider"));
            }
            channel => channel.flatten(),
        };
        let waker = channel.map(|channel| channel.waker.clone());
        let reservation = ObjectReservation::new(
            &self.shm.object_counts,
            ObjectKind::CompletionQueue,
            "create_cq",
            cq_max(),
        )?;
        let memory = self.shm.queue_memory.allocate(LEN_BYTES, LEN_BYTES)?;
        let core = CqCore::new(self.shm.core.process.next_number(), waker, memory);
        if let Some(channel) = channel {
            channel.attach(&core);
            self.shm.add_sleeper(&core);
        }
        let queue = Box::new(Cq::new(&self.shm, core, reservation));
        Ok(match &self.captured {
            None => queue,
            Some(captured) => captured.queue(queue),
        })
    }

    fn async_event_fd(&self) -> Option<RawFd> {
        self.events.fd()
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.events.take()
    }
}

struct Domain {
    shm: Arc<ShmTransport>,
    /// Events of the device on which it was created.
    events: Arc<Events>,
    captured: Option<Arc<Captured>>,
    number: u32,
    moved_bytes_max: u64,
    _reservation: ObjectReservation,
}

impl ProtectionDomain for Domain {
    fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        self.shm.core.process.require_here("alloc_mr")?;
        Ok(Box::new(Mr::allocate(&self.shm, self.number, len_bytes, access)?))
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        // SAFETY: the contract of this function is that of `reg_mr_at`.
        unsafe { self.reg_mr_at(MrMemory::new(addr, len_bytes), access) }
    }

    unsafe fn reg_mr_at(&self, memory: MrMemory, access: Access) -> Result<Box<dyn RawMr>> {
        self.shm.core.process.require_here("reg_mr")?;
        let (pd, bytes_max) = (self.number, self.moved_bytes_max);
        // SAFETY: the contract of this function is that of `Mr::register`.
        Ok(Box::new(unsafe { Mr::register(&self.shm, pd, memory, access, bytes_max)? }))
    }

    unsafe fn rereg_mr(
        &self,
        mr: &dyn RawMr,
        memory: Option<MrMemory>,
        access: Option<Access>,
    ) -> Result<Box<dyn RawMr>> {
        self.shm.core.process.require_here("rereg_mr")?;
        let mr = mr.as_any().downcast_ref::<Mr>();
        let mr = mr.ok_or_else(|| Error::invalid("rereg_mr", "the region is of another provider"))?;
        let same = || MrMemory::new(mr.addr(), mr.len_bytes()).named_from(mr.remote_addr());
        let (memory, access) = (memory.unwrap_or_else(same), access.unwrap_or(mr.access()));
        let (pd, bytes_max) = (self.number, self.moved_bytes_max);
        // SAFETY: the contract of this function is that of `Mr::reregister`.
        Ok(Box::new(unsafe { mr.reregister(&self.shm, pd, memory, access, bytes_max)? }))
    }

    fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Box<dyn RawQp>> {
        self.shm.core.process.require_here("create_qp")?;
        let pair: Box<dyn RawQp> = match attr.qp_type {
            QpType::Ud => Box::new(DatagramQp::create(&self.shm, &self.events, self.number, attr)?),
            _ => Box::new(Qp::create(&self.shm, &self.events, self.number, attr)?),
        };
        Ok(match &self.captured {
            None => pair,
            Some(captured) => captured.queue_pair(pair, self.number, attr),
        })
    }

    fn create_srq(&self, attr: &SrqInitAttr) -> Result<Box<dyn RawSrq>> {
        self.shm.core.process.require_here("create_srq")?;
        let reservation =
            ObjectReservation::new(&self.shm.object_counts, ObjectKind::ReceiveQueue, "create_srq", SRQ_MAX)?;
        Ok(Box::new(Srq::new(SrqCore::new(&self.shm.core, &self.events, self.number, attr)?, reservation)))
    }

    fn create_ah(&self, attr: &AhAttr) -> Result<Box<dyn AddressHandle>> {
        self.shm.core.process.require_here("create_ah")?;
        let reservation =
            ObjectReservation::new(&self.shm.object_counts, ObjectKind::AddressHandle, "create_ah", AH_MAX)?;
        let handle = Box::new(SoftAddressHandle::create(&self.shm, self.number, attr, reservation)?);
        Ok(match &self.captured {
            None => handle,
            Some(captured) => captured.address_handle(handle, attr),
        })
    }
}
