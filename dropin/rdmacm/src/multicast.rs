//! Functions that are not supported: multicast, and additions of later releases.

use crate::symbols::unsupported;

unsupported! {
    "RDMACM_1.0" { MinusOne: rdma_join_multicast rdma_leave_multicast; }
    "RDMACM_1.1" { MinusOne: rdma_join_multicast_ex; }
    // Services of InfiniBand's subnet administration, and application-defined events.
    "RDMACM_1.4" { MinusOne: rdma_resolve_addrinfo rdma_query_addrinfo rdma_write_cm_event; }
}
