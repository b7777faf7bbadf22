//! Transports of byte streams, and how their two ends connect.

use super::{Job, PATIENCE, Server};
use crate::peer::{self, PairPlan, Peer, PeerError, PeerPlace};
use farcall::select::{SelectedNic, Selection};
use farcall::stream::{StreamListener, StreamOptions, StreamPath, StreamSocket};
use farcall_link::WaitStrategy;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Transport of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Medium {
    /// `farcall-stream`, over verbs.
    Stream,
    /// TCP, over loopback where both ends are on one host.
    Tcp,
    /// A Unix stream socket.
    Unix,
}

names! { Medium { Stream => "stream", Tcp => "TCP", Unix => "Unix socket" } }

/// One end of a stream over any transport. It waits by polling, for at most [`PATIENCE`].
pub(super) trait Bytes: Read + Write {}

impl<T: Read + Write> Bytes for T {}

/// The measuring end, and the process of the other end.
pub(super) struct Opened {
    // Dropped before the peer is killed.
    pub(super) stream: Box<dyn Bytes>,
    pub(super) peer: Peer,
}

/// Source of the serving end's stream.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ServingEnd {
    /// A listener, whose address is the first message on the control socket.
    Listen(Medium, Selection),
    /// An inherited socket.
    Inherit(Medium),
}

fn options() -> StreamOptions {
    StreamOptions::default().waiting(WaitStrategy::Busy)
}

pub(super) fn not_opened(error: impl fmt::Display) -> PeerError {
    PeerError::Exchange(error.to_string())
}

impl Medium {
    /// Starts the other end and connects to it.
    pub(super) fn open(self, job: Job, chosen: &SelectedNic, plan: &PairPlan) -> Result<Opened, PeerError> {
        match self {
            Self::Stream => {
                let (stream, peer) = connected(job, chosen, plan)?;
                Ok(Opened { stream: patient(stream), peer })
            }
            Self::Tcp if plan.server_half.is_some() => {
                let (peer, address) = self.listening(job, chosen, plan)?;
                let stream = TcpStream::connect(address).map_err(PeerError::system("connect"))?;
                Ok(Opened { stream: self.polled(undelayed(stream)?)?, peer })
            }
            Self::Tcp => self.open_pair(tcp_pair()?, job, plan),
            Self::Unix => {
                let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
                self.open_pair(pair.map_err(PeerError::system("socketpair"))?, job, plan)
            }
        }
    }

    /// Starts the other end and returns the address on which it listens.
    fn listening(
        self,
        job: Job,
        chosen: &SelectedNic,
        plan: &PairPlan,
    ) -> Result<(Peer, SocketAddr), PeerError> {
        let peer = plan.start(&Server { end: ServingEnd::Listen(self, chosen.selection.clone()), job })?;
        let address = peer::receive(peer.control())?;
        Ok((peer, address))
    }

    fn open_pair(self, pair: (OwnedFd, OwnedFd), job: Job, plan: &PairPlan) -> Result<Opened, PeerError> {
        let (client, server) = pair;
        let order = Server { end: ServingEnd::Inherit(self), job };
        // Only the peer holds its end afterwards, so its exit closes the stream.
        let peer = plan.launcher.start(&order, plan.server_core, &[server.as_fd()])?;
        Ok(Opened { stream: self.polled(client)?, peer })
    }

    /// Returns the socket as an end that polls.
    fn polled(self, socket: OwnedFd) -> Result<Box<dyn Bytes>, PeerError> {
        rustix::io::ioctl_fionbio(&socket, true).map_err(PeerError::system("ioctl(FIONBIO)"))?;
        Ok(match self {
            Self::Unix => Box::new(Polled(UnixStream::from(socket))),
            Self::Tcp | Self::Stream => Box::new(Polled(TcpStream::from(socket))),
        })
    }
}

impl ServingEnd {
    /// Waits until the measuring end has connected.
    pub(super) fn open(&self, place: &mut PeerPlace) -> Result<Box<dyn Bytes>, PeerError> {
        match self {
            Self::Listen(Medium::Stream, selection) => {
                let chosen = place.nic(selection).open().map_err(not_opened)?;
                let nic = chosen.nic.clone();
                let mut listener = StreamListener::bind(&nic, (place.control().local_ip(), 0), options())
                    .map_err(PeerError::system("bind"))?;
                listens(place, listener.address())?;
                Ok(patient(listener.accept().map_err(PeerError::system("accept"))?))
            }
            Self::Listen(medium, _) => {
                let listener =
                    TcpListener::bind((place.control().local_ip(), 0)).map_err(PeerError::system("bind"))?;
                listens(place, listener.local_addr())?;
                let (stream, _) = listener.accept().map_err(PeerError::system("accept"))?;
                medium.polled(undelayed(stream)?)
            }
            Self::Inherit(medium) => {
                let end = medium.polled(place.next_fd()?)?;
                place.ready()?;
                Ok(end)
            }
        }
    }
}

/// Sends the measuring end the address of the listener.
fn listens(place: &PeerPlace, address: io::Result<SocketAddr>) -> Result<(), PeerError> {
    let address = address.map_err(PeerError::system("getsockname"))?;
    place.ready()?;
    peer::send(place.control(), &address)
}

/// Connects a `farcall-stream` to another process.
fn connected(job: Job, chosen: &SelectedNic, plan: &PairPlan) -> Result<(StreamSocket, Peer), PeerError> {
    let (peer, address) = Medium::Stream.listening(job, chosen, plan)?;
    let nic = chosen.nic.clone();
    Ok((StreamSocket::connect(&nic, address, options()).map_err(not_opened)?, peer))
}

/// Returns the path that streams of `farcall-stream` use to the other end.
///
/// # Errors
/// Returns an error if the other end cannot be started or reached.
pub fn path(chosen: &SelectedNic, plan: &PairPlan) -> Result<StreamPath, PeerError> {
    connected(Job::Answer, chosen, plan).map(|(stream, _)| stream.path())
}

fn patient(mut stream: StreamSocket) -> Box<dyn Bytes> {
    stream.set_timeouts(Some(PATIENCE), Some(PATIENCE));
    Box::new(stream)
}

/// Returns both ends of a TCP connection, with Nagle's algorithm disabled.
fn tcp_pair() -> Result<(OwnedFd, OwnedFd), PeerError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(PeerError::system("bind"))?;
    let address = listener.local_addr().map_err(PeerError::system("getsockname"))?;
    let client = TcpStream::connect(address).map_err(PeerError::system("connect"))?;
    let (server, _) = listener.accept().map_err(PeerError::system("accept"))?;
    Ok((undelayed(client)?, undelayed(server)?))
}

fn undelayed(socket: TcpStream) -> Result<OwnedFd, PeerError> {
    socket.set_nodelay(true).map_err(PeerError::system("setsockopt"))?;
    Ok(socket.into())
}

/// A non-blocking socket whose calls are retried until it is ready.
struct Polled<T>(T);

impl<T> Polled<T> {
    #[inline]
    fn again<R>(&mut self, mut attempt: impl FnMut(&mut T) -> io::Result<R>) -> io::Result<R> {
        let mut since = None;
        loop {
            match attempt(&mut self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
}

impl<T: Read> Read for Polled<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.again(|socket| socket.read(bytes))
    }
}

impl<T: Write> Write for Polled<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.again(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
