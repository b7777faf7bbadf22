//! The RDMA verbs vocabulary: types and traits shared by all layers above, without any transport code.
//!
//! Names, states and values are those of the InfiniBand Architecture Specification and of rdma-core's man pages, in
//! Rust case. [`SendWr`], [`RecvWr`], [`Sge`] and [`Wc`] have the memory layout of libibverbs' structures. A provider
//! over the system's library, and a C interface over a provider of this workspace, pass them on without translation.
//!
//! A *provider* (software RNIC, system libibverbs, simulator) implements the traits of [`provider`]. Objects of the
//! control path ([`Device`], [`Context`], [`ProtectionDomain`], [`CompChannel`]) are shared. Objects of the data path
//! ([`RawQp`], [`RawCq`]) have one owner (`&mut self`, no lock inside) and are called once per *batch*.
//!
//! The crate has no thread or socket, and makes no system call except to read the clock.

mod attr;
mod clock;
mod error;
mod event;
mod flags;
mod gid;
mod opaque_debug;
mod port_choice;
mod posting;
mod progress;
pub mod provider;
mod qp_state;
mod route_header;
mod transition;
mod wc;
mod wr;

pub use attr::{
    AhAttr, DeviceAttr, MrAttr, MrMemory, Mtu, OpCaps, PortAttr, PortState, QpAttr, QpCap, QpType, RnrTimer,
    SrqAttr, SrqCap, SrqInitAttr,
};
pub use clock::{Clock, MonotonicClock, Nanos, VirtualClock};
pub use error::{Error, PostError, Result, WithSources, with_sources};
pub use event::{AsyncEvent, AsyncEventKind};
pub use flags::{Access, SendFlags, WcFlags};
pub use gid::{Gid, GidChoice, GidEntry, GidScope, GidType, LinkLayer};
pub use port_choice::PortChoice;
pub use posting::{ATOMIC_BYTES, MAX_MESSAGE_BYTES, RecvRules, SendRules};
pub use progress::{Endpoint, Progress, WaitSet, WakeProbe};
pub use provider::{
    AddressHandle, CompChannel, Context, CqInitAttr, Device, Notify, ProtectionDomain, Provider, QpInitAttr,
    RawCq, RawMr, RawQp, RawSrq, Revoked, SrqInUse,
};
pub use qp_state::QpState;
pub use route_header::{ROUTE_HEADER_BYTES, ReceivedRoute, ipv4_route_header};
pub use transition::{QpAttrMask, Transition};
pub use wc::{Wc, WcOpcode, WcStatus};
pub use wr::{AtomicTarget, RdmaTarget, RecvWr, SendWr, Sge, UdTarget, WrOpcode, WrTarget};
