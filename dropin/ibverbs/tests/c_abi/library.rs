//! The library as used by a C program: exported functions found by name, and the header's inline functions, which call
//! through the tables in the objects.

use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

use farcall_layout::{
    Ah, AhAttr, Context, Cq, CqEx, CqInitAttrEx, Device, Functions, GidEntry, Mr, Pd, PortAttr, Qp, QpEx,
    QpInitAttrEx, Srq, VerbsContext,
};
use farcall_verbs::{RecvWr, SendWr, Wc};

/// Returns the path of the library that cargo built for these tests.
fn path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(std::path::Path::parent).unwrap();
    let library = folder.join("deps/libfarcall_ibverbs.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// Declares exported functions as fields of [`Library`].
macro_rules! exported {
    ($(fn $name:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Every function that the tests call, by the name that C programs link.
        #[allow(non_snake_case, reason = "the names are C's")]
        pub struct Library {
            functions: Functions,
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Library {
            fn load() -> Self {
                // SAFETY: the library's constructors have no effect that matters here. `infiniband/verbs.h` declares
                // the functions with these signatures.
                unsafe {
                    let library = libloading::Library::new(path()).unwrap();
                    let found = Self {
                        functions: Functions::find(&library).unwrap(),
                        $($name: *library.get(concat!(stringify!($name), "\0")).unwrap(),)*
                    };
                    std::mem::forget(library);
                    found
                }
            }
        }
    };
}

exported! {
    fn ibv_get_device_guid(*mut Device) -> u64;
    fn ibv_query_pkey(*mut Context, u8, c_int, *mut u16) -> c_int;
    fn ibv_rereg_mr(*mut Mr, c_int, *mut Pd, *mut c_void, usize, c_int) -> c_int;
    fn ibv_resize_cq(*mut Cq, c_int) -> c_int;
    fn ibv_init_ah_from_wc(*mut Context, u8, *mut Wc, *mut u8, *mut AhAttr) -> c_int;
    fn ibv_create_ah_from_wc(*mut Pd, *mut Wc, *mut u8, u8) -> *mut Ah;
    fn ibv_attach_mcast(*mut Qp, *const [u8; 16], u16) -> c_int;
    fn ibv_detach_mcast(*mut Qp, *const [u8; 16], u16) -> c_int;
    fn ibv_get_pkey_index(*mut Context, u8, u16) -> c_int;
    fn ibv_qp_to_qp_ex(*mut Qp) -> *mut QpEx;
    fn ibv_reg_mr_iova(*mut Pd, *mut c_void, usize, u64, c_int) -> *mut Mr;
    fn ibv_reg_mr_iova2(*mut Pd, *mut c_void, usize, u64, u32) -> *mut Mr;
    fn ibv_query_ece(*mut Qp, *mut [u32; 3]) -> c_int;
    fn ibv_set_ece(*mut Qp, *mut [u32; 3]) -> c_int;
    fn ibv_import_device(c_int) -> *mut Context;
    fn ibv_import_pd(*mut Context, u32) -> *mut c_void;
    fn ibv_import_mr(*mut c_void, u32) -> *mut c_void;
    fn _ibv_query_gid_ex(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    fn _ibv_query_gid_table(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    fn ibv_reg_dmabuf_mr(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;
    fn ibv_import_dm(*mut Context, u32) -> *mut c_void;
    fn ibv_alloc_dmah(*mut Context, *mut c_void) -> *mut c_void;
    fn ibv_reg_mr_ex(*mut Pd, *mut c_void) -> *mut Mr;
    fn ibv_dm_export_dmabuf_fd(*mut c_void) -> c_int;
    fn ibv_query_port_speed(*mut Context, u32, *mut u64) -> c_int;
    fn ibv_alloc_buf(*mut Pd, usize, *mut c_void) -> *mut c_void;
    fn ibv_create_comp_cntr(*mut Context, *mut c_void) -> *mut c_void;
    fn _ibv_query_comp_cntr_caps(*mut Context, *mut c_void, usize) -> c_int;
}

impl Library {
    /// Returns the library, which is loaded once.
    pub fn get() -> &'static Self {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        LIBRARY.get_or_init(Self::load)
    }
}

impl Deref for Library {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

/// Returns the thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: `__errno_location` returns a valid pointer to the calling thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Clears `errno`, to detect whether a call sets it.
pub fn clear_errno() {
    // SAFETY: `__errno_location` returns a valid pointer to the calling thread's own variable.
    unsafe { *libc::__errno_location() = 0 }
}

// --- The header's inline functions ---
// Their contracts are those of the C functions: pointers are live objects of the program, and structures are complete.
#[allow(clippy::missing_safety_doc, reason = "the contracts are the man pages'")]
pub mod inline {
    use super::*;

    /// `verbs_get_ctx`: the extended context around a context.
    pub unsafe fn extended(context: *mut Context) -> *mut VerbsContext {
        // SAFETY: contract of the C function: `context` is open. This library's contexts are part of a `VerbsContext`.
        unsafe {
            assert_eq!((*context).abi_compat as usize, usize::MAX);
            let around = context.byte_sub(std::mem::offset_of!(VerbsContext, context)).cast::<VerbsContext>();
            assert_eq!((*around).size_bytes, size_of::<VerbsContext>());
            around
        }
    }

    pub unsafe fn query_port(context: *mut Context, port_num: u8, attr: *mut PortAttr) -> c_int {
        // SAFETY: contract of the C function: the objects are live and the structures complete.
        unsafe { ((*extended(context)).query_port)(context, port_num, attr, size_of::<PortAttr>()) }
    }

    pub unsafe fn create_cq_ex(context: *mut Context, attr: *mut CqInitAttrEx) -> *mut CqEx {
        // SAFETY: contract of the C function: the objects are live and the structures complete.
        unsafe { ((*extended(context)).create_cq_ex)(context, attr) }
    }

    pub unsafe fn create_qp_ex(context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp {
        const PD_ALONE: u32 = 1;
        // SAFETY: contract of the C function: the objects are live and the structures complete.
        unsafe {
            if (*attr).comp_mask == PD_ALONE {
                return (Library::get().create_qp)((*attr).pd, attr.cast());
            }
            ((*extended(context)).create_qp_ex)(context, attr)
        }
    }

    pub unsafe fn poll_cq(cq: *mut Cq, wcs: &mut [Wc]) -> c_int {
        // SAFETY: contract of the C function: the queue is live.
        unsafe { ((*(*cq).context).ops.poll_cq)(cq, wcs.len() as c_int, wcs.as_mut_ptr()) }
    }

    pub unsafe fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
        // SAFETY: contract of the C function: the queue is live.
        unsafe { ((*(*cq).context).ops.req_notify_cq)(cq, solicited_only) }
    }

    pub unsafe fn post_send(qp: *mut Qp, wr: *mut SendWr<'static>, bad: *mut *mut SendWr<'static>) -> c_int {
        // SAFETY: contract of the C function: the pair is live and the chain valid.
        unsafe { ((*(*qp).context).ops.post_send)(qp, wr, bad) }
    }

    pub unsafe fn post_recv(qp: *mut Qp, wr: *mut RecvWr<'static>, bad: *mut *mut RecvWr<'static>) -> c_int {
        // SAFETY: contract of the C function: the pair is live and the chain valid.
        unsafe { ((*(*qp).context).ops.post_recv)(qp, wr, bad) }
    }

    pub unsafe fn post_srq_recv(
        srq: *mut Srq,
        wr: *mut RecvWr<'static>,
        bad: *mut *mut RecvWr<'static>,
    ) -> c_int {
        // SAFETY: contract of the C function: the queue is live and the chain valid.
        unsafe { ((*(*srq).context).ops.post_srq_recv.unwrap())(srq, wr, bad) }
    }
}

/// Returns the only device.
pub fn device() -> *mut Device {
    let mut count = 0;
    let library = Library::get();
    // SAFETY: the order of calls is that of the man page; devices outlive the list.
    unsafe {
        let list = (library.get_device_list)(&raw mut count);
        assert!(!list.is_null() && count == 1);
        let device = *list;
        assert_eq!(*list.add(1), ptr::null_mut());
        (library.free_device_list)(list);
        device
    }
}

/// Returns a structure of integers and pointers that are all zero, as C programs initialize them.
///
/// # Safety
/// Zero must be valid for every field.
pub unsafe fn zeroed<T>() -> T {
    // SAFETY: contract of this function: zero is valid for every field.
    unsafe { std::mem::zeroed() }
}
