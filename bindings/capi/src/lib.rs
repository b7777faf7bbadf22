//! The C library of Farcall: a translation of the Rust interface, which decides nothing.
//!
//! `include/farcall.h` is generated from this source by cbindgen, so that no signature can differ from the header's, and
//! each function is documented once. A test checks that the header is current, and writes it (`tests/header.rs`).
//!
//! * Objects are opaque. Each is behind a lock that nobody waits for: a second thread gets [`Code::Busy`].
//! * A function returns a [`Code`]; the words of the last failure belong to the thread (`farcall_error_message`).
//! * No panic leaves a function: it becomes [`Code::Panicked`], as does every later use of the object.
//! * Bytes are lent where they are, until the next call with the same object: nothing is copied for the caller.

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
