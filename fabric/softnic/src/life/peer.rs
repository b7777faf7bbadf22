//! A peer: another process of this host, how we ask it for something, and whether it lives.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use farcall_shm::fork::DontForkFd;
use farcall_shm::{Mutex, SharedMem};

use super::death::Lifetime;
use super::rendezvous::{Kinship, ReplyBody, Request, RequestBody, send_frame};
use super::requests::{Answer, Interest, Requests};

pub(crate) struct Peer {
    pub(crate) life: Lifetime,
    /// Its table of regions: which of them live.
    pub(crate) generations: SharedMem,
    /// Tells the process from all others.
    pub(crate) instance: u64,
    pub(crate) kinship: Kinship,
    pub(super) socket: Arc<DontForkFd>,
    requests: Mutex<Requests>,
    /// What the way keeps of it.
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

    /// What the way keeps of it, as long as it is known; made at first use.
    pub(crate) fn kept<T: Any + Send + Sync + Default>(&self) -> &T {
        let kept = self.kept.get_or_init(|| Box::new(T::default()));
        kept.downcast_ref().expect("a process has one way, which keeps one type")
    }

    /// Asks for something, for as long as `interest` lives. Never waits: what is not answered yet is asked again when
    /// the service thread says that there is news.
    pub(crate) fn ask(
        &self,
        interest: &Interest,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
    ) -> Answer<(ReplyBody, Vec<OwnedFd>)> {
        // A broken socket means that the peer is dying; its pidfd will say so.
        self.requests.lock().ask(interest, body, fds).unwrap_or(Answer::NotYet)
    }

    /// Asks for news that come later, by which the service thread continues what waits: `interest` tells then that they
    /// are there. They do not come if the peer's socket takes nothing now.
    pub(crate) fn await_news(&self, interest: &Interest, body: RequestBody) {
        let _ = self.requests.lock().send(interest, body, &[]);
    }

    /// Tells it something that needs no answer; lost if its socket takes nothing now.
    pub(crate) fn tell(&self, body: RequestBody) {
        let _ = send_frame(self.socket.as_fd(), &Request { id: 0, body }.encode(), &[]);
    }

    /// Takes its answers in, for the service thread; whether there is one that an asker can go on with.
    ///
    /// # Errors
    /// If the peer has hung up.
    pub(super) fn collect(&self) -> rustix::io::Result<bool> {
        let mut requests = self.requests.lock();
        requests.receive()?;
        Ok(requests.has_news())
    }
}
