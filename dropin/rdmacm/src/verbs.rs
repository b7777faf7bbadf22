//! The functions of libibverbs, from the library instance that the program uses, because its objects are shared. The
//! dynamic loader identifies a library by its name and returns the loaded instance; it is loaded here only if the
//! program has none.

use std::sync::OnceLock;

use farcall_layout::{Context, EXTENDED, Functions, Qp, QpInitAttrEx, VerbsContext};

use crate::errno::{Errno, refused};

/// Returns the library of this process, which remains loaded.
pub fn library() -> &'static Result<libloading::Library, String> {
    static LIBRARY: OnceLock<Result<libloading::Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: libibverbs' initialisers only set up its own state.
        unsafe { libloading::Library::new("libibverbs.so.1") }.map_err(|error| error.to_string())
    })
}

/// Returns the library's functions.
///
/// # Errors
/// Returns `ENODEV` if there is no library.
pub fn verbs() -> Result<&'static Functions, Errno> {
    static VERBS: OnceLock<Result<Functions, String>> = OnceLock::new();
    VERBS
        .get_or_init(|| {
            let library = library().as_ref().map_err(String::clone)?;
            // SAFETY: `library` is libibverbs, which exports these names with these types and remains loaded.
            unsafe { Functions::find(library) }.map_err(|error| error.to_string())
        })
        .as_ref()
        .map_err(|error| {
            crate::complain(format_args!("no libibverbs.so.1: {error}"));
            refused(libc::ENODEV, format_args!("no libibverbs.so.1: {error}"))
        })
}

/// The header's inline function `ibv_create_qp_ex`, which calls through the context's table.
///
/// # Safety
/// The same as for `ibv_create_qp_ex` (man page).
pub unsafe fn create_qp_ex(context: *mut Context, attr: *mut QpInitAttrEx) -> Result<*mut Qp, Errno> {
    // SAFETY: contract of this function: `context` is open.
    let is_extended = unsafe { (*context).abi_compat } == EXTENDED;
    if !is_extended {
        return Err(refused(libc::EOPNOTSUPP, format_args!("the device has no extended calls")));
    }
    // SAFETY: a context with this `abi_compat` is the last field of a `verbs_context` (verbs.h). Contract of this
    // function: `attr` is valid.
    let made = unsafe {
        let verbs = context.byte_sub(std::mem::offset_of!(VerbsContext, context)).cast::<VerbsContext>();
        ((*verbs).create_qp_ex)(context, attr)
    };
    crate::errno::made(made)
}
