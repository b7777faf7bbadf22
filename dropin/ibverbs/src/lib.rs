//! A drop-in `libibverbs.so.1`: unmodified RDMA programs find the software RNIC among the devices of the system.
//!
//! This crate converts between C and the provider. Objects begin with the C structure that programs read
//! (`farcall_layout`), followed by the provider's object behind a lock, because the C interface permits threads to
//! share objects. Work requests and completions have the same layout on both sides and are passed unchanged.
//!
//! | file | man pages |
//! |---|---|
//! | `device`, `open`, `context` | ibv_get_device_list, ibv_open_device, ibv_query_device, ibv_query_port, ibv_query_gid |
//! | `memory`, `region_names`, `access`, `address` | ibv_alloc_pd, ibv_reg_mr, ibv_create_ah |
//! | `channel`, `cq`, `cq_create`, `cq_ex` | ibv_create_comp_channel, ibv_create_cq, ibv_poll_cq, ibv_create_cq_ex |
//! | `qp`, `qp_create`, `attributes`, `srq` | ibv_create_qp, ibv_post_send, ibv_modify_qp, ibv_create_srq |
//! | `qp_ex`, `batch`, `posting` | ibv_wr_post |
//! | `events`, `enum_names`, `fork`, `sysfs` | ibv_get_async_event, ibv_event_type_str, ibv_fork_init |
//! | `sysfs_overlay` | the kernel's files about devices, for programs that read them |
//! | `faults` | the faults that `FARCALL_FAULTS` configures |
//! | `traced` | the functions of the tables while calls are traced |
//! | `own_symbols` | functions that only Farcall's librdmacm calls |
//! | `release_59` | functions of rdma-core 59 and later |
//! | `private` | symbols that drivers import, so that libmlx5 and libefa can be loaded |
#![allow(clippy::missing_safety_doc, reason = "the exported functions' contracts are the man pages'")]

mod access;
mod address;
mod attributes;
mod batch;
mod channel;
mod context;
mod cq;
mod cq_create;
mod cq_ex;
mod device;
mod enum_names;
mod errno;
mod events;
mod faults;
mod fork;
mod live;
mod management;
mod marshal;
mod memory;
mod open;
mod own_symbols;
mod posting;
mod private;
mod qp;
mod qp_create;
mod qp_ex;
mod region_names;
mod registry;
mod release_59;
mod srq;
mod symbols;
mod sysfs;
mod sysfs_overlay;
mod traced;
mod use_count;

/// Prints to standard error an error that an error number cannot express.
fn complain(what: std::fmt::Arguments<'_>) {
    farcall_trace::errno::complain("libibverbs", what);
}
