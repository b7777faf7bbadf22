//! A drop-in `librdmacm.so.1`: programs that use the RDMA connection manager connect over the software RNIC, without a
//! kernel module.
//!
//! Its verbs objects are those of the `libibverbs.so.1` that the program uses. Endpoints connect over Unix sockets,
//! whose names represent addresses and ports of one network namespace, in the user's rendezvous directory; they use no
//! TCP or UDP ports. A directory that containers share contains additional names. `farcall_wire::cm` defines the
//! messages and the states of a connection.
//!
//! | file | man pages, or purpose |
//! |---|---|
//! | `id`, `id_state`, `create_id` | identifiers and their state; rdma_create_id, rdma_destroy_id |
//! | `endpoint`, `options`, `migrate` | rdma_create_ep, rdma_set_option, rdma_migrate_id |
//! | `bind` | rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route, rdma_listen |
//! | `connect`, `accept` | rdma_connect, rdma_disconnect; rdma_accept, rdma_reject |
//! | `channel`, `event`, `event_object` | rdma_create_event_channel, rdma_get_cm_event, rdma_ack_cm_event |
//! | `qp`, `attributes`, `device` | rdma_create_qp, rdma_create_srq; rdma_init_qp_attr; rdma_get_devices |
//! | `info`, `multicast`, `rsocket` | rdma_getaddrinfo; functions that are not supported |
//! | `verbs`, `own_libibverbs` | functions of libibverbs; functions that only Farcall's libibverbs has |
//! | `traced` | output of `FARCALL_TRACE` |
//! | `connection_manager` | endpoints of this process, their messages, requests and limits; disconnection |
//! | `event_queue`, `timers`, `listener` | its queued events and timers; backlogs of listening endpoints |
//! | `service`, `token` | the thread that waits for sockets; numbers of what it waits for |
//! | `port`, `port_locks`, `address` | ports and their sockets; their owners; C socket addresses |
//! | `local_socket` | messages over Unix sockets |
//! | `remote`, `management` | connections with other hosts; queue pair 1, over which they are established |
//! | `connection_journal`, `byte_lock` | the journal for disconnection of killed processes; locks in files |
//! | `shared` | listeners in a directory that containers with separate network namespaces share |
#![allow(clippy::missing_safety_doc, reason = "the exported functions' contracts are the man pages'")]

mod accept;
mod address;
mod attributes;
mod bind;
mod byte_lock;
mod channel;
mod connect;
mod connection_journal;
mod connection_manager;
mod create_id;
mod device;
mod endpoint;
mod errno;
mod event;
mod event_object;
mod event_queue;
mod id;
mod id_state;
mod info;
mod listener;
mod local_socket;
mod management;
mod migrate;
mod multicast;
mod options;
mod own_libibverbs;
mod port;
mod port_locks;
mod qp;
mod remote;
mod rsocket;
mod service;
mod shared;
mod symbols;
mod timers;
mod token;
mod traced;
mod verbs;

/// Prints an error to standard error that an error number cannot express.
fn complain(what: std::fmt::Arguments<'_>) {
    farcall_trace::errno::complain("librdmacm", what);
}
