//! Functions of rdma-core 59 and later. Programs of newer systems link them, so the names must exist. The objects that
//! they create (handles for direct memory access, buffers, completion counters) are not supported.

use std::ffi::{c_int, c_void};

use farcall_layout::Context;

use crate::context::{self, object};
use crate::errno;
use crate::symbols::{export, unsupported};

export! {
    "IBVERBS_1.16" {
        /// `man ibv_query_port_speed`: the speed of `ibv_query_port`, in units of 100 Mb/s.
        fn ibv_query_port_speed(context: *mut Context, port_num: u32, speed: *mut c_void) -> c_int {
            let Ok(port_num) = u8::try_from(port_num) else {
                return errno::refused(libc::EINVAL, format_args!("port {port_num}"));
            };
            // SAFETY: contract of `ibv_query_port_speed` (man page): `context` is open.
            if let Err(error) = unsafe { object(context) }.provider.query_port(port_num) {
                return errno::number(&error);
            }
            // SAFETY: contract of `ibv_query_port_speed` (man page): `speed` points to a 64-bit integer.
            unsafe { speed.cast::<u64>().write(u64::from(context::LANES * context::SPEED_GBPS) * 10) };
            0
        }
    }
}

unsupported! {
    "IBVERBS_1.15" {
        // `ibv_reg_mr` and the other registrations are supported.
        Null: ibv_alloc_dmah ibv_reg_mr_ex;
        Number: ibv_dealloc_dmah;
    }
    "IBVERBS_1.16" { MinusOne: ibv_dm_export_dmabuf_fd; }
    "IBVERBS_1.17" {
        Null: ibv_alloc_buf ibv_reg_buf_mr;
        Nothing: ibv_free_buf;
    }
    "IBVERBS_1.18" {
        MinusOne: ibv_export_buf_dmabuf_fd;
        Null: ibv_create_comp_cntr;
        Number: _ibv_query_comp_cntr_caps ibv_destroy_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr
            ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_qp_attach_comp_cntr;
    }
}
