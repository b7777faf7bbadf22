//! The memcached protocols over TCP and Unix stream sockets.
//!
//! A [`FrontEnd`] belongs to one server thread, which drives it: [`FrontEnd::poll`] waits for sockets, executes the
//! received commands and replies, all on the calling thread. RPC and front ends use the same store code, so the front
//! end is the baseline with which RPC is compared. Sockets never block. All commands that arrived together are
//! executed before one write sends their replies. An idle connection costs no buffer memory and no time.
//!
//! With several server threads, each has one front end ([`FrontEnd::bind`] creates them together). The first accepts
//! connections and distributes them round robin. A command for a key of another thread's partition is forwarded to its
//! owner (see `forward.rs`), and its reply is inserted in order; the store itself is never shared.

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
