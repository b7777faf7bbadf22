//! A drop-in `librdmacm.so.1`: programs that connect through the RDMA connection manager do so over the software RNIC,
//! with no kernel module.
//!
//! Its verbs objects are those of the `libibverbs.so.1` that the program uses. Ends connect over Unix sockets whose
//! names stand for addresses and ports of one network namespace, in the directory in which processes of the user meet;
//! they take no port of TCP or UDP. A folder that containers share has further names. `farcall_wire::cm` has the
//! messages and the states of a connection.
//!
//! | file | man pages, or what it does |
//! |---|---|
//! | `id`, `endpoint`, `options`, `migrate` | rdma_create_id, rdma_create_ep, rdma_set_option, rdma_migrate_id |
//! | `bind` | rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route, rdma_listen |
//! | `connect`, `answer` | rdma_connect, rdma_disconnect; rdma_accept, rdma_reject |
//! | `channel`, `event` | rdma_create_event_channel, rdma_get_cm_event |
//! | `qp`, `attributes`, `device` | rdma_create_qp, rdma_create_srq; rdma_init_qp_attr; rdma_get_devices |
//! | `info`, `multicast`, `rsocket` | rdma_getaddrinfo; functions that are not offered |
//! | `verbs`, `own_libibverbs` | the functions of libibverbs; those that only Farcall's has |
//! | `traced` | what `FARCALL_TRACE` shows |
//! | `connection_manager` | the ends of this process, their events, messages and timers |
//! | `listener`, `service` | accepted connections and their requests; the thread that waits for sockets |
//! | `port`, `port_locks`, `address` | ports and their sockets; whose they are; addresses of C |
//! | `abroad`, `management` | connections with other hosts; queue pair 1, by which they are made |
//! | `parting`, `noted` | their end, also of processes that were killed; what is noted for that |
//! | `limits`, `byte_lock` | how many other hosts may cause; locks in files |
//! | `shared` | listeners in a folder that containers with networks of their own share |
#![allow(clippy::missing_safety_doc, reason = "the exported functions' contracts are the man pages'")]

mod abroad;
mod address;
mod answer;
mod attributes;
mod bind;
mod byte_lock;
mod channel;
mod connect;
mod connection_manager;
mod device;
mod endpoint;
mod errno;
mod event;
mod id;
mod info;
mod limits;
mod listener;
mod management;
mod migrate;
mod multicast;
mod noted;
mod options;
mod own_libibverbs;
mod parting;
mod port;
mod port_locks;
mod qp;
mod rsocket;
mod service;
mod shared;
mod symbols;
mod traced;
mod verbs;

/// Prints to standard error what an error number cannot say.
fn complain(what: std::fmt::Arguments<'_>) {
    farcall_trace::errno::complain("librdmacm", what);
}
