//! List of the open sockets of all threads, for `stats conns`.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{SocketAddrAny, SocketAddrUnix, getpeername, getsockname};

use crate::memcached::{ALL_LISTED, push_number};

/// Number of sockets listed at a time; other threads wait for the list during that time.
const LISTED_AT_ONCE: usize = 64;

/// The sockets by their descriptors. Threads change the list when they add or close connections.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<BTreeMap<RawFd, ListedSocket>>);

#[derive(Debug)]
struct ListedSocket {
    address: String,
    /// `None` for a listener.
    listen_address: Option<String>,
    activity: Arc<Activity>,
}

/// Activity of a connection, reported by its thread.
#[derive(Debug, Default)]
pub(super) struct Activity {
    last_command_ms: AtomicU64,
    state: AtomicU8,
}

/// State of a socket, named as in memcached.
#[derive(Debug, Clone, Copy)]
pub(super) enum SocketState {
    /// No input.
    Read,
    /// A command has arrived in part.
    ReadRest,
    /// The peer has not received its replies.
    Write,
    /// New connections are accepted.
    Listen,
}

const STATE_NAMES: [&str; 4] = ["conn_read", "conn_nread", "conn_mwrite", "conn_listening"];

impl Activity {
    pub(super) fn note_commands(&self, now_ms: u64) {
        self.last_command_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn note_state(&self, state: SocketState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }
}

impl Connections {
    /// Adds a connection.
    pub(super) fn add(&self, socket: impl AsFd, now_ms: u64) -> Arc<Activity> {
        let fd = socket.as_fd();
        let peer = getpeername(fd).ok().flatten();
        let address = name(peer);
        self.insert(fd.as_raw_fd(), address, Some(name(getsockname(fd).ok())), SocketState::Read, now_ms)
    }

    /// Adds a listener.
    pub(super) fn add_listener(&self, socket: impl AsFd, now_ms: u64) {
        let fd = socket.as_fd();
        self.insert(fd.as_raw_fd(), name(getsockname(fd).ok()), None, SocketState::Listen, now_ms);
    }

    fn insert(
        &self,
        fd: RawFd,
        address: String,
        listen_address: Option<String>,
        state: SocketState,
        now_ms: u64,
    ) -> Arc<Activity> {
        let activity = Arc::<Activity>::default();
        activity.note_state(state);
        activity.note_commands(now_ms);
        self.lock().insert(fd, ListedSocket { address, listen_address, activity: Arc::clone(&activity) });
        activity
    }

    /// Removes a socket. Must be called before the socket is closed, because its descriptor may be reused afterwards.
    pub(super) fn remove(&self, socket: impl AsFd) {
        self.lock().remove(&socket.as_fd().as_raw_fd());
    }

    /// Writes some of the sockets whose descriptors follow `after`, and advances it. `asking` is the connection that
    /// requested the list.
    pub(super) fn list(&self, after: &mut RawFd, asking: RawFd, now_ms: u64, out: &mut Vec<u8>) {
        let sockets = self.lock();
        let mut following = sockets.range((Excluded(*after), Unbounded));
        for (&fd, listed) in following.by_ref().take(LISTED_AT_ONCE) {
            *after = fd;
            let mut say = |what: &str, value: &str| {
                out.extend_from_slice(b"STAT ");
                push_number(out, fd as u64);
                for part in [":", what, " ", value, "\r\n"] {
                    out.extend_from_slice(part.as_bytes());
                }
            };
            say("addr", &listed.address);
            if let Some(address) = &listed.listen_address {
                say("listen_addr", address);
            }
            let state = STATE_NAMES[usize::from(listed.activity.state.load(Ordering::Relaxed))];
            say("state", if fd == asking { "conn_parse_cmd" } else { state });
            let idle_ms = now_ms.saturating_sub(listed.activity.last_command_ms.load(Ordering::Relaxed));
            say("secs_since_last_cmd", &(idle_ms / 1000).to_string());
        }
        if following.next().is_none() {
            *after = ALL_LISTED;
        }
    }

    /// A panic of another thread leaves a consistent list, because each change is a single call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<RawFd, ListedSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An address as memcached writes it.
fn name(address: Option<SocketAddrAny>) -> String {
    let Some(address) = address else { return "unknown".to_owned() };
    if let Ok(unix) = SocketAddrUnix::try_from(address.clone()) {
        let path = unix.path_bytes().unwrap_or_default();
        return format!("unix:{}", path.escape_ascii());
    }
    match std::net::SocketAddr::try_from(address) {
        Ok(address) if address.is_ipv6() => format!("tcp6:{address}"),
        Ok(address) => format!("tcp:{address}"),
        Err(_) => "unknown".to_owned(),
    }
}
