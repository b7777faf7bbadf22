//! libibverbs' structures as its C header `infiniband/verbs.h` declares them, in Rust names.
//!
//! Structures that the library allocates are declared up to the last field that is read here; those that it fills or
//! reads for us are complete. `tests/layout.rs` compares every offset and size with the header of the machine.

mod attr;
pub mod cm;
mod objects;
pub mod whole;

pub use attr::{
    AhAttr, AsyncEvent, DeviceAttr, GlobalRoute, PortAttr, QpAttr, QpCap, QpInitAttr, SrqAttr, SrqInitAttr,
    mask, srq_mask,
};
pub use objects::{
    Ah, CompChannel, Context, ContextOps, Cq, Device, Mr, Pd, PollCq, PostRecv, PostSend, PostSrqRecv, Qp,
    ReqNotifyCq, Srq, TRANSPORT_IWARP,
};
