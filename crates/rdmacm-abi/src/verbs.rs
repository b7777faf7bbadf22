//! The functions of libibverbs: those of the very library that the program uses, for its objects are shared with it. The loader
//! knows a library by its name and hands out the one that is there; only a program without one has it loaded here.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use farcall_ibv::abi::PortAttr;
use farcall_ibv::abi::whole::{
    CompChannel, Context, Cq, Device, DeviceAttr, EXTENDED, Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx, Srq,
    SrqInitAttr, VerbsContext,
};

use crate::errno::Errno;

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub struct Verbs {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        /// # Safety
        /// `library` must be libibverbs, and stay loaded.
        unsafe fn bind(library: &libloading::Library) -> Result<Verbs, libloading::Error> {
            // SAFETY: the symbols have these types in libibverbs since its version 1.1.
            unsafe { Ok(Verbs { $($name: *library.get($symbol)?,)* }) }
        }
    };
}

functions! {
    get_device_list = b"ibv_get_device_list\0": fn(*mut c_int) -> *mut *mut Device;
    free_device_list = b"ibv_free_device_list\0": fn(*mut *mut Device);
    open_device = b"ibv_open_device\0": fn(*mut Device) -> *mut Context;
    query_device = b"ibv_query_device\0": fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port = b"ibv_query_port\0": fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid = b"ibv_query_gid\0": fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int;
    alloc_pd = b"ibv_alloc_pd\0": fn(*mut Context) -> *mut Pd;
    create_comp_channel = b"ibv_create_comp_channel\0": fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel = b"ibv_destroy_comp_channel\0": fn(*mut CompChannel) -> c_int;
    create_cq = b"ibv_create_cq\0": fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq = b"ibv_destroy_cq\0": fn(*mut Cq) -> c_int;
    create_srq = b"ibv_create_srq\0": fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    destroy_srq = b"ibv_destroy_srq\0": fn(*mut Srq) -> c_int;
    create_qp = b"ibv_create_qp\0": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = b"ibv_modify_qp\0": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp = b"ibv_destroy_qp\0": fn(*mut Qp) -> c_int;
}

/// The library of this process, which stays loaded.
pub fn library() -> &'static Result<libloading::Library, String> {
    static LIBRARY: OnceLock<Result<libloading::Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: libibverbs' initialisers only set up its own state.
        unsafe { libloading::Library::new("libibverbs.so.1") }.map_err(|error| error.to_string())
    })
}

/// Its functions.
///
/// # Errors
/// `ENODEV` when there is none.
pub fn verbs() -> Result<&'static Verbs, Errno> {
    static VERBS: OnceLock<Result<Verbs, String>> = OnceLock::new();
    VERBS
        .get_or_init(|| {
            let library = library().as_ref().map_err(String::clone)?;
            // SAFETY: the name is libibverbs'; the library stays loaded.
            unsafe { bind(library) }.map_err(|error| error.to_string())
        })
        .as_ref()
        .map_err(|error| {
            crate::complain(format_args!("no libibverbs.so.1: {error}"));
            libc::ENODEV
        })
}

/// The header's `ibv_create_qp_ex`: by the context's table.
///
/// # Safety
/// As `man ibv_create_qp_ex` says.
pub unsafe fn create_qp_ex(context: *mut Context, attr: *mut QpInitAttrEx) -> Result<*mut Qp, Errno> {
    // SAFETY: the caller's context.
    let is_extended = unsafe { (*context).abi_compat } == EXTENDED;
    if !is_extended {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: such a context lies at the end of its `verbs_context` (verbs.h); the caller's structure.
    let made = unsafe {
        let verbs = context.byte_sub(std::mem::offset_of!(VerbsContext, context)).cast::<VerbsContext>();
        ((*verbs).create_qp_ex)(context, attr)
    };
    crate::errno::made(made)
}
