//! A drop-in `libibverbs.so.1`: unmodified RDMA programs find the software RNIC where they look for the system's
//! devices.
//!
//! This crate translates between C and the provider. Objects begin with the C structure that programs look into
//! (`farcall_layout`) and go on with the provider's object behind a lock, because the C interface promises that threads
//! may share them. Work requests and completions have the same layout on both sides and pass as they are.
//!
//! | file | man pages |
//! |---|---|
//! | `device`, `context` | ibv_get_device_list, ibv_open_device, ibv_query_device, ibv_query_port, ibv_query_gid |
//! | `memory`, `region_names`, `access`, `address` | ibv_alloc_pd, ibv_reg_mr, ibv_create_ah |
//! | `channel`, `cq`, `cq_ex` | ibv_create_comp_channel, ibv_create_cq, ibv_poll_cq, ibv_create_cq_ex |
//! | `qp`, `attributes`, `srq` | ibv_create_qp, ibv_post_send, ibv_modify_qp, ibv_create_srq |
//! | `qp_ex`, `posting` | ibv_wr_post |
//! | `events`, `number_names`, `fork`, `sysfs` | ibv_get_async_event, ibv_event_type_str, ibv_fork_init |
//! | `shown_files` | the kernel's files about devices, for programs that read them |
//! | `faults` | the faults that `FARCALL_FAULTS` asks for |
//! | `traced` | the functions in the tables when calls are shown |
//! | `own_symbols` | functions that only our librdmacm calls |
//! | `release_59` | functions of rdma-core 59 and later |
//! | `private` | what drivers import, so that libmlx5 and libefa still load |
#![allow(clippy::missing_safety_doc, reason = "the exported functions' contracts are the man pages'")]

mod access;
mod address;
mod attributes;
mod channel;
mod context;
mod cq;
mod cq_ex;
mod device;
mod errno;
mod events;
mod faults;
mod fork;
mod live;
mod management;
mod marshal;
mod memory;
mod number_names;
mod own_symbols;
mod posting;
mod private;
mod qp;
mod qp_ex;
mod region_names;
mod registry;
mod release_59;
mod shown_files;
mod srq;
mod symbols;
mod sysfs;
mod traced;
mod use_count;

/// Prints to standard error what an error number cannot say.
fn complain(what: std::fmt::Arguments<'_>) {
    farcall_trace::errno::complain("libibverbs", what);
}
