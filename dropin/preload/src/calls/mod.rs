//! Functions that replace those of the C library. Each handles the connections of this library, and calls the C
//! library's function for all other descriptors.
//!
//! They may unwind, because a thread can be cancelled in a call that waits.

mod aliases;
mod asynchronous;
mod confinement;
mod connection;
mod control;
mod events;
mod forward;
mod jumps;
mod loading;
mod mappings;
mod opening;
mod process;
mod receive;
mod send;
mod signals;
mod streams;
mod system;

/// Exports functions.
macro_rules! export {
    ($($(#[$attribute:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => {
        $(
            /// See its manual page.
            ///
            /// # Safety
            /// As the manual page says.
            $(#[$attribute])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret $body
        )*
    };
}
use export;

/// Exports functions that call `before`, and then the C library's function with their arguments.
macro_rules! export_before {
    ($before:path: $($(#[$attribute:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $crate::calls::export! {
            $(
                $(#[$attribute])*
                fn $name($($arg: $ty),*) -> $ret {
                    $before();
                    // SAFETY: the C library's function of that name has the contract of this one, whose arguments it
                    // gets unchanged.
                    unsafe { $crate::libc_next::$name($($arg),*) }
                }
            )*
        }
    };
}
use export_before;
