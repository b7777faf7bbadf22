//! The memcached protocols over TCP and Unix stream sockets.
//!
//! A [`Door`] belongs to one server thread and is driven by it: [`Door::poll`] waits for sockets, executes what came
//! and answers, all on the calling thread. The same store behind RPC and behind a door is the same code, so the door
//! is the baseline RPC is measured against: sockets never block, all commands that arrived together are executed
//! before one write answers them, and an idle connection costs neither memory for buffers nor time.
//!
//! Several server threads have one door each ([`Door::bind`] makes them together). The first accepts and deals the
//! connections out in turn. A command for a key of another thread's partition is forwarded to its owner (see
//! `forward.rs`), and its reply is put in its place; the store itself is never shared.

mod connection;
mod event_loop;
mod forward;
mod listener;
mod replies;

pub use event_loop::{Door, DoorConfig, DoorError};
pub use listener::{ListenError, Listener};
