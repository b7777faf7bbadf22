//! A node as a provider: its one device and the objects created on it.

mod channel;
mod cq;
mod mr;
mod qp;
mod srq;

use std::os::fd::RawFd;
use std::sync::Arc;

use farcall_verbs::{
    Access, AddressHandle, AhAttr, AsyncEvent, CompChannel, Context, CqInitAttr, Device, DeviceAttr, Error,
    Gid, LinkLayer, OpCaps, PortAttr, PortState, ProtectionDomain, Provider, QpInitAttr, QpType, RawCq,
    RawMr, RawQp, RawSrq, Result, SrqInitAttr,
};

use crate::channel::{Descriptor, OpenDevice};
use crate::fabric::Fabric;
use crate::host::Host;
use crate::packet::Node;
use crate::qp::PROVIDER;
use channel::SimChannel;
use cq::SimCq;
use mr::SimMr;
use qp::SimQp;
use srq::SimSrq;

const PORT: u8 = 1;

impl Provider for Host {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        let name = format!("sim{}", self.node);
        Ok(vec![Arc::new(SimDevice { fabric: self.fabric.clone(), node: self.node, name })])
    }
}

struct SimDevice {
    fabric: Arc<Fabric>,
    node: Node,
    name: String,
}

impl Device for SimDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn provider(&self) -> &'static str {
        PROVIDER
    }

    fn open(&self) -> Result<Arc<dyn Context>> {
        let id = self.fabric.call().devices.contexts.insert(OpenDevice::new(self.node));
        Ok(Arc::new(SimContext { fabric: self.fabric.clone(), node: self.node, id }))
    }
}

struct SimContext {
    fabric: Arc<Fabric>,
    node: Node,
    id: u32,
}

fn check_port(operation: &'static str, port_num: u8) -> Result<()> {
    if port_num == PORT {
        return Ok(());
    }
    Err(Error::invalid(operation, format!("port {port_num}: this device has port {PORT} only")))
}

impl Context for SimContext {
    fn query_device(&self) -> Result<DeviceAttr> {
        let limits = self.fabric.call().devices.params.limits;
        let mut attr = DeviceAttr::new(u64::from(self.node) + 1);
        attr.fw_ver = env!("CARGO_PKG_VERSION").into();
        attr.max_qp = limits.qps;
        attr.max_qp_wr = limits.qp_wr;
        attr.max_sge = limits.sges;
        attr.max_cq = limits.cqs;
        attr.max_cqe = limits.cqes;
        attr.max_mr = limits.mrs;
        attr.max_mr_size = crate::memory::MAX_MR_BYTES;
        attr.max_inline_data = limits.inline_bytes;
        attr.max_qp_rd_atom = limits.rd_atomic;
        attr.max_srq = limits.srqs;
        // Limited by memory only.
        (attr.max_pd, attr.max_ah) = (u32::MAX, u32::MAX);
        attr.max_srq_wr = limits.qp_wr;
        attr.max_srq_sge = limits.sges;
        attr.rc = QpType::Rc.operations() | OpCaps::SRQ;
        attr.uc = QpType::Uc.operations() | OpCaps::SRQ;
        attr.ud = QpType::Ud.operations() | OpCaps::SRQ;
        Ok(attr)
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        check_port("query_port", port_num)?;
        let mtu = self.fabric.call().devices.params.mtu;
        Ok(PortAttr {
            state: PortState::Active,
            max_mtu: farcall_verbs::Mtu::Mtu4096,
            active_mtu: mtu,
            gid_tbl_len: 1,
            lid: 0,
            link_layer: LinkLayer::Ethernet,
        })
    }

    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid> {
        check_port("query_gid", port_num)?;
        if index != 0 {
            return Err(Error::invalid("query_gid", format!("entry {index}: the table has entry 0 only")));
        }
        Ok(self.fabric.call().devices.nodes.gid(self.node))
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>> {
        let pd = self.fabric.call().devices.alloc_pd();
        Ok(Arc::new(SimPd { fabric: self.fabric.clone(), context: self.id, domain: (self.node, pd) }))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>> {
        Ok(Arc::new(SimChannel::create(&self.fabric, self.node)))
    }

    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<Box<dyn RawCq>> {
        Ok(Box::new(SimCq::create(&self.fabric, (self.id, self.node), attr)?))
    }

    fn async_event_fd(&self) -> Option<RawFd> {
        Some(Descriptor::Events(self.id).fd())
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.fabric.poll().devices.contexts.get_mut(self.id)?.pop()
    }
}

struct SimPd {
    fabric: Arc<Fabric>,
    context: u32,
    domain: (Node, u32),
}

impl ProtectionDomain for SimPd {
    fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        Ok(Box::new(SimMr::alloc(&self.fabric, self.domain, len_bytes, access)?))
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        Ok(Box::new(SimMr::register(&self.fabric, self.domain, addr, len_bytes, access)?))
    }

    fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Box<dyn RawQp>> {
        Ok(Box::new(SimQp::create(&self.fabric, self.context, self.domain, attr)?))
    }

    fn create_srq(&self, attr: &SrqInitAttr) -> Result<Box<dyn RawSrq>> {
        Ok(Box::new(SimSrq::create(&self.fabric, self.context, attr)?))
    }

    fn create_ah(&self, attr: &AhAttr) -> Result<Box<dyn AddressHandle>> {
        check_port("create_ah", attr.port_num)?;
        let id = self.fabric.call().devices.ahs.insert((self.domain.0, *attr));
        Ok(Box::new(SimAh { fabric: self.fabric.clone(), id }))
    }
}

struct SimAh {
    fabric: Arc<Fabric>,
    id: u32,
}

impl AddressHandle for SimAh {
    fn as_raw(&self) -> *const () {
        // A number that is never dereferenced; 0 means none.
        std::ptr::without_provenance(self.id as usize + 1)
    }
}

impl Drop for SimAh {
    fn drop(&mut self) {
        self.fabric.call().devices.ahs.remove(self.id);
    }
}
