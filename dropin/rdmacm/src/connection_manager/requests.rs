//! Accepted connections, and the requests that arrive over them.

use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use farcall_verbs::with_sources;
use farcall_wire::cm::{CommunicationIds, Connection, Mad, reason};
use rustix::net::{SocketFlags, accept_with};

use super::{CmEndpoint, ConnectionManager};
use crate::errno::{Errno, invalid, refused};
use crate::event_queue::QueuedEvent;
use crate::listener::{IncomingRequest, Listening};
use crate::local_socket::{Arrived, send_message};
use crate::remote::{RemoteCm, RemoteEndpoint};
use crate::shared::Published;
use crate::token::{FORWARDED, Token};

/// Maximum time between the acceptance of a connection and the arrival of its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of accepted connections without a request.
const ACCEPTED_MAX: usize = 1024;

/// An accepted connection whose request has not arrived.
pub(super) struct Accepted {
    /// The listener, or [`FORWARDED`] if another process forwards a message.
    pub(super) listener: Token,
    socket: OwnedFd,
    deadline: Instant,
}

impl ConnectionManager {
    /// Listens at the port of an endpoint.
    ///
    /// # Errors
    /// Returns `EADDRINUSE` if another endpoint has the port, and errors of the kernel.
    pub fn listen(&mut self, token: Token, listening: Listening) -> Result<(), Errno> {
        let end = self.end(token)?;
        let socket = end.socket.as_ref().ok_or_else(|| invalid("the identifier has no socket"))?;
        let anothers = || refused(libc::EADDRINUSE, format_args!("another end has the port"));
        end.port.as_mut().ok_or_else(anothers)?.listen(socket)?;
        end.listening = Some(listening);
        self.watch_end(token)
    }

    /// Lets an endpoint listen for other network namespaces, too.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn publish(&mut self, token: Token, published: Published) -> Result<(), Errno> {
        self.watch(published.socket.as_fd(), token)?;
        self.end(token)?.published = Some(published);
        Ok(())
    }

    /// Accepts the next connection at one of a listener's sockets.
    fn accept_next(&self, listener: Token) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let end = self.ends.get(&listener);
        let sockets = [
            self.remote.as_ref().filter(|_| listener == FORWARDED).map(RemoteCm::forwarded),
            end.and_then(|end| end.socket.as_ref()),
            end.and_then(|end| end.published.as_ref()).map(|published| &published.socket),
        ];
        sockets.into_iter().flatten().find_map(|socket| accept_with(socket, flags).ok())
    }

    /// Accepts the pending connections.
    pub(super) fn accept_all(&mut self, listener: Token) {
        while let Some(socket) = self.accept_next(listener) {
            let may_connect = farcall_softnic::check_peer(socket.as_fd(), "a caller").is_ok();
            if self.accepted.len() >= ACCEPTED_MAX || !may_connect {
                continue;
            }
            let token = self.token();
            if self.watch(socket.as_fd(), token).is_err() {
                continue;
            }
            let deadline = Instant::now() + REQUEST_TIMEOUT;
            self.accepted.insert(token, Accepted { listener, socket, deadline });
            self.timers.add(deadline, token);
        }
    }

    fn remove_accepted(&mut self, token: Token) -> Option<Accepted> {
        let accepted = self.accepted.remove(&token)?;
        self.timers.cancel(accepted.deadline, token);
        Some(accepted)
    }

    /// Closes an accepted connection.
    pub(super) fn drop_accepted(&mut self, token: Token) {
        let socket = self.remove_accepted(token).map(|accepted| accepted.socket);
        self.close(socket);
    }

    /// Receives the request of an accepted connection.
    pub(super) fn receive_request(&mut self, token: Token) {
        let Some(arrived) = self.accepted.get(&token).map(|accepted| Arrived::at(&accepted.socket)) else {
            return;
        };
        let (question, peer) = match arrived {
            Arrived::Nothing => return,
            Arrived::Message(mad) => (Some(*mad), None),
            Arrived::RemoteMad(remote_mad) => (Mad::decode(&remote_mad.bytes).ok(), Some(remote_mad.src)),
            Arrived::Closed => (None, None),
        };
        if self.accepted.get(&token).is_some_and(|accepted| accepted.listener == FORWARDED) {
            self.drop_accepted(token);
            return question.zip(peer).into_iter().for_each(|(mad, peer)| self.handle_message(peer, mad));
        }
        if let Some(error) = peer.and_then(|peer| farcall_softnic::check_remote_peer(peer).err()) {
            tracing::debug!("{}", with_sources(&error));
            return self.drop_accepted(token);
        }
        let is_repeated_request =
            question.as_ref().zip(peer).is_some_and(|(mad, peer)| self.is_repeated_request(peer, mad));
        let question = question.filter(|_| !is_repeated_request);
        let Some(accepted) = self.remove_accepted(token) else { return };
        let unused = match question {
            Some(question) => self.open_request(token, accepted, question, peer),
            None => Some(accepted.socket),
        };
        self.close(unused);
    }

    /// Creates the endpoint of a request of this host or of another one (`peer`), or rejects the request. Returns the
    /// socket unless the endpoint uses it.
    fn open_request(
        &mut self,
        token: Token,
        accepted: Accepted,
        question: Mad,
        peer: Option<Ipv6Addr>,
    ) -> Option<OwnedFd> {
        let Accepted { listener, socket, .. } = accepted;
        let mut ids = CommunicationIds::for_responder(self.comm_id(token), &question);
        let remote_end = peer.map(|peer| RemoteEndpoint::asked(peer, question.clone()));
        let incoming = IncomingRequest::of(question.message);
        let end = self.ends.get(&listener);
        let listening = end.and_then(|end| Some((end.queue, end.listening.as_ref()?)));
        let (Some(incoming), Some((queue, listening))) = (incoming, listening) else { return Some(socket) };
        // Before the clone of the slot below, which counts for the backlog.
        let refused_by_listener = listening.refusal(&incoming);
        let slot = listening.slot();
        let refusal = refused_by_listener.or_else(|| {
            let is_one_too_many = peer.is_some_and(|peer| !self.make_room_for(peer));
            is_one_too_many.then(|| {
                self.remote.iter().for_each(|remote| remote.management().count_refused());
                incoming.refused(reason::NO_RESOURCES, reason::SIDR_REJECT)
            })
        });
        if let Some(refusal) = refusal {
            let refusal = ids.mad(refusal);
            match peer {
                Some(peer) => self.send_mad(peer, &refusal),
                None => drop(send_message(&socket, &refusal)),
            }
            return Some(socket);
        }
        let connection = match &incoming {
            IncomingRequest::Connection(request) => Connection::requested(request),
            IncomingRequest::Service(request) => Connection::service_requested(request),
        };
        // The socket keeps its token, under which it is watched.
        let (socket, unused) = if peer.is_some() { (None, Some(socket)) } else { (Some(socket), None) };
        let made = CmEndpoint {
            socket,
            remote_end,
            connection: Some(connection),
            ids,
            incoming: Some(incoming),
            ..CmEndpoint::new(queue)
        };
        self.ends.insert(token, made);
        self.queue_event(listener, QueuedEvent::Request { end: token, _slot: slot });
        unused
    }
}
