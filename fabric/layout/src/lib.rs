//! The structures of libibverbs and librdmacm, as declared in the C headers `infiniband/verbs.h` and `rdma/rdma_cma.h`.
//!
//! Programs access these structures through the headers' inline functions, so every offset is part of the ABI.
//! `tests/header.rs` compares offsets, sizes and numbers with the headers of the machine. Work requests, completions
//! and `QpCap` of `farcall-verbs` have this layout already. [`rdmacm`] contains the structures of the connection
//! manager.
#![allow(missing_docs, reason = "the names are the headers'")]

mod attributes;
mod event;
mod extended;
mod functions;
mod objects;
pub mod rdmacm;

pub use attributes::{
    AhAttr, AsyncEvent, DeviceAttr, GlobalRoute, PortAttr, QpAttr, QpInitAttr, SrqAttr, SrqInitAttr, mask,
    srq_mask,
};
pub use event::{Element, event_of, event_type};
pub use extended::{
    CqEx, CqInitAttrEx, DataBuf, DeviceAttrEx, GidEntry, QpEx, QpInitAttrEx, SrqInitAttrEx, Values,
    VerbsContext,
};
pub use farcall_verbs::QpCap;
pub use functions::Functions;
pub use objects::{
    ABSENT, Absent, Ah, CompChannel, Context, ContextOps, Cq, Device, EXTENDED, Mr, Pd, Post, Qp, Srq,
    TRANSPORT_IWARP,
};
