//! Connection of a queue pair to its target. It is requested from RTR on, and by each request until it is established.

use farcall_verbs::Result;

use super::QpCore;
use super::initiator::{ConnectAttempt, Initiator};
use super::request::WaitReason;
use crate::process::rendezvous::Refusal;
use crate::process::{PeerReply, ReplyInterest, is_no_such_process};

#[expect(clippy::large_enum_variant, reason = "what every message reads is next to the queue")]
pub(crate) enum PeerConnection {
    /// The target's process has not replied yet, or it has no queue pair that would receive from this one.
    Connecting(ConnectAttempt),
    /// The target is on this host, and its process has granted access.
    Established(Initiator),
}

impl Default for PeerConnection {
    fn default() -> Self {
        Self::Connecting(ConnectAttempt::default())
    }
}

impl PeerConnection {
    #[inline]
    pub(crate) fn initiator(&self) -> Option<&Initiator> {
        match self {
            Self::Established(initiator) => Some(initiator),
            Self::Connecting(_) => None,
        }
    }

    #[inline]
    pub(crate) fn initiator_mut(&mut self) -> Option<&mut Initiator> {
        match self {
            Self::Established(initiator) => Some(initiator),
            Self::Connecting(_) => None,
        }
    }

    /// Starts the handshake with the target's process, if there is one. The kernel reports the process's owner, and it
    /// is checked before anything else, so a process that is not authorized costs nothing more.
    ///
    /// # Errors
    /// Returns an error if either process is not authorized to connect to the other.
    pub(crate) fn authorize_target(&mut self, core: &QpCore) -> Result<()> {
        let Self::Connecting(attempt) = self else { return Ok(()) };
        match core.shm.process.peer_of(core.dest_qpn(), &mut attempt.handshake) {
            Err(error) if !is_no_such_process(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Requests the connection unless it is established. Returns the wait reason if it still is not.
    ///
    /// # Errors
    /// Returns an error if this process is not authorized, or cannot use the grant.
    #[cold]
    pub(crate) fn poll_connect(&mut self, core: &QpCore) -> Result<Option<WaitReason>> {
        let Self::Connecting(attempt) = self else { return Ok(None) };
        if core.take_peer_ready() {
            // A reply to an earlier request describes the state before the peer became ready.
            attempt.interest = ReplyInterest::default();
        }
        let reply = match Initiator::connect(core, attempt) {
            Err(error) if is_no_such_process(&error) => PeerReply::Refused(Refusal::UnknownQp),
            reply => reply?,
        };
        match reply {
            PeerReply::Granted(initiator) => {
                core.connected(&initiator.peer);
                *self = Self::Established(initiator);
                Ok(None)
            }
            PeerReply::Pending => Ok(Some(WaitReason::PeerReply)),
            // Handled as on a network, which sends no refusal: requests are not acknowledged, and time out.
            PeerReply::Refused(reason) => {
                tracing::debug!("queue pair {:#x}, to {:#x}: {}", core.qpn, core.dest_qpn(), reason.text());
                Ok(Some(WaitReason::Peer))
            }
        }
    }
}
