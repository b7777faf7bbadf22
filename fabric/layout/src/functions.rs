//! The functions of libibverbs, looked up by name in a library that was loaded at run time.

use std::ffi::{c_char, c_int, c_void};

use crate::{
    Ah, AhAttr, AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr, Srq, SrqAttr, SrqInitAttr,
};

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that Farcall calls, all from the oldest interface version that has them.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Since rdma-core 44.
            pub query_qp_data_in_order: Option<unsafe extern "C" fn(*mut Qp, u32, u32) -> c_int>,
        }

        impl Functions {
            /// Looks up the functions. An unversioned look-up finds the newest version of each.
            ///
            /// # Errors
            /// Returns an error if the library lacks one of them.
            ///
            /// # Safety
            /// `library` must be libibverbs, and must stay loaded while the functions are used.
            pub unsafe fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the caller guarantees that the library is libibverbs, whose symbols have had these types
                // since version 1.1.
                unsafe {
                    Ok(Self {
                        $($name: *library.get($symbol)?,)*
                        query_qp_data_in_order: library.get(b"ibv_query_qp_data_in_order\0").ok().map(|symbol| *symbol),
                    })
                }
            }
        }
    };
}

functions! {
    get_device_list = b"ibv_get_device_list\0": fn(*mut c_int) -> *mut *mut Device;
    free_device_list = b"ibv_free_device_list\0": fn(*mut *mut Device);
    get_device_name = b"ibv_get_device_name\0": fn(*mut Device) -> *const c_char;
    open_device = b"ibv_open_device\0": fn(*mut Device) -> *mut Context;
    close_device = b"ibv_close_device\0": fn(*mut Context) -> c_int;
    query_device = b"ibv_query_device\0": fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port = b"ibv_query_port\0": fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid = b"ibv_query_gid\0": fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int;
    alloc_pd = b"ibv_alloc_pd\0": fn(*mut Context) -> *mut Pd;
    dealloc_pd = b"ibv_dealloc_pd\0": fn(*mut Pd) -> c_int;
    reg_mr = b"ibv_reg_mr\0": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr = b"ibv_dereg_mr\0": fn(*mut Mr) -> c_int;
    create_comp_channel = b"ibv_create_comp_channel\0": fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel = b"ibv_destroy_comp_channel\0": fn(*mut CompChannel) -> c_int;
    create_cq = b"ibv_create_cq\0": fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq = b"ibv_destroy_cq\0": fn(*mut Cq) -> c_int;
    get_cq_event = b"ibv_get_cq_event\0": fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events = b"ibv_ack_cq_events\0": fn(*mut Cq, u32);
    create_srq = b"ibv_create_srq\0": fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    query_srq = b"ibv_query_srq\0": fn(*mut Srq, *mut SrqAttr) -> c_int;
    modify_srq = b"ibv_modify_srq\0": fn(*mut Srq, *mut SrqAttr, c_int) -> c_int;
    destroy_srq = b"ibv_destroy_srq\0": fn(*mut Srq) -> c_int;
    create_qp = b"ibv_create_qp\0": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = b"ibv_modify_qp\0": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    query_qp = b"ibv_query_qp\0": fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
    destroy_qp = b"ibv_destroy_qp\0": fn(*mut Qp) -> c_int;
    create_ah = b"ibv_create_ah\0": fn(*mut Pd, *mut AhAttr) -> *mut Ah;
    destroy_ah = b"ibv_destroy_ah\0": fn(*mut Ah) -> c_int;
    get_async_event = b"ibv_get_async_event\0": fn(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event = b"ibv_ack_async_event\0": fn(*mut AsyncEvent);
    fork_init = b"ibv_fork_init\0": fn() -> c_int;
}
