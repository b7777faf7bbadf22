//! Sockets from which packets are sent. Each connected queue pair has a socket and a source port of its own.
//!
//! RoCEv2 fixes the destination port and leaves the source port to the sender. A port for each queue pair distributes
//! the queue pairs over the links and queues of a network, and lets the receiving kernel combine the packets of one
//! queue pair (GRO). It also protects the peer: a queue pair accepts packets from one port only
//! ([`super::peer_port`]). The sockets are bound without address and without sharing, so that no other socket of the
//! host can send from their ports.
//!
//! A socket costs a descriptor and, in a batch of packets of several queue pairs, a system call. A process opens at most
//! [`SEND_SOCKETS_MAX`], as many as the shared port consists of. Further queue pairs share these, and so do all queue
//! pairs if descriptors or ports are used up; they are counted. An attacker that forges packets, and has learned the
//! ports of such a process as a peer of others of its queue pairs, must try 64 ports instead of 16,384.
//!
//! Peers reply to port 4791. A filter drops all that arrives at these sockets, so that it consumes no memory. Datagrams
//! (UD) and management datagrams are sent from port 4791.
//!
//! A firewall that admits only replies to packets of its host drops those of such a peer. It must admit port 4791;
//! otherwise [`VARIABLE`] makes both hosts send from port 4791, as earlier versions do.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use farcall_shm::fork::DontForkFd;
use farcall_shm::trusted_variable;
use farcall_verbs::{Error, Result};
use farcall_wire::codec::UDP_PORT;
use rustix::io::Errno;

use super::shared_port::SharedPort;
use super::socket::bind_sender;

/// Ports from which Farcall sends. RNICs and the kernel's rxe use 0xC000 and above, so the port distinguishes peers of
/// both kinds.
pub(super) const SOURCE_PORTS: Range<u16> = 0x8000..0xC000;

/// Maximum number of sockets of a process with a port of their own.
const SEND_SOCKETS_MAX: usize = 64;

/// Number of ports that are tried for a socket. Sockets of other processes may have some of them.
const BIND_ATTEMPTS: u32 = 16;

/// Environment variable: `own` (each queue pair has a source port, the default) or `shared` (all have 4791).
const VARIABLE: &str = "FARCALL_SOURCE_PORTS";

/// A socket from which queue pairs send.
struct SendSocket {
    port: u16,
    fd: DontForkFd,
    /// Number of queue pairs that send from it.
    users: usize,
}

/// Sockets from which the packets of this process are sent.
pub(super) struct SendSockets {
    shared_port: Arc<SharedPort>,
    has_own_ports: bool,
    own: Vec<SendSocket>,
    /// Keys of the hash that chooses ports. A queue pair that is reset and connected again gets the same port if it is
    /// free, because an unreliable peer that was not reset accepts no other.
    random: RandomState,
}

/// Source port of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourcePort {
    pub(super) port: u16,
    /// `true` if other queue pairs send from it, too, for lack of ports.
    pub(super) is_shared: bool,
}

impl SendSockets {
    /// # Errors
    /// Returns an error if the environment variable has an unknown value.
    pub(super) fn new(shared_port: Arc<SharedPort>) -> Result<Self> {
        let has_own_ports = match trusted_variable(VARIABLE).as_ref().map(|value| value.to_str()) {
            None | Some(Some("own")) => true,
            Some(Some("shared")) => false,
            Some(_) => {
                let what = format!("{VARIABLE}: expected own, or shared (all packets from UDP port 4791)");
                return Err(Error::invalid("open the RoCEv2 port", what));
            }
        };
        Ok(Self { shared_port, has_own_ports, own: Vec::new(), random: RandomState::new() })
    }

    /// Returns the socket that sends from `port`; `None` if there is none any more.
    pub(super) fn socket(&self, port: u16) -> Option<BorrowedFd<'_>> {
        if port == UDP_PORT {
            return Some(self.shared_port.socket());
        }
        self.own.iter().find(|socket| socket.port == port).map(|socket| socket.fd.as_fd())
    }

    /// Chooses the source port of a queue pair. [`SendSockets::release`] must be called for it.
    pub(super) fn acquire(&mut self, qpn: u32) -> SourcePort {
        if !self.has_own_ports {
            return SourcePort { port: UDP_PORT, is_shared: false };
        }
        if self.own.len() < SEND_SOCKETS_MAX
            && let Some((port, fd)) = self.open(qpn)
        {
            self.own.push(SendSocket { port, fd: DontForkFd::new(fd), users: 1 });
            return SourcePort { port, is_shared: false };
        }
        let any = (self.random.hash_one(qpn) % self.own.len().max(1) as u64) as usize;
        let port = self.own.get_mut(any).map_or(UDP_PORT, |socket| {
            socket.users += 1;
            socket.port
        });
        SourcePort { port, is_shared: true }
    }

    /// Opens a socket with a free port; `None` if the system refuses.
    fn open(&self, qpn: u32) -> Option<(u16, OwnedFd)> {
        for attempt in 0..BIND_ATTEMPTS {
            let random = self.random.hash_one((qpn, attempt));
            let port = SOURCE_PORTS.start + (random % SOURCE_PORTS.len() as u64) as u16;
            match bind_sender(port) {
                Ok(fd) => return Some((port, fd)),
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => {
                    tracing::debug!("no source port for queue pair {qpn:#x}: {errno}");
                    return None;
                }
            }
        }
        None
    }

    /// Called when a queue pair that has the port sends no more. Its packets must have been sent.
    pub(super) fn release(&mut self, port: u16) {
        if let Some(at) = self.own.iter().position(|socket| socket.port == port) {
            self.own[at].users -= 1;
            if self.own[at].users == 0 {
                drop(self.own.swap_remove(at));
            }
        }
    }
}
