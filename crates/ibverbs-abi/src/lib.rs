//! A drop-in `libibverbs.so.1`: unmodified RDMA programs find the software RNIC where they look for the system's devices.
//!
//! The shell translates; it decides nothing. Objects begin with the C structure that programs look into (`farcall_ibv::abi::whole`) and go
//! on with the provider's object behind a lock, because the C interface promises that threads may share them. Work
//! requests and completions have the same layout on both sides and pass as they are.
//!
//! | file | man pages |
//! |---|---|
//! | `device`, `context` | ibv_get_device_list, ibv_open_device, ibv_query_device, ibv_query_port, ibv_query_gid |
//! | `memory`, `address` | ibv_alloc_pd, ibv_reg_mr, ibv_create_ah |
//! | `channel`, `cq`, `cq_ex` | ibv_create_comp_channel, ibv_create_cq, ibv_poll_cq, ibv_create_cq_ex |
//! | `qp`, `qp_ex`, `posting`, `srq`, `attributes`, `transitions` | ibv_create_qp, ibv_post_send, ibv_wr_post, ibv_create_srq, ibv_modify_qp |
//! | `events`, `words`, `fork`, `sysfs` | ibv_get_async_event, ibv_event_type_str, ibv_fork_init |
//! | `beside` | the kernel's files about devices, for programs that read them |
//! | `faulty` | the faults that are asked for |
//! | `traced` | what the tables hold when calls are shown |
//! | `kin` | what our librdmacm uses beside |
//! | `newer` | what later releases than 58 offer besides |
//! | `private` | what drivers import, so that libmlx5 and libefa still load |
#![allow(clippy::missing_safety_doc, reason = "the exported functions' contracts are the man pages'")]

mod address;
mod attributes;
mod beside;
mod channel;
mod context;
mod cq;
mod cq_ex;
mod device;
mod errno;
mod events;
mod faulty;
mod fork;
mod kin;
mod marshal;
mod memory;
mod newer;
mod posting;
mod private;
mod qp;
mod qp_ex;
mod registry;
mod srq;
mod symbols;
mod sysfs;
mod traced;
mod transitions;
mod uses;
mod words;

/// Tells people what cannot be said by an error number.
fn complain(what: std::fmt::Arguments<'_>) {
    eprintln!("farcall: libibverbs: {what}");
}
