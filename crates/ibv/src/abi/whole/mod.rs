//! The structures that libibverbs allocates, whole: for who takes its place. Programs reach into them through the header's
//! inline functions, so every offset is part of the contract.
#![allow(missing_docs, reason = "the names are the header's")]

mod context;
mod extended;
mod objects;

pub use super::{
    AhAttr, AsyncEvent, DeviceAttr, PortAttr, QpAttr, QpCap, SrqAttr, SrqInitAttr, mask, srq_mask,
};
pub use context::{ABSENT, Absent, Context, ContextOps, Device, EXTENDED, VerbsContext};
pub use extended::{
    CqEx, CqInitAttrEx, DataBuf, DeviceAttrEx, GidEntry, QpEx, QpInitAttrEx, SrqInitAttrEx, Values,
};
pub use objects::{Ah, CompChannel, Cq, Mr, Pd, Qp, QpInitAttr, Srq};
