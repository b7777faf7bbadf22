//! Which way a queue pair's requests take to their target. It is sought from RTR on, and by each request until it is
//! found.

use std::sync::Arc;

use farcall_verbs::Result;

use super::QpCore;
use super::initiator::Initiator;
use super::wait_queue::Wait;
use crate::life::rendezvous::Refusal;
use crate::life::{Answer, Interest, Meeting, is_nobody};

#[expect(clippy::large_enum_variant, reason = "what every message reads lies beside the queue")]
pub(crate) enum Way {
    /// The target's process has not answered yet, or there is no queue pair that would receive from this one.
    Sought(Sought),
    /// The target is on this host, and its process has granted the way in.
    Host(Initiator),
}

/// What goes on while the way is sought.
#[derive(Default)]
pub(crate) struct Sought {
    /// With the target's process, until that has answered.
    pub(super) meeting: Option<Arc<Meeting>>,
    pub(super) interest: Interest,
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

    /// Turns to the target's process, if there is one. Whose it is comes from the kernel and before anything else:
    /// whoever is not let in costs nothing more.
    ///
    /// # Errors
    /// If it may not connect to us nor we to it.
    pub(crate) fn turn_to_owner(&mut self, core: &QpCore) -> Result<()> {
        let Self::Sought(sought) = self else { return Ok(()) };
        match core.host.process.peer_of(core.dest_qpn(), &mut sought.meeting) {
            Err(error) if !is_nobody(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Asks for the way, unless it is found; what must be waited for if it still is not.
    ///
    /// # Errors
    /// If this process may not have it, or cannot.
    #[cold]
    pub(crate) fn find(&mut self, core: &QpCore) -> Result<Option<Wait>> {
        let Self::Sought(sought) = self else { return Ok(None) };
        if core.takes_readiness() {
            // What it still answers to an earlier question was true before.
            sought.interest = Interest::default();
        }
        let answer = match Initiator::connect(core, sought) {
            Err(error) if is_nobody(&error) => Answer::Refused(Refusal::UnknownQp),
            answer => answer?,
        };
        match answer {
            Answer::Granted(initiator) => {
                core.connected(&initiator.peer);
                *self = Self::Host(initiator);
                Ok(None)
            }
            Answer::NotYet => Ok(Some(Wait::Answer)),
            // As on a network, where nobody says so: what is sent is not acknowledged, and its timer ends it.
            Answer::Refused(reason) => {
                tracing::debug!("queue pair {:#x}, to {:#x}: {}", core.qpn, core.dest_qpn(), reason.text());
                Ok(Some(Wait::Peer))
            }
        }
    }
}
