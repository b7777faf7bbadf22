//! A peer: another process of this host, its liveness, and the requests to it.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use farcall_shm::fork::DontForkFd;
use farcall_shm::{Mutex, SharedMem};

use super::liveness::ProcessLiveness;
use super::rendezvous::{ReplyBody, Request, RequestBody, TrustLevel, send_frame};
use super::requests::{PeerReply, ReplyInterest, Requests};

pub(crate) struct Peer {
    pub(crate) liveness: ProcessLiveness,
    /// Its table of generations, which indicates the regions that are registered.
    pub(crate) generations: SharedMem,
    /// Identifies the process uniquely.
    pub(crate) instance: u64,
    pub(crate) trust_level: TrustLevel,
    pub(super) socket: Arc<DontForkFd>,
    requests: Mutex<Requests>,
    /// State that the transport stores for this peer.
    transport_state: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Peer {
    pub(super) fn new(
        instance: u64,
        trust_level: TrustLevel,
        liveness: ProcessLiveness,
        generations: SharedMem,
        requests: Requests,
    ) -> Self {
        let socket = requests.socket.clone();
        let (requests, transport_state) = (Mutex::new(requests), OnceLock::new());
        Self { liveness, generations, instance, trust_level, socket, requests, transport_state }
    }

    /// Returns the state that the transport stores for this peer as long as the peer is known; creates it at first use.
    pub(crate) fn transport_state<T: Any + Send + Sync + Default>(&self) -> &T {
        let transport_state = self.transport_state.get_or_init(|| Box::new(T::default()));
        transport_state.downcast_ref().expect("a process has one way, which keeps one type")
    }

    /// Sends a request whose reply is wanted as long as `interest` exists. Never blocks: if there is no reply yet, the
    /// caller repeats the call when the service thread continues the request.
    pub(crate) fn request(
        &self,
        interest: &ReplyInterest,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
    ) -> PeerReply<(ReplyBody, Vec<OwnedFd>)> {
        // A broken socket means that the peer is exiting, which its pidfd will indicate.
        self.requests.lock().request(interest, body, fds).unwrap_or(PeerReply::Pending)
    }

    /// Requests a notification that arrives later. `interest` then reports it, and the service thread continues what
    /// waits. The notification is lost if the peer's socket accepts no message now.
    pub(crate) fn request_notification(&self, interest: &ReplyInterest, body: RequestBody) {
        let _ = self.requests.lock().send(interest, body, &[]);
    }

    /// Sends a message that needs no reply. It is lost if the peer's socket accepts no message now.
    pub(crate) fn send_oneway(&self, body: RequestBody) {
        let _ = send_frame(self.socket.as_fd(), &Request { id: 0, body }.encode(), &[]);
    }

    /// Receives its replies; called by the service thread. Returns whether a requester can continue because of one.
    ///
    /// # Errors
    /// Returns an error if the peer has closed the connection.
    pub(super) fn collect(&self) -> rustix::io::Result<bool> {
        let mut requests = self.requests.lock();
        requests.receive()?;
        Ok(requests.has_replies())
    }
}
