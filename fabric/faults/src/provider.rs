//! Devices, contexts and domains that create objects with faults, and forward all other calls.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use farcall_verbs::{
    Access, AddressHandle, AhAttr, AsyncEvent, CompChannel, Context, CqInitAttr, Device, DeviceAttr, Error,
    Gid, GidChoice, GidEntry, MrMemory, Mtu, PortAttr, ProtectionDomain, Provider, QpInitAttr, RawCq, RawMr,
    RawQp, RawSrq, Result, SrqInitAttr,
};

use crate::channel::FaultyChannel;
use crate::cq::{Core, FaultyCq, Locked};
use crate::events::Events;
use crate::plan::{Faults, Kind, Plan};
use crate::qp::FaultyQp;
use crate::qp_state::FaultyQpStates;

pub(crate) struct FaultyProvider<P> {
    pub(crate) inner: P,
    pub(crate) faults: Faults,
}

impl Faults {
    /// Wraps a provider so that its devices have faults.
    pub fn around_all<P: Provider>(&self, inner: P) -> impl Provider + use<P> {
        FaultyProvider { inner, faults: self.clone() }
    }

    /// Wraps a device so that it has faults.
    pub fn around(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(FaultyDevice { device, plan: self.plan().clone() })
    }
}

impl<P: Provider> Provider for FaultyProvider<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        let devices = self.inner.devices()?;
        Ok(devices.into_iter().map(|device| self.faults.around(device)).collect())
    }
}

pub(crate) struct FaultyDevice {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) plan: Arc<Plan>,
}

impl Device for FaultyDevice {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn provider(&self) -> &'static str {
        self.device.provider()
    }

    fn open(&self) -> Result<Arc<dyn Context>> {
        let inner = self.device.open()?;
        let events = Arc::new(Events::new(&*inner)?);
        Ok(Arc::new(FaultyContext { inner, plan: self.plan.clone(), qp_states: Arc::default(), events }))
    }
}

struct FaultyContext {
    inner: Arc<dyn Context>,
    plan: Arc<Plan>,
    qp_states: Arc<FaultyQpStates>,
    events: Arc<Events>,
}

impl Context for FaultyContext {
    fn query_device(&self) -> Result<DeviceAttr> {
        self.inner.query_device()
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        self.inner.query_port(port_num)
    }

    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid> {
        self.inner.query_gid(port_num, index)
    }

    fn query_gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        self.inner.query_gid_table(port_num)
    }

    fn choose_gid(&self, port_num: u8) -> Result<GidChoice> {
        self.inner.choose_gid(port_num)
    }

    fn gid_now(&self, chosen: &GidEntry) -> GidEntry {
        self.inner.gid_now(chosen)
    }

    fn check_user(&self, user: u32) -> Result<()> {
        self.inner.check_user(user)
    }

    fn check_owner(&self, gid: Gid, qp_num: u32) -> Result<()> {
        self.inner.check_owner(gid, qp_num)
    }

    fn carries_to(&self, gid: Gid, qp_num: u32) -> bool {
        self.inner.carries_to(gid, qp_num)
    }

    fn whole_mtu(&self) -> Option<Mtu> {
        self.inner.whole_mtu()
    }

    fn check_connection(&self, own: IpAddr, peer: IpAddr) -> Result<()> {
        self.inner.check_connection(own, peer)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>> {
        let inner = self.inner.alloc_pd()?;
        let (plan, qp_states, events) = (self.plan.clone(), self.qp_states.clone(), self.events.clone());
        Ok(Arc::new(FaultyDomain { inner, plan, qp_states, events }))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>> {
        Ok(Arc::new(FaultyChannel::new(self.inner.create_comp_channel()?)?))
    }

    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<Box<dyn RawCq>> {
        self.plan.admit(Kind::CreateCq, "create_cq")?;
        let channel = match attr.channel {
            None => None,
            Some(channel) => Some(channel.as_any().downcast_ref::<FaultyChannel>().ok_or_else(|| {
                Error::invalid("create_cq", "the completion channel is of another provider")
            })?),
        };
        let through = channel.map(FaultyChannel::inner);
        let inner = self.inner.create_cq(&CqInitAttr { cqe: attr.cqe, channel: through })?;
        let due = channel.map(|channel| channel.due().clone());
        let core = Arc::new(Core::new(inner, &self.plan, &self.qp_states, due));
        if let Some(channel) = channel {
            channel.attach(&core);
        }
        Ok(Box::new(FaultyCq { core }))
    }

    fn async_event_fd(&self) -> Option<RawFd> {
        Some(self.events.fd())
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.events.take().or_else(|| self.inner.poll_async_event())
    }
}

struct FaultyDomain {
    inner: Arc<dyn ProtectionDomain>,
    plan: Arc<Plan>,
    qp_states: Arc<FaultyQpStates>,
    events: Arc<Events>,
}

/// Returns the wrapper state of a completion queue for a new queue pair.
fn core_of(cq: &dyn RawCq) -> Result<Arc<Core>> {
    let ours = cq.as_any().downcast_ref::<FaultyCq>();
    let ours =
        ours.ok_or_else(|| Error::invalid("create_qp", "a completion queue is of another provider"))?;
    Ok(ours.core.clone())
}

/// Locks both completion queues of a new queue pair, once if they are the same, and in one order for all threads.
fn lock_both<'a>(send: &'a Arc<Core>, recv: &'a Arc<Core>) -> (Locked<'a>, Option<Locked<'a>>) {
    if Arc::ptr_eq(send, recv) {
        return (send.lock(), None);
    }
    if Arc::as_ptr(send) < Arc::as_ptr(recv) {
        let send = send.lock();
        return (send, Some(recv.lock()));
    }
    let recv = recv.lock();
    (send.lock(), Some(recv))
}

impl ProtectionDomain for FaultyDomain {
    fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        self.plan.admit(Kind::RegMr, "alloc_mr")?;
        self.inner.alloc_mr(len_bytes, access)
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        self.plan.admit(Kind::RegMr, "reg_mr")?;
        // SAFETY: this function and the inner `reg_mr` have the same contract, and the arguments are unchanged.
        unsafe { self.inner.reg_mr(addr, len_bytes, access) }
    }

    unsafe fn reg_mr_at(&self, memory: MrMemory, access: Access) -> Result<Box<dyn RawMr>> {
        self.plan.admit(Kind::RegMr, "reg_mr")?;
        // SAFETY: this function and the inner `reg_mr_at` have the same contract, and the arguments are unchanged.
        unsafe { self.inner.reg_mr_at(memory, access) }
    }

    unsafe fn rereg_mr(
        &self,
        mr: &dyn RawMr,
        memory: Option<MrMemory>,
        access: Option<Access>,
    ) -> Result<Box<dyn RawMr>> {
        self.plan.admit(Kind::RegMr, "rereg_mr")?;
        // SAFETY: this function and the inner `rereg_mr` have the same contract, and the arguments are unchanged.
        unsafe { self.inner.rereg_mr(mr, memory, access) }
    }

    fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Box<dyn RawQp>> {
        self.plan.admit(Kind::CreateQp, "create_qp")?;
        let (send, recv) = (core_of(attr.send_cq)?, core_of(attr.recv_cq)?);
        let inner = {
            let (of_send, of_recv) = lock_both(&send, &recv);
            let send_cq = of_send.inner();
            let recv_cq = of_recv.as_ref().map_or(send_cq, Locked::inner);
            let QpInitAttr { srq, cap, qp_type, sq_sig_all, .. } = *attr;
            self.inner.create_qp(&QpInitAttr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all })?
        };
        let qp_states = (self.qp_states.clone(), self.events.clone());
        Ok(Box::new(FaultyQp::new(inner, &self.plan, qp_states, (send, recv), attr.sq_sig_all)))
    }

    fn create_srq(&self, attr: &SrqInitAttr) -> Result<Box<dyn RawSrq>> {
        self.inner.create_srq(attr)
    }

    fn create_ah(&self, attr: &AhAttr) -> Result<Box<dyn AddressHandle>> {
        self.inner.create_ah(attr)
    }
}
