//! A peer: another process of this host, its liveness, and the requests to it.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use farcall_shm::fork::DontForkFd;
use farcall_shm::{Mutex, SharedMem};

use super::liveness::Lifetime;
use super::rendezvous::{Kinship, ReplyBody, Request, RequestBody, send_frame};
use super::requests::{Answer, Interest, Requests};

pub(crate) struct Peer {
    pub(crate) life: Lifetime,
    /// Its table of generations, which indicates the regions that are registered.
    pub(crate) generations: SharedMem,
    /// Identifies the process uniquely.
    pub(crate) instance: u64,
    pub(crate) kinship: Kinship,
    pub(super) socket: Arc<DontForkFd>,
    requests: Mutex<Requests>,
    /// State that the transport stores for this peer.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Peer {
    pub(super) fn new(
        instance: u64,
        kinship: Kinship,
        life: Lifetime,
        generations: SharedMem,
        requests: Requests,
    ) -> Self {
        let socket = requests.socket.clone();
        let (requests, kept) = (Mutex::new(requests), OnceLock::new());
        Self { life, generations, instance, kinship, socket, requests, kept }
    }

    /// Returns the state that the transport stores for this peer as long as the peer is known; creates it at first use.
    pub(crate) fn kept<T: Any + Send + Sync + Default>(&self) -> &T {
        let kept = self.kept.get_or_init(|| Box::new(T::default()));
        kept.downcast_ref().expect("a process has one way, which keeps one type")
    }

    /// Sends a request whose reply is wanted as long as `interest` exists. Never blocks: if there is no reply yet, the
    /// caller repeats the call when the service thread continues the request.
    pub(crate) fn ask(
        &self,
        interest: &Interest,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
    ) -> Answer<(ReplyBody, Vec<OwnedFd>)> {
        // A broken socket means that the peer is exiting, which its pidfd will indicate.
        self.requests.lock().ask(interest, body, fds).unwrap_or(Answer::NotYet)
    }

    /// Requests a notification that arrives later. `interest` then reports it, and the service thread continues what
    /// waits. The notification is lost if the peer's socket accepts no message now.
    pub(crate) fn await_news(&self, interest: &Interest, body: RequestBody) {
        let _ = self.requests.lock().send(interest, body, &[]);
    }

    /// Sends a message that needs no reply. It is lost if the peer's socket accepts no message now.
    pub(crate) fn tell(&self, body: RequestBody) {
        let _ = send_frame(self.socket.as_fd(), &Request { id: 0, body }.encode(), &[]);
    }

    /// Receives its replies; called by the service thread. Returns whether a requester can continue because of one.
    ///
    /// # Errors
    /// Returns an error if the peer has closed the connection.
    pub(super) fn collect(&self) -> rustix::io::Result<bool> {
        let mut requests = self.requests.lock();
        requests.receive()?;
        Ok(requests.has_news())
    }
}
