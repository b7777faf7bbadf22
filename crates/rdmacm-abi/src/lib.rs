//! A drop-in `librdmacm.so.1`: programs that connect through the RDMA connection manager do so over the software RNIC, with no
//! kernel module.
//!
//! Its objects of verbs are those of the `libibverbs.so.1` that the program uses. Ends meet at Unix sockets whose abstract names are
//! addresses and ports, so they exist as long as their owner, in his network namespace, and are no port of TCP or UDP. A folder that
//! containers share has more names for them. What is said
//! there, and what state a connection is in, is `farcall_cm`'s.
//!
//! | file | what |
//! |---|---|
//! | `id`, `endpoint`, `options`, `migrate` | rdma_create_id, rdma_create_ep, rdma_set_option, rdma_migrate_id |
//! | `bind`, `connect`, `answer` | rdma_bind_addr, rdma_resolve_addr, rdma_listen; rdma_connect, rdma_disconnect; rdma_accept, rdma_reject |
//! | `channel`, `event` | rdma_create_event_channel, rdma_get_cm_event |
//! | `qp`, `attributes`, `device` | rdma_create_qp, rdma_create_srq; rdma_init_qp_attr; rdma_get_devices |
//! | `info`, `multicast`, `rsocket` | rdma_getaddrinfo; what is not offered |
//! | `verbs`, `kin` | the functions of libibverbs; what ours offers beside |
//! | `traced` | what `FARCALL_TRACE` shows |
//! | `world`, `listener`, `service` | the ends of this process and what they say; who comes; the thread that waits for what arrives |
//! | `port`, `address` | names of sockets; addresses of C, and whose they are |
//! | `shared` | listeners in a folder that containers with networks of their own share |
#![allow(clippy::missing_safety_doc, reason = "the exported functions' contracts are the man pages'")]

mod address;
mod answer;
mod attributes;
mod bind;
mod channel;
mod connect;
mod device;
mod endpoint;
mod errno;
mod event;
mod id;
mod info;
mod kin;
mod listener;
mod migrate;
mod multicast;
mod options;
mod port;
mod qp;
mod rsocket;
mod service;
mod shared;
mod symbols;
mod traced;
mod verbs;
mod world;

/// Tells people what cannot be said by an error number.
fn complain(what: std::fmt::Arguments<'_>) {
    eprintln!("farcall: librdmacm: {what}");
}
