//! The functions of libibverbs: those of the very library that the program uses, for its objects are shared with it.
//! The loader knows a library by its name and hands out the one that is there; only a program without one has it loaded
//! here.

use std::sync::OnceLock;

use farcall_layout::{Context, EXTENDED, Functions, Qp, QpInitAttrEx, VerbsContext};

use crate::errno::{Errno, refused};

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
pub fn verbs() -> Result<&'static Functions, Errno> {
    static VERBS: OnceLock<Result<Functions, String>> = OnceLock::new();
    VERBS
        .get_or_init(|| {
            let library = library().as_ref().map_err(String::clone)?;
            // SAFETY: the name is libibverbs'; the library stays loaded.
            unsafe { Functions::find(library) }.map_err(|error| error.to_string())
        })
        .as_ref()
        .map_err(|error| {
            crate::complain(format_args!("no libibverbs.so.1: {error}"));
            refused(libc::ENODEV, format_args!("no libibverbs.so.1: {error}"))
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
        return Err(refused(libc::EOPNOTSUPP, format_args!("the device has no extended calls")));
    }
    // SAFETY: such a context lies at the end of its `verbs_context` (verbs.h); the caller's structure.
    let made = unsafe {
        let verbs = context.byte_sub(std::mem::offset_of!(VerbsContext, context)).cast::<VerbsContext>();
        ((*verbs).create_qp_ex)(context, attr)
    };
    crate::errno::made(made)
}
