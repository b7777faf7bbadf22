//! The verbs of the InfiniBand specification as traits and plain data, identical for every provider.
//!
//! A [`Provider`] lists [`Device`]s; an open device is a [`Context`], which creates protection domains, completion
//! queues, queue pairs and memory regions. Posting work requests is `unsafe`: the caller must keep the memory that
//! they name. Most programs do not need this: `owned` (feature `verbs`) provides buffers and queue pairs in safe Rust.

#[cfg(feature = "verbs")]
pub mod owned;

pub use farcall_verbs::{
    Access, AddressHandle, AhAttr, AsyncEvent, AsyncEventKind, AtomicTarget, Clock, CompChannel, Context,
    CqInitAttr, Device, DeviceAttr, Endpoint, Error, Gid, GidChoice, GidEntry, GidScope, GidType, LinkLayer,
    MonotonicClock, Mtu, Nanos, Notify, OpCaps, PortAttr, PortChoice, PortState, PostError, Progress,
    ProtectionDomain, Provider, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawCq, RawMr, RawQp, RawSrq,
    RdmaTarget, RecvWr, Result, Revoked, RnrTimer, SendFlags, SendWr, Sge, SrqAttr, SrqCap, SrqInUse,
    SrqInitAttr, UdTarget, VirtualClock, WaitSet, Wc, WcFlags, WcOpcode, WcStatus, WrOpcode, WrTarget,
};
