//! The interface of systemd and similar supervisors to services: sd_listen_fds(3), sd_notify(3).

use crate::failure::{Exit, Failure};
use rustix::io::{FdFlags, fcntl_setfd};
use std::env;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// SD_LISTEN_FDS_START.
const FIRST_FD: RawFd = 3;
/// Maximum number of a descriptor. A unit has few sockets, so a higher number is an error.
const FDS_MAX: RawFd = 62;

/// Returns the sockets opened for this process, if there are any. Must be called only once, because it takes ownership
/// of the descriptors.
///
/// # Errors
/// If the environment variables are inconsistent.
pub fn take_sockets() -> Result<Vec<OwnedFd>, Failure> {
    let number = |name: &str| env::var(name).ok()?.parse::<RawFd>().ok();
    // The variables are those of an ancestor process.
    if number("LISTEN_PID") != Some(std::process::id() as RawFd) {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS").filter(|count| (0..=FDS_MAX).contains(count)).ok_or_else(|| {
        Failure::new("LISTEN_FDS is not the number of sockets of this process").exit(Exit::Usage)
    })?;
    (FIRST_FD..FIRST_FD + count).map(take).collect()
}

fn take(number: RawFd) -> Result<OwnedFd, Failure> {
    // SAFETY: `LISTEN_PID` names this process, so these descriptors were opened for it, and `take_sockets`, which is
    // called once at the start, is their only owner. The next call checks that they are open, before any other use.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    let listens = rustix::net::sockopt::socket_acceptconn(&socket);
    if !matches!(listens, Ok(true)) {
        // A descriptor of another kind does not belong to this function, so it is not closed.
        std::mem::forget(socket);
        return Err(Failure::new(format!("descriptor {number} is not a listening socket"))
            .remedy("in the .socket unit, name addresses with ListenStream, and do not set Accept")
            .exit(Exit::Usage));
    }
    fcntl_setfd(&socket, FdFlags::CLOEXEC)
        .map_err(|error| Failure::because("cannot take over a socket", &error))?;
    Ok(socket)
}

/// Returns whether a socket that was opened for this process listens on `address`.
pub fn listens_on(socket: &OwnedFd, address: std::net::SocketAddr) -> bool {
    let own = rustix::net::getsockname(socket).ok().and_then(|own| std::net::SocketAddr::try_from(own).ok());
    // Port 0 requests any port; no socket has it.
    own == Some(address)
}

/// Reports a state to the process that started this service, if it requested reports. A failure is ignored, because
/// the supervisor detects it itself.
pub fn notify(state: &str) {
    let Some(place) = env::var_os("NOTIFY_SOCKET") else { return };
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&place),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!("cannot send {state} to {}: {error}", place.display());
    }
}
