//! Opening a device: its context with the tables of functions.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::event::{EventfdFlags, eventfd};

use crate::attributes::Limits;
use crate::context::{self, ContextObject};
use crate::device::{self, DeviceObject};
use crate::symbols::export;
use crate::{channel, cq, cq_create, errno, qp, qp_create, srq, traced};
use farcall_layout::{ABSENT, Context, ContextOps, Device, EXTENDED, VerbsContext};
use farcall_verbs::with_sources;

/// Opens a device. Returns null and sets `errno` on failure.
fn open(device: *mut Device, of: &DeviceObject) -> *mut Context {
    let provider = match of.provider_device.open() {
        Ok(provider) => provider,
        Err(error) => {
            crate::complain(format_args!("cannot open: {}", with_sources(&error)));
            return errno::null(errno::number(&error));
        }
    };
    let attr = provider.query_device().ok();
    let limits = Limits {
        max_rd_atomic: attr.as_ref().map_or(0, |attr| attr.max_qp_rd_atom),
        max_cqe: attr.map_or(0, |attr| c_int::try_from(attr.max_cqe).unwrap_or(c_int::MAX)),
        gid_tbl_len: provider.query_port(1).map_or(0, |port| port.gid_tbl_len),
    };
    let Ok(command) = eventfd(0, EventfdFlags::CLOEXEC) else { return errno::null(libc::EMFILE) };
    // Without device events, use a descriptor that never becomes readable.
    let async_fd = provider.async_event_fd().unwrap_or(command.as_raw_fd());
    channel::make_blocking(async_fd);
    let mut verbs = tables(device, command.as_raw_fd(), async_fd);
    if farcall_trace::is_on() {
        traced::context_table(&mut verbs);
    }
    ContextObject::open(verbs, provider, command, of.guid_be, limits)
}

fn tables(device: *mut Device, cmd_fd: c_int, async_fd: c_int) -> VerbsContext {
    VerbsContext {
        query_port: context::query_port,
        before_query_rt_values: [ABSENT; 23],
        query_rt_values: context::query_rt_values,
        create_cq_ex: cq_create::create_ex,
        private: ptr::null_mut(),
        query_device_ex: context::query_device_ex,
        flows: [ABSENT; 4],
        open_qp: ABSENT,
        create_qp_ex: qp_create::create_ex,
        get_srq_num: ABSENT,
        create_srq_ex: srq::create_ex,
        xrc_domains: [ABSENT; 2],
        placeholder: 0,
        size_bytes: size_of::<VerbsContext>(),
        context: Context {
            device,
            ops: ContextOps {
                before_poll_cq: [ABSENT; 11],
                poll_cq: cq::poll,
                req_notify_cq: cq::req_notify,
                before_post_srq_recv: [ABSENT; 7],
                post_srq_recv: Some(srq::post_recv),
                before_post_send: [ABSENT; 4],
                post_send: qp::post_send,
                post_recv: qp::post_recv,
                after_post_recv: [ABSENT; 5],
            },
            cmd_fd,
            async_fd,
            num_comp_vectors: 1,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: EXTENDED,
        },
    }
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_open_device`.
        fn ibv_open_device(device: *mut Device) -> *mut Context {
            // SAFETY: contract of `ibv_open_device` (man page): `device` is valid.
            open(device, unsafe { device::object(device) })
        }
    }
}
