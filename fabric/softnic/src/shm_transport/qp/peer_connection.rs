//! Connection of a queue pair to its target. It is requested from RTR on, and by each request until it is established.

use std::sync::Arc;

use farcall_verbs::Result;

use super::QpCore;
use super::initiator::Initiator;
use super::wait_queue::Wait;
use crate::process::rendezvous::Refusal;
use crate::process::{PeerReply, ReplyInterest, PeerHandshake, is_no_such_process};

#[expect(clippy::large_enum_variant, reason = "what every message reads lies beside the queue")]
pub(crate) enum Way {
    /// The target's process has not replied yet, or it has no queue pair that would receive from this one.
    Sought(Sought),
    /// The target is on this host, and its process has granted access.
    Host(Initiator),
}

/// State of a connection attempt.
#[derive(Default)]
pub(crate) struct Sought {
    /// Handshake with the target's process; `None` once it has completed.
    pub(super) handshake: Option<Arc<PeerHandshake>>,
    pub(super) interest: ReplyInterest,
}

impl Default for Way {
    fn default() -> Self {
        Self::Sought(Sought::default())
    }
}

impl Way {
    #[inline]
    pub(crate) fn initiator(&self) -> Option<&Initiator> {
        match self {
            Self::Host(initiator) => Some(initiator),
            Self::Sought(_) => None,
        }
    }

    #[inline]
    pub(crate) fn initiator_mut(&mut self) -> Option<&mut Initiator> {
        match self {
            Self::Host(initiator) => Some(initiator),
            Self::Sought(_) => None,
        }
    }

    /// Starts the handshake with the target's process, if there is one. The kernel reports the process's owner, and it
    /// is checked before anything else, so a process that is not authorized costs nothing more.
    ///
    /// # Errors
    /// Returns an error if either process is not authorized to connect to the other.
    pub(crate) fn turn_to_owner(&mut self, core: &QpCore) -> Result<()> {
        let Self::Sought(sought) = self else { return Ok(()) };
        match core.host.process.peer_of(core.dest_qpn(), &mut sought.handshake) {
            Err(error) if !is_no_such_process(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Requests the connection unless it is established. Returns the wait reason if it still is not.
    ///
    /// # Errors
    /// Returns an error if this process is not authorized, or cannot use the grant.
    #[cold]
    pub(crate) fn find(&mut self, core: &QpCore) -> Result<Option<Wait>> {
        let Self::Sought(sought) = self else { return Ok(None) };
        if core.takes_readiness() {
            // A reply to an earlier request describes the state before the peer became ready.
            sought.interest = ReplyInterest::default();
        }
        let answer = match Initiator::connect(core, sought) {
            Err(error) if is_no_such_process(&error) => PeerReply::Refused(Refusal::UnknownQp),
            answer => answer?,
        };
        match answer {
            PeerReply::Granted(initiator) => {
                core.connected(&initiator.peer);
                *self = Self::Host(initiator);
                Ok(None)
            }
            PeerReply::Pending => Ok(Some(Wait::PeerReply)),
            // Handled as on a network, which sends no refusal: requests are not acknowledged, and time out.
            PeerReply::Refused(reason) => {
                tracing::debug!("queue pair {:#x}, to {:#x}: {}", core.qpn, core.dest_qpn(), reason.text());
                Ok(Some(Wait::Peer))
            }
        }
    }
}
