//! Multicast, and what later releases add: not offered.

use std::ffi::{c_int, c_void};

use farcall_ibv::abi::cm::CmId;
use libc::sockaddr;

use crate::errno::answer;
use crate::symbols::export;

export! {
    "RDMACM_1.0" {
        /// `man rdma_join_multicast`: not offered.
        fn rdma_join_multicast(_id: *mut CmId, _addr: *mut sockaddr, _context: *mut c_void) -> c_int {
            answer(Err(libc::EOPNOTSUPP))
        }

        /// `man rdma_leave_multicast`: not offered.
        fn rdma_leave_multicast(_id: *mut CmId, _addr: *mut sockaddr) -> c_int {
            answer(Err(libc::EOPNOTSUPP))
        }
    }
    "RDMACM_1.1" {
        /// `man rdma_join_multicast_ex`: not offered.
        fn rdma_join_multicast_ex(_id: *mut CmId, _attr: *mut c_void, _context: *mut c_void) -> c_int {
            answer(Err(libc::EOPNOTSUPP))
        }
    }
    "RDMACM_1.4" {
        /// Looks a service up by InfiniBand's subnet administration, which is not here.
        fn rdma_resolve_addrinfo(
            _id: *mut CmId, _node: *const c_void, _service: *const c_void, _hints: *const c_void,
        ) -> c_int {
            answer(Err(libc::EOPNOTSUPP))
        }

        /// What `rdma_resolve_addrinfo` found.
        fn rdma_query_addrinfo(_id: *mut CmId, _found: *mut *mut c_void) -> c_int {
            answer(Err(libc::EOPNOTSUPP))
        }

        /// An event of the program's own: not offered.
        fn rdma_write_cm_event(_id: *mut CmId, _event: u32, _status: c_int, _argument: u64) -> c_int {
            answer(Err(libc::EOPNOTSUPP))
        }
    }
}
