//! The memcached protocols over TCP and Unix stream sockets.
//!
//! A [`FrontEnd`] belongs to one server thread and is driven by it: [`FrontEnd::poll`] waits for sockets, executes what
//! came and answers, all on the calling thread. The same store behind RPC and behind a front end is the same code, so
//! the front end is the baseline RPC is measured against: sockets never block, all commands that arrived together are
//! executed before one write answers them, and an idle connection costs neither memory for buffers nor time.
//!
//! Several server threads have one front end each ([`FrontEnd::bind`] makes them together). The first accepts and gives
//! the connections to all in turn. A command for a key of another thread's partition is forwarded to its owner (see
//! `forward.rs`), and its reply is put in its place; the store itself is never shared.

mod buffers;
mod config;
mod connection;
mod connections;
mod event_loop;
mod forward;
mod listener;
mod replies;

pub use config::FrontEndConfig;
pub use event_loop::{FrontEnd, FrontEndError};
pub use listener::{ListenError, Listener};
