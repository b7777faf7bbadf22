//! Decision whether TCP carries a stream: only to another host that no device reaches.
//!
//! Processes of one host authorize each other by their users, which TCP does not identify. Between addresses of one
//! host, TCP therefore carries no stream, whatever the peer claims: neither end may be made to skip the authorization.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use farcall_link::Nic;
use farcall_link::bootstrap::{Refusal, RefusalKind, StreamEnd};
use farcall_verbs::with_sources;

use crate::config::StreamConfig;

/// The local and the peer address of a connection.
pub(crate) type Addresses = (SocketAddr, SocketAddr);

/// Returns whether the server selects TCP for a client with these parameters.
pub(crate) fn is_due(
    nic: &Nic,
    config: &StreamConfig,
    theirs: &StreamEnd,
    addresses: Option<Addresses>,
) -> bool {
    let is_carried =
        theirs.provider == nic.provider() && nic.context().carries_to(theirs.qp.gid(), theirs.qp.qp_num);
    let both_may = config.may_use_tcp && theirs.may_use_channel;
    !is_carried && both_may && addresses.is_some_and(|addresses| check(nic, addresses).is_ok())
}

/// Checks, at the client, whether the server was right to select TCP.
///
/// # Errors
/// Returns the reason why TCP is not acceptable.
pub(crate) fn check_choice(
    nic: &Nic,
    config: &StreamConfig,
    addresses: Option<Addresses>,
) -> Result<(), Refusal> {
    let refuse = |why: String| RefusalKind::Provider.because(format!("the server chose TCP: {why}"));
    let addresses = addresses.ok_or_else(|| refuse("the handshake did not go over it".into()))?;
    if !config.may_use_tcp {
        return Err(refuse("StreamConfig::may_use_tcp forbids it".into()));
    }
    check(nic, addresses).map_err(refuse)
}

fn check(nic: &Nic, (own, peer): Addresses) -> Result<(), String> {
    let [own, peer] = [own, peer].map(|address| address.ip().to_canonical());
    if is_of_this_host(peer) {
        return Err(format!(
            "{peer} is an address of this host, whose processes meet in shared memory (containers share a directory \
             through FARCALL_SOCKET_DIR); take an address by which the other one's network is reached"
        ));
    }
    nic.context().check_connection(own, peer).map_err(|error| with_sources(&error))
}

/// Returns whether packets to `address` stay on this host: the kernel then selects the same address as their source.
fn is_of_this_host(address: IpAddr) -> bool {
    /// An arbitrary port.
    const DISCARD: u16 = 9;
    let any = match address {
        IpAddr::V4(_) => IpAddr::from([0_u8; 4]),
        IpAddr::V6(_) => IpAddr::from([0_u16; 8]),
    };
    let source = || -> std::io::Result<SocketAddr> {
        let socket = UdpSocket::bind((any, 0))?;
        // Connecting a UDP socket sends no packet.
        socket.connect((address, DISCARD))?;
        socket.local_addr()
    };
    // If the source address is unknown, the address counts as local, so that TCP is not used.
    address.is_loopback() || source().map_or(true, |source| source.ip().to_canonical() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_of_this_host() {
        for own in ["127.0.0.1", "127.9.9.9", "::1"] {
            assert!(is_of_this_host(own.parse().unwrap()), "{own}");
        }
    }
}
