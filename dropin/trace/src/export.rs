//! Exported functions of a drop-in library: under the original library's symbol versions, and traced if there is a
//! trace.

use std::ffi::{c_int, c_void};

use crate::call::Call;
use crate::errno;

/// Exports a function under a version node of the original library. Of several nodes the first is the default version.
#[macro_export]
macro_rules! symver {
    ([$node:literal $(, $older:literal)*], $name:ident) => {
        std::arch::global_asm!(
            concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@", $node),
            $(concat!(".symver ", stringify!($name), ", ", stringify!($name), "@", $older),)*
        );
    };
    ($node:literal, $name:ident) => { $crate::symver!([$node], $name); };
}

/// Exports C functions, each under its version node. The first argument is the path of a function that returns `Some`
/// if there is a trace, with a value that is dropped at the end of the call.
#[macro_export]
macro_rules! export {
    ($trace:path; $($node:literal {
        $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*
    })*) => {
        $($(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                let run = move || $(-> $ret)? { $body };
                let run = move || $crate::errno::set_errno_of(stringify!($name), run());
                let Some(_traced) = $trace() else { return run() };
                $crate::trace_call!($name($($arg),*), run)
            }

            $crate::symver!($node, $name);
        )*)*
    };
}

/// How an unsupported function reports that.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// It returns `EOPNOTSUPP` and sets `errno` to it.
    Number,
    /// It returns -1 and sets `errno`.
    MinusOne,
    /// It returns null and sets `errno`.
    Null,
    /// It returns nothing.
    Nothing,
}

/// Returns the result of an unsupported function, in the register that its return type uses. Traces the call without
/// its arguments.
pub fn refuse(name: &'static str, refusal: Refusal, is_traced: bool) -> isize {
    let call = if is_traced { Call::begin(name) } else { None };
    if !matches!(refusal, Refusal::Nothing) {
        errno::refused(libc::EOPNOTSUPP, format_args!("{name} is not offered"));
    }
    if let Some(mut call) = call {
        // SAFETY: the results are integers or null, which satisfies `Returned::format_result`.
        unsafe {
            match refusal {
                Refusal::Number => call.returned(libc::EOPNOTSUPP),
                Refusal::MinusOne => call.returned(-1 as c_int),
                Refusal::Null => call.returned(std::ptr::null_mut::<c_void>()),
                Refusal::Nothing => call.returned(()),
            }
        }
        call.end();
    }
    match refusal {
        Refusal::Number => libc::EOPNOTSUPP as isize,
        Refusal::MinusOne => -1,
        Refusal::Null | Refusal::Nothing => 0,
    }
}

/// Exports functions that programs link but that are not supported, by version node and kind of refusal. They are
/// declared without arguments: a C function may be called with more arguments than it reads.
#[macro_export]
macro_rules! unsupported {
    ($trace:path; $($node:tt { $($refusal:ident: $($name:ident)*;)* })*) => {
        $($($(
            /// Not supported.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> isize {
                let traced = $trace();
                $crate::refuse(stringify!($name), $crate::Refusal::$refusal, traced.is_some())
            }

            $crate::symver!($node, $name);
        )*)*)*
    };
}
