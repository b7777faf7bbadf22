//! Listening endpoints: accepted connections, and the requests that arrive over them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_verbs::with_sources;
use farcall_wire::cm::{CommunicationIds, Connection, MESSAGE_BYTES, Mad, Message, reason};
use rustix::io::Errno as OsError;
use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};

use crate::connection_manager::{
    CmEndpoint, ConnectionManager, IncomingRequest, QueuedEvent, Token, send_message,
};
use crate::management::{REMOTE_MAD_BYTES, RemoteMad};
use crate::remote::{FORWARDED, RemoteEndpoint};

/// Maximum time between the acceptance of a connection and the arrival of its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of accepted connections without a request.
const ACCEPTED_MAX: usize = 1024;

/// Slot of a request in a backlog.
#[derive(Clone, Default)]
pub struct Slot(Arc<()>);

/// State of a listening endpoint.
pub struct Listening {
    /// Maximum number of requests that wait for the program.
    backlog: usize,
    /// Reference count of the slots: each waiting request holds a clone.
    slots: Slot,
    /// Whether it accepts no IPv4 connections.
    is_v6_only: bool,
    /// Whether it accepts requests for the queue pairs of datagram services rather than for connections.
    is_datagram: bool,
}

impl Listening {
    pub fn new(backlog: usize, is_v6_only: bool, is_datagram: bool) -> Self {
        Self { backlog, slots: Slot::default(), is_v6_only, is_datagram }
    }

    fn is_full(&self) -> bool {
        Arc::strong_count(&self.slots.0) > self.backlog
    }
}

/// An accepted connection whose request has not arrived.
pub struct Accepted {
    /// The listener, or [`FORWARDED`] if another process forwards a message.
    pub listener: Token,
    socket: OwnedFd,
    deadline: Instant,
}

/// Result of receiving from a socket.
pub enum Arrived {
    Nothing,
    Message(Box<Mad>),
    /// A message of another host, from the process that owns queue pair 1.
    RemoteMad(Box<RemoteMad>),
    /// The peer has closed the connection, or sent an invalid message.
    Closed,
}

impl Arrived {
    /// Receives one message from a socket.
    pub fn at(socket: &OwnedFd) -> Self {
        // One byte more than any message, to detect longer ones.
        let mut bytes = [0; REMOTE_MAD_BYTES + 1];
        let mut was_reset = false;
        loop {
            return match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((MESSAGE_BYTES, _)) => match Mad::decode(&bytes[..MESSAGE_BYTES]) {
                    Ok(mad) => Self::Message(Box::new(mad)),
                    Err(error) => {
                        tracing::debug!("{error}");
                        Self::Closed
                    }
                },
                Ok((REMOTE_MAD_BYTES, _)) => {
                    let whole = bytes.first_chunk().expect("as many bytes as came");
                    Self::RemoteMad(Box::new(RemoteMad::decode(whole)))
                }
                Ok(_) => Self::Closed,
                Err(OsError::AGAIN) => Self::Nothing,
                Err(OsError::INTR) => continue,
                // Reported once, before the messages that the peer sent before it closed the connection.
                Err(OsError::CONNRESET) if !was_reset => {
                    was_reset = true;
                    continue;
                }
                Err(_) => Self::Closed,
            };
        }
    }
}

impl ConnectionManager {
    /// Accepts the next connection at one of a listener's sockets.
    fn accept_next(&self, listener: Token) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let end = self.ends.get(&listener);
        let sockets = [
            self.remote.as_ref().filter(|_| listener == FORWARDED).map(|remote| &remote.forwarded),
            end.and_then(|end| end.socket.as_ref()),
            end.and_then(|end| end.published.as_ref()).map(|published| &published.socket),
        ];
        sockets.into_iter().flatten().find_map(|socket| accept_with(socket, flags).ok())
    }

    /// Accepts the pending connections.
    pub fn accept_all(&mut self, listener: Token) {
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
            self.add_timer(deadline, token);
        }
    }

    fn remove_accepted(&mut self, token: Token) -> Option<Accepted> {
        let accepted = self.accepted.remove(&token)?;
        self.cancel_timer(token, Some(accepted.deadline));
        Some(accepted)
    }

    /// Closes an accepted connection.
    pub fn drop_accepted(&mut self, token: Token) {
        let socket = self.remove_accepted(token).map(|accepted| accepted.socket);
        self.close(socket);
    }

    /// Receives the request of an accepted connection.
    pub fn receive_request(&mut self, token: Token) {
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
        let local = self.comm_id(token);
        let remote_end =
            question.as_ref().zip(peer).map(|(mad, peer)| RemoteEndpoint::asked(peer, mad.clone()));
        let incoming = question.and_then(|mad| {
            let ids = CommunicationIds::for_responder(local, &mad);
            Some((ids, IncomingRequest::of(mad.message)?))
        });
        let Some(accepted) = self.remove_accepted(token) else { return };
        let end = self.ends.get(&accepted.listener);
        let listening = end.and_then(|end| Some((end.queue, end.listening.as_ref()?)));
        let (Some((mut ids, incoming)), Some((queue, listening))) = (incoming, listening) else {
            return self.close(Some(accepted.socket));
        };
        // Before the clone of the slot below, which counts for the backlog.
        let refused_by_listener = listening.refusal(&incoming);
        let slot = listening.slots.clone();
        let refusal = refused_by_listener.or_else(|| {
            let is_one_too_many = peer.is_some_and(|peer| !self.make_room_for(peer));
            is_one_too_many.then(|| {
                self.remote.iter().for_each(|remote| remote.management.count_refused());
                incoming.refused(reason::NO_RESOURCES, reason::SIDR_REJECT)
            })
        });
        if let Some(refusal) = refusal {
            let refusal = ids.mad(refusal);
            match peer {
                Some(peer) => self.send_mad(peer, &refusal),
                None => drop(send_message(&accepted.socket, &refusal)),
            }
            return self.close(Some(accepted.socket));
        }
        let connection = match &incoming {
            IncomingRequest::Connection(request) => Connection::requested(request),
            IncomingRequest::Service(request) => Connection::service_requested(request),
        };
        // The socket keeps its token, under which it is watched.
        let mut made = CmEndpoint::new(None, queue);
        match remote_end {
            Some(remote_end) => {
                made.remote_end = Some(remote_end);
                self.close(Some(accepted.socket));
            }
            None => made.socket = Some(accepted.socket),
        }
        made.connection = Some(connection);
        made.ids = ids;
        made.incoming = Some(incoming);
        self.ends.insert(token, made);
        self.queue_event(accepted.listener, QueuedEvent::Request { end: token, _slot: slot });
    }
}

impl Listening {
    /// Returns the rejection of a request that does not match this listener, or for which the backlog has no room.
    fn refusal(&self, incoming: &IncomingRequest) -> Option<Message> {
        let is_datagram = matches!(incoming, IncomingRequest::Service(_));
        let route = incoming.route();
        let is_for_us = is_datagram == self.is_datagram && !(self.is_v6_only && route.to.is_ipv4());
        if !is_for_us {
            return Some(incoming.refused(reason::INVALID_SERVICE_ID, reason::SIDR_UNSUPPORTED));
        }
        self.is_full().then(|| incoming.refused(reason::CONSUMER_DEFINED, reason::SIDR_REJECT))
    }
}
