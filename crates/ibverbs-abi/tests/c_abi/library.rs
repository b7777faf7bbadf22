//! The library as a C program meets it: exported functions found by name and version, and the header's inline functions,
//! which go through the tables in the objects.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

use farcall_ibv::abi::whole::{
    Ah, AhAttr, AsyncEvent, CompChannel, Context, Cq, CqEx, CqInitAttrEx, Device, DeviceAttr, GidEntry, Mr,
    Pd, PortAttr, Qp, QpAttr, QpEx, QpInitAttr, QpInitAttrEx, Srq, SrqAttr, SrqInitAttr, VerbsContext,
};
use farcall_verbs::{RecvWr, SendWr, Wc};

/// Where cargo put the library that it built beside these tests.
fn path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(std::path::Path::parent).unwrap();
    let library = folder.join("deps/libfarcall_ibverbs_abi.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

fn symbol(name: &str, version: &str) -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        let name = CString::new(path().as_os_str().as_bytes()).unwrap();
        // SAFETY: a library whose constructors do nothing that matters here.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: `dlerror` returns a text after a failure.
        assert!(!handle.is_null(), "{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
        handle as usize
    });
    let (c_name, c_version) = (CString::new(name).unwrap(), CString::new(version).unwrap());
    // SAFETY: a handle of `dlopen`, and C strings.
    let found = unsafe { libc::dlvsym(handle as *mut c_void, c_name.as_ptr(), c_version.as_ptr()) };
    assert!(!found.is_null(), "no {name}@{version}");
    found
}

/// Declares exported functions as fields of [`Library`].
macro_rules! exported {
    ($($version:literal { $(fn $name:ident($($arg:ty),*) $(-> $ret:ty)?;)* })*) => {
        /// Every function that the tests call, by the name and version that C programs link.
        #[allow(non_snake_case, reason = "the names are C's")]
        pub struct Library { $($(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*)* }

        impl Library {
            /// The library, loaded once.
            pub fn get() -> &'static Self {
                static LIBRARY: OnceLock<Library> = OnceLock::new();
                LIBRARY.get_or_init(|| Self { $($(
                    // SAFETY: the function has this signature in `infiniband/verbs.h`.
                    $name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(
                            symbol(stringify!($name), $version),
                        )
                    },
                )*)* })
            }
        }
    };
}

exported! {
    "IBVERBS_1.1" {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut Device;
        fn ibv_free_device_list(*mut *mut Device);
        fn ibv_get_device_name(*mut Device) -> *const c_char;
        fn ibv_get_device_guid(*mut Device) -> u64;
        fn ibv_open_device(*mut Device) -> *mut Context;
        fn ibv_close_device(*mut Context) -> c_int;
        fn ibv_query_device(*mut Context, *mut DeviceAttr) -> c_int;
        fn ibv_query_gid(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int;
        fn ibv_query_pkey(*mut Context, u8, c_int, *mut u16) -> c_int;
        fn ibv_alloc_pd(*mut Context) -> *mut Pd;
        fn ibv_dealloc_pd(*mut Pd) -> c_int;
        fn ibv_reg_mr(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        fn ibv_rereg_mr(*mut Mr, c_int, *mut Pd, *mut c_void, usize, c_int) -> c_int;
        fn ibv_dereg_mr(*mut Mr) -> c_int;
        fn ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        fn ibv_resize_cq(*mut Cq, c_int) -> c_int;
        fn ibv_destroy_cq(*mut Cq) -> c_int;
        fn ibv_get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut Cq, u32);
        fn ibv_create_srq(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
        fn ibv_modify_srq(*mut Srq, *mut SrqAttr, c_int) -> c_int;
        fn ibv_query_srq(*mut Srq, *mut SrqAttr) -> c_int;
        fn ibv_destroy_srq(*mut Srq) -> c_int;
        fn ibv_create_qp(*mut Pd, *mut QpInitAttr) -> *mut Qp;
        fn ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
        fn ibv_query_qp(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
        fn ibv_destroy_qp(*mut Qp) -> c_int;
        fn ibv_create_ah(*mut Pd, *mut AhAttr) -> *mut Ah;
        fn ibv_init_ah_from_wc(*mut Context, u8, *mut Wc, *mut u8, *mut AhAttr) -> c_int;
        fn ibv_create_ah_from_wc(*mut Pd, *mut Wc, *mut u8, u8) -> *mut Ah;
        fn ibv_destroy_ah(*mut Ah) -> c_int;
        fn ibv_attach_mcast(*mut Qp, *const [u8; 16], u16) -> c_int;
        fn ibv_detach_mcast(*mut Qp, *const [u8; 16], u16) -> c_int;
        fn ibv_get_async_event(*mut Context, *mut AsyncEvent) -> c_int;
        fn ibv_ack_async_event(*mut AsyncEvent);
    }
    "IBVERBS_1.0" {
        fn ibv_create_comp_channel(*mut Context) -> *mut CompChannel;
        fn ibv_destroy_comp_channel(*mut CompChannel) -> c_int;
    }
    "IBVERBS_1.5" {
        fn ibv_get_pkey_index(*mut Context, u8, u16) -> c_int;
    }
    "IBVERBS_1.6" {
        fn ibv_qp_to_qp_ex(*mut Qp) -> *mut QpEx;
    }
    "IBVERBS_1.7" {
        fn ibv_reg_mr_iova(*mut Pd, *mut c_void, usize, u64, c_int) -> *mut Mr;
    }
    "IBVERBS_1.8" {
        fn ibv_reg_mr_iova2(*mut Pd, *mut c_void, usize, u64, u32) -> *mut Mr;
    }
    "IBVERBS_1.10" {
        fn ibv_query_ece(*mut Qp, *mut [u32; 3]) -> c_int;
        fn ibv_set_ece(*mut Qp, *mut [u32; 3]) -> c_int;
        fn ibv_import_device(c_int) -> *mut Context;
        fn ibv_import_pd(*mut Context, u32) -> *mut c_void;
        fn ibv_import_mr(*mut c_void, u32) -> *mut c_void;
    }
    "IBVERBS_1.11" {
        fn _ibv_query_gid_ex(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
        fn _ibv_query_gid_table(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    }
    "IBVERBS_1.12" {
        fn ibv_reg_dmabuf_mr(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;
    }
    "IBVERBS_1.13" {
        fn ibv_import_dm(*mut Context, u32) -> *mut c_void;
    }
    "IBVERBS_1.15" {
        fn ibv_alloc_dmah(*mut Context, *mut c_void) -> *mut c_void;
        fn ibv_reg_mr_ex(*mut Pd, *mut c_void) -> *mut Mr;
    }
    "IBVERBS_1.16" {
        fn ibv_dm_export_dmabuf_fd(*mut c_void) -> c_int;
        fn ibv_query_port_speed(*mut Context, u32, *mut u64) -> c_int;
    }
    "IBVERBS_1.17" {
        fn ibv_alloc_buf(*mut Pd, usize, *mut c_void) -> *mut c_void;
    }
    "IBVERBS_1.18" {
        fn ibv_create_comp_cntr(*mut Context, *mut c_void) -> *mut c_void;
        fn _ibv_query_comp_cntr_caps(*mut Context, *mut c_void, usize) -> c_int;
    }
}

/// The thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`, to see that a call does.
pub fn clear_errno() {
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() = 0 }
}

// --- The header's inline functions ------------------------------------------------------------------------------------
// Their safety is that of the C functions: pointers are the program's own objects, structures are whole.
#[allow(clippy::missing_safety_doc, reason = "the contracts are the man pages'")]
pub mod inline {
    use super::*;

    /// `verbs_get_ctx`: the extended context around a context.
    pub unsafe fn extended(context: *mut Context) -> *mut VerbsContext {
        // SAFETY: our contexts are extended: the caller's context lies in one.
        unsafe {
            assert_eq!((*context).abi_compat as usize, usize::MAX);
            let around = context.byte_sub(std::mem::offset_of!(VerbsContext, context)).cast::<VerbsContext>();
            assert_eq!((*around).size_bytes, size_of::<VerbsContext>());
            around
        }
    }

    pub unsafe fn query_port(context: *mut Context, port_num: u8, attr: *mut PortAttr) -> c_int {
        // SAFETY: the caller's.
        unsafe { ((*extended(context)).query_port)(context, port_num, attr, size_of::<PortAttr>()) }
    }

    pub unsafe fn create_cq_ex(context: *mut Context, attr: *mut CqInitAttrEx) -> *mut CqEx {
        // SAFETY: the caller's.
        unsafe { ((*extended(context)).create_cq_ex)(context, attr) }
    }

    pub unsafe fn create_qp_ex(context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp {
        const PD_ALONE: u32 = 1;
        // SAFETY: the caller's.
        unsafe {
            if (*attr).comp_mask == PD_ALONE {
                return (Library::get().ibv_create_qp)((*attr).pd, attr.cast());
            }
            ((*extended(context)).create_qp_ex)(context, attr)
        }
    }

    pub unsafe fn poll_cq(cq: *mut Cq, wcs: &mut [Wc]) -> c_int {
        // SAFETY: the caller's.
        unsafe { ((*(*cq).context).ops.poll_cq)(cq, wcs.len() as c_int, wcs.as_mut_ptr()) }
    }

    pub unsafe fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
        // SAFETY: the caller's.
        unsafe { ((*(*cq).context).ops.req_notify_cq)(cq, solicited_only) }
    }

    pub unsafe fn post_send(qp: *mut Qp, wr: *mut SendWr<'static>, bad: *mut *mut SendWr<'static>) -> c_int {
        // SAFETY: the caller's.
        unsafe { ((*(*qp).context).ops.post_send)(qp, wr, bad) }
    }

    pub unsafe fn post_recv(qp: *mut Qp, wr: *mut RecvWr<'static>, bad: *mut *mut RecvWr<'static>) -> c_int {
        // SAFETY: the caller's.
        unsafe { ((*(*qp).context).ops.post_recv)(qp, wr, bad) }
    }

    pub unsafe fn post_srq_recv(
        srq: *mut Srq,
        wr: *mut RecvWr<'static>,
        bad: *mut *mut RecvWr<'static>,
    ) -> c_int {
        // SAFETY: the caller's.
        unsafe { ((*(*srq).context).ops.post_srq_recv)(srq, wr, bad) }
    }
}

/// The one device.
pub fn device() -> *mut Device {
    let mut count = 0;
    let library = Library::get();
    // SAFETY: as the man page shows it; devices live on after the list.
    unsafe {
        let list = (library.ibv_get_device_list)(&raw mut count);
        assert!(!list.is_null() && count == 1);
        let device = *list;
        assert_eq!(*list.add(1), ptr::null_mut());
        (library.ibv_free_device_list)(list);
        device
    }
}

/// Structures of plain numbers and pointers, all zero, as C programs begin with.
///
/// # Safety
/// Zero must be a value of every field.
pub unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's promise.
    unsafe { std::mem::zeroed() }
}
