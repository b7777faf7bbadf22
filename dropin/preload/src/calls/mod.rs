//! The functions that programs call in the place of the C library's: each asks whether a connection of ours is meant,
//! and lets the C library's do all the rest.
//!
//! An unwinding may leave them, because a thread can be cancelled inside of calls that wait.

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
