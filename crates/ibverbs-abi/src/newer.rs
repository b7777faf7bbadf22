//! Functions that came with release 59 of rdma-core and later ones. Programs of newer systems link them, so the names must be
//! there: what they make (handles for direct memory access, buffers, completion counters) is not offered, and they say so.

use std::ffi::{c_int, c_void};

use farcall_ibv::abi::whole::{Context, Mr, Pd, Qp};

use crate::context::{self, object};
use crate::errno;
use crate::symbols::export;

/// How functions that return a descriptor fail.
fn no_descriptor() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    -1
}

export! {
    "IBVERBS_1.15" {
        /// `man ibv_alloc_dmah`.
        fn ibv_alloc_dmah(_context: *mut Context, _attr: *mut c_void) -> *mut c_void {
            errno::null(libc::EOPNOTSUPP)
        }

        /// `man ibv_alloc_dmah`.
        fn ibv_dealloc_dmah(_dmah: *mut c_void) -> c_int {
            libc::EOPNOTSUPP
        }

        /// `man ibv_reg_mr`: the other registrations are offered.
        fn ibv_reg_mr_ex(_pd: *mut Pd, _attr: *mut c_void) -> *mut Mr {
            errno::null(libc::EOPNOTSUPP)
        }
    }
    "IBVERBS_1.16" {
        /// `man ibv_dm_export_dmabuf_fd`.
        fn ibv_dm_export_dmabuf_fd(_dm: *mut c_void) -> c_int {
            no_descriptor()
        }

        /// `man ibv_query_port_speed`: what `ibv_query_port` says, in units of 100 Mb/s.
        fn ibv_query_port_speed(context: *mut Context, port_num: u32, speed: *mut c_void) -> c_int {
            let Ok(port_num) = u8::try_from(port_num) else { return libc::EINVAL };
            // SAFETY: the caller's context.
            if let Err(error) = unsafe { object(context) }.provider.query_port(port_num) {
                return errno::number(&error);
            }
            // SAFETY: the caller's number of 64 bits.
            unsafe { speed.cast::<u64>().write(u64::from(context::LANES * context::SPEED_GBPS) * 10) };
            0
        }
    }
    "IBVERBS_1.17" {
        /// `man ibv_alloc_buf`.
        fn ibv_alloc_buf(_pd: *mut Pd, _len_bytes: usize, _buf: *mut c_void) -> *mut c_void {
            errno::null(libc::EOPNOTSUPP)
        }

        /// `man ibv_alloc_buf`: there is none to free.
        fn ibv_free_buf(_buf: *mut c_void) {}

        /// `man ibv_alloc_buf`.
        fn ibv_reg_buf_mr(
            _pd: *mut Pd, _buf: *mut c_void, _addr: *mut c_void, _len_bytes: usize, _access: c_int,
        ) -> *mut Mr {
            errno::null(libc::EOPNOTSUPP)
        }
    }
    "IBVERBS_1.18" {
        /// `man ibv_alloc_buf`.
        fn ibv_export_buf_dmabuf_fd(_buf: *mut c_void) -> c_int {
            no_descriptor()
        }

        /// `man ibv_query_comp_cntr_caps`.
        fn _ibv_query_comp_cntr_caps(_context: *mut Context, _caps: *mut c_void, _caps_bytes: usize) -> c_int {
            libc::EOPNOTSUPP
        }

        /// `man ibv_create_comp_cntr`.
        fn ibv_create_comp_cntr(_context: *mut Context, _attr: *mut c_void) -> *mut c_void {
            errno::null(libc::EOPNOTSUPP)
        }

        /// `man ibv_create_comp_cntr`.
        fn ibv_destroy_comp_cntr(_counter: *mut c_void) -> c_int {
            libc::EOPNOTSUPP
        }

        /// `man ibv_create_comp_cntr`.
        fn ibv_set_comp_cntr(_counter: *mut c_void, _value: u64) -> c_int {
            libc::EOPNOTSUPP
        }

        /// `man ibv_create_comp_cntr`.
        fn ibv_set_err_comp_cntr(_counter: *mut c_void, _value: u64) -> c_int {
            libc::EOPNOTSUPP
        }

        /// `man ibv_create_comp_cntr`.
        fn ibv_inc_comp_cntr(_counter: *mut c_void, _amount: u64) -> c_int {
            libc::EOPNOTSUPP
        }

        /// `man ibv_create_comp_cntr`.
        fn ibv_inc_err_comp_cntr(_counter: *mut c_void, _amount: u64) -> c_int {
            libc::EOPNOTSUPP
        }

        /// `man ibv_create_comp_cntr`.
        fn ibv_read_comp_cntr(_counter: *mut c_void, _value: *mut c_void) -> c_int {
            libc::EOPNOTSUPP
        }

        /// `man ibv_create_comp_cntr`.
        fn ibv_read_err_comp_cntr(_counter: *mut c_void, _value: *mut c_void) -> c_int {
            libc::EOPNOTSUPP
        }

        /// `man ibv_qp_attach_comp_cntr`.
        fn ibv_qp_attach_comp_cntr(_qp: *mut Qp, _counter: *mut c_void, _attr: *mut c_void) -> c_int {
            libc::EOPNOTSUPP
        }
    }
}
