//! The C library of Farcall: a translation of the Rust interface, without policy of its own.
//!
//! cbindgen generates `include/farcall.h` from this source. Hence the signatures of the header are those of the source,
//! and each function is documented once. `tests/header.rs` checks that the header is current, and can rewrite it.
//!
//! * Objects are opaque. A lock protects each object. A function that finds it held fails with [`Code::Busy`] and does
//!   not wait.
//! * A function returns a [`Code`]. The message of the last error is stored per thread (`farcall_error_message`).
//! * A panic does not leave a function. The function and all later functions with the same object return
//!   [`Code::Panicked`].
//! * Values and results are not copied for the caller. They are memory of the library, and valid until the next
//!   function call with the same object.
//! * The section "Pointers" of the man page farcall(3) states which memory the pointers of a program must address, and
//!   how long. Every SAFETY comment of an exported function relies on it.

#![allow(non_camel_case_types, reason = "they are the names of C")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the documentation is that of the header: what a C program may pass"
)]

mod argument;
mod boundary;
mod errors;
mod kv;
mod options;
mod rpc;
mod server;
mod stream;

pub use errors::{
    farcall_error_application_code, farcall_error_executed, farcall_error_message, farcall_error_text,
    farcall_executed,
};
pub use farcall::binding::Code;
pub use kv::{
    farcall_bytes, farcall_found, farcall_item, farcall_kv, farcall_kv_close, farcall_kv_compare_and_swap,
    farcall_kv_connect, farcall_kv_delete, farcall_kv_get, farcall_kv_get_many, farcall_kv_put,
    farcall_kv_touch, farcall_put_mode, farcall_write,
};
pub use options::{FARCALL_VERSION, farcall_options, farcall_options_init, farcall_version};
pub use rpc::{farcall_rpc, farcall_rpc_call, farcall_rpc_close, farcall_rpc_connect};
pub use server::{
    farcall_call, farcall_handler, farcall_reply, farcall_reply_append, farcall_reply_refuse, farcall_server,
    farcall_server_address, farcall_server_start, farcall_server_stop,
};
pub use stream::{
    farcall_listen, farcall_listener, farcall_listener_accept, farcall_listener_address,
    farcall_listener_close, farcall_listener_fd, farcall_stream, farcall_stream_close,
    farcall_stream_connect, farcall_stream_fd, farcall_stream_peer_address, farcall_stream_read,
    farcall_stream_ready, farcall_stream_reset, farcall_stream_set_timeouts, farcall_stream_shutdown,
    farcall_stream_write,
};
