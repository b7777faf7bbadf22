//! Echo over stream sockets: TCP on loopback and Unix, sleeping in epoll or polling.

use super::task::{Answer, PAYLOAD_LEN_BYTES, Waiting};
use crate::measure::{RoundTrips, ping_pong};
use crate::peer::{PairPlan, PeerError};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

pub(super) fn tcp_round_trips(plan: &PairPlan, waiting: Waiting) -> Result<RoundTrips, PeerError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(PeerError::system("bind"))?;
    let address = listener.local_addr().map_err(PeerError::system("getsockname"))?;
    let client = TcpStream::connect(address).map_err(PeerError::system("connect"))?;
    let (server, _) = listener.accept().map_err(PeerError::system("accept"))?;
    for socket in [&client, &server] {
        socket.set_nodelay(true).map_err(PeerError::system("setsockopt"))?;
    }
    round_trips(plan, waiting, client.into(), server.into())
}

pub(super) fn unix_round_trips(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    let (client, server) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(PeerError::system("socketpair"))?;
    round_trips(plan, Waiting::Epoll, client, server)
}

fn round_trips(
    plan: &PairPlan,
    waiting: Waiting,
    client: OwnedFd,
    server: OwnedFd,
) -> Result<RoundTrips, PeerError> {
    let _peer = plan.launcher.start(&Answer::Echo(waiting), plan.server_core, &[server.as_fd()])?;
    // Only the peer holds its end now, so its exit closes the stream.
    drop(server);
    let mut end = End::new(&client, waiting)?;
    let mut reply = [0; PAYLOAD_LEN_BYTES];
    ping_pong(plan.warm_up, plan.duration, |number| {
        let request = [number as u8; PAYLOAD_LEN_BYTES];
        end.send(&request)?;
        end.receive(&mut reply)?;
        if reply == request { Ok(()) } else { Err(PeerError::WrongEcho(number)) }
    })
}

/// Runs the peer: echoes complete payloads until the stream ends.
pub(super) fn echo(
    socket: &OwnedFd,
    waiting: Waiting,
    ready: impl FnOnce() -> Result<(), PeerError>,
) -> Result<(), PeerError> {
    let mut end = End::new(socket, waiting)?;
    ready()?;
    let mut payload = [0; PAYLOAD_LEN_BYTES];
    loop {
        match end.receive(&mut payload).and_then(|()| end.send(&payload)) {
            Ok(()) => {}
            Err(PeerError::Ended) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// One end of a connected stream.
struct End<'a> {
    socket: &'a OwnedFd,
    epoll: Option<OwnedFd>,
}

impl<'a> End<'a> {
    fn new(socket: &'a OwnedFd, waiting: Waiting) -> Result<Self, PeerError> {
        rustix::io::ioctl_fionbio(socket, true).map_err(PeerError::system("ioctl(FIONBIO)"))?;
        if waiting == Waiting::Spin {
            return Ok(Self { socket, epoll: None });
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(PeerError::system("epoll_create1"))?;
        epoll::add(&epoll, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(PeerError::system("epoll_ctl"))?;
        Ok(Self { socket, epoll: Some(epoll) })
    }

    /// Sends all of `payload`. The buffers of a new stream hold far more than one payload, so a full buffer is simply
    /// retried.
    fn send(&mut self, payload: &[u8]) -> Result<(), PeerError> {
        let mut sent = 0;
        while sent < payload.len() {
            match send(self.socket, &payload[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(PeerError::Ended),
                Err(errno) => return Err(PeerError::system("send")(errno)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, payload: &mut [u8]) -> Result<(), PeerError> {
        let mut received = 0;
        while received < payload.len() {
            // A sleeping end waits in the kernel before it receives, as event loops do.
            self.wait()?;
            match recv(self.socket, &mut payload[received..], RecvFlags::empty()) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(PeerError::Ended),
                Ok((count, _)) => received += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(PeerError::system("recv")(errno)),
            }
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), PeerError> {
        let Some(epoll) = &self.epoll else { return Ok(()) };
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 1];
        match epoll::wait(epoll, &mut events[..], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(PeerError::system("epoll_wait")(errno)),
        }
    }
}
