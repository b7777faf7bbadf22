//! Server processes of stores of other projects.

use super::ready::Ready;
use super::server::{ServerError, ServerProcess};
use crate::foreign_store::{ForeignStore, Socket};
use crate::peer::{PeerError, free_ports};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

/// Starts `store` by `command`, which executes its server program; the server's arguments are appended to it. The store
/// listens on a free port or on a Unix socket of this user, and has memory for the given number of bytes.
///
/// # Errors
/// Returns an error if the program is not installed, or if it exits or hangs before it serves.
pub(crate) fn start(
    store: ForeignStore,
    mut command: Command,
    socket: Socket,
    unix_path: PathBuf,
    memory_bytes: u64,
    cores: &[usize],
) -> Result<ServerProcess, ServerError> {
    let mut ready = Ready { serving: store.to_string(), ..Ready::default() };
    match socket {
        Socket::Tcp => {
            let [port] = free_ports()?;
            ready.tcp.push(SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string());
        }
        Socket::Unix => ready.unix.push(unix_path),
    }
    command.args(store.args(&ready, memory_bytes));
    ServerProcess::start_foreign(&mut command, cores, ready).map_err(|error| match error {
        ServerError::Start(PeerError::Start { source, .. }) if source.kind() == ErrorKind::NotFound => {
            ServerError::NotInstalled(store.program())
        }
        error => error,
    })
}
