//! Handshake with a peer process on first contact. The kernel reports its identity immediately, which is checked before
//! anything else; its reply arrives later. No thread blocks for the reply.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use farcall_shm::fork::DontForkFd;
use farcall_shm::{Mutex, Segment, SharedMem, fence};
use farcall_verbs::{Error, Result};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use super::liveness::ProcessLiveness;
use super::peer::Peer;
use super::peers::Peers;
use super::regions::MAX_REGIONS;
use super::rendezvous::{Refusal, ReplyBody, RequestBody, TrustLevel, authorize_peer, socket_address};
use super::requests::{PeerReply, ReplyInterest, Requests};
use super::service_thread::Service;

const OP: &str = "connect to a peer process";

/// A handshake in progress. It continues in the background, and ends when the last holder that wants to reach the
/// process drops it.
#[derive(Default)]
pub(crate) struct PeerHandshake(Mutex<Option<PendingHello>>);

impl PeerHandshake {
    /// Continues the handshake with the process that owns `block`. Returns `None` if the process has not replied yet.
    ///
    /// # Errors
    /// Returns an error if there is no such process, if either process is not authorized to connect to the other, or if
    /// the reply is invalid.
    pub(super) fn poll(&self, service: &Service, peers: &Peers, block: u32) -> Result<Option<Arc<Peer>>> {
        let mut pending = self.0.lock();
        // Another handshake with the process may have completed in the meantime.
        if let Some(peer) = peers.get(block) {
            return Ok(Some(peer));
        }
        let started = match pending.take() {
            Some(started) => started,
            None => PendingHello::begin(service, block)?,
        };
        match started.poll()? {
            Ok(peer) => peers.add(service, block, peer).map(Some),
            Err(unanswered) => {
                *pending = Some(unanswered);
                Ok(None)
            }
        }
    }
}

/// Handshakes in progress by block; kept alive by those that want to reach the process.
#[derive(Default)]
pub(super) struct Handshakes(Mutex<HashMap<u32, Weak<PeerHandshake>>>);

impl Handshakes {
    /// Returns the handshake in progress with the owner of a block, or a new one.
    pub(super) fn get_or_begin(&self, block: u32) -> Arc<PeerHandshake> {
        let mut handshakes = self.0.lock();
        if let Some(handshake) = handshakes.get(&block).and_then(Weak::upgrade) {
            return handshake;
        }
        handshakes.retain(|_, handshake| handshake.strong_count() > 0);
        let handshake = Arc::<PeerHandshake>::default();
        handshakes.insert(block, Arc::downgrade(&handshake));
        handshake
    }
}

/// Returns whether a handshake failed because no such process exists.
pub(crate) fn is_no_such_process(error: &Error) -> bool {
    let refused = [Errno::CONNREFUSED, Errno::NOENT].map(|errno| Some(errno.raw_os_error()));
    matches!(error, Error::Os { operation: OP, source, .. } if refused.contains(&source.raw_os_error()))
}

/// A process to which the first message was sent.
struct PendingHello {
    name: String,
    trust_level: TrustLevel,
    liveness: ProcessLiveness,
    requests: Requests,
    interest: ReplyInterest,
}

impl PendingHello {
    fn begin(service: &Service, block: u32) -> Result<Self> {
        let (name, socket, trust_level) = connect_to_owner(block)?;
        let liveness = ProcessLiveness::of_socket_peer(socket.as_fd())?;
        service.watch_handshake(socket.as_fd())?;
        let requests = Requests::new(Arc::new(DontForkFd::new(socket)));
        Ok(Self { name, trust_level, liveness, requests, interest: ReplyInterest::default() })
    }

    /// Checks for the reply; returns the handshake itself if there is none yet.
    fn poll(mut self) -> Result<Result<Peer, Self>> {
        let fail = |what: &str| Error::Peer { operation: OP, peer: self.name.clone(), what: what.into() };
        let asymmetric = fence::asymmetric();
        let hello = RequestBody::Hello { asymmetric };
        let (body, fds) = match self.requests.request(&self.interest, hello, &[]) {
            Ok(PeerReply::Granted(answer)) => answer,
            Ok(PeerReply::Refused(reason)) => return Err(fail(reason.text())),
            Ok(PeerReply::Pending) => return Ok(Err(self)),
            // The process exited before it accepted the connection.
            Err(Errno::CONNRESET | Errno::PIPE) => return Err(fail("the peer has ended")),
            Err(Errno::PROTO) => return Err(fail(Refusal::Malformed.text())),
            Err(e) => return Err(Error::os(OP, format!("talk to the {}", self.name), e)),
        };
        let instance = match body {
            ReplyBody::Hello { instance, asymmetric: theirs } if theirs == asymmetric => instance,
            ReplyBody::Hello { .. } => return Err(fail(Refusal::FencesDiffer.text())),
            _ => return Err(fail("it answered nonsense")),
        };
        let table = fds.first().ok_or_else(|| fail("it sent no table of regions"))?;
        let generations = Segment::map_peer_segment(table.as_fd(), 0, MAX_REGIONS * 8, false)?;
        let generations = SharedMem::new(generations);
        let Self { trust_level, liveness, requests, .. } = self;
        Ok(Ok(Peer::new(instance, trust_level, liveness, generations, requests)))
    }
}

/// Connects to the process that owns `block`, if both processes are authorized. The kernel reports the user of the
/// process as of the time when it began to listen, independent of what the process does.
///
/// # Errors
/// Returns an error if there is no such process, if it accepts no connections, or if it is not authorized.
fn connect_to_owner(block: u32) -> Result<(String, OwnedFd, TrustLevel)> {
    let name = format!("owner of queue pair numbers {block:#05x}xxx");
    let refuse = |what: &str| Error::Peer { operation: OP, peer: name.clone(), what: what.into() };
    let address = socket_address(block)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| Error::os(OP, "create a socket (check RLIMIT_NOFILE)", e))?;
    match net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Err(refuse("it takes no connections now: its queue of them is full")),
        Err(e @ (Errno::CONNREFUSED | Errno::NOENT)) => {
            let what = "the peer has ended, or is another user's or container's (share FARCALL_SOCKET_DIR, and between \
                        users FARCALL_GROUP)";
            return Err(Error::os(OP, format!("no process of this user is the {name}: {what}"), e));
        }
        Err(Errno::ACCESS) => {
            return Err(refuse(
                "its socket lets in the user that it runs as, and nobody else unless FARCALL_GROUP names a group of \
                 both",
            ));
        }
        Err(e) => return Err(Error::os(OP, format!("reach the {name}"), e)),
    }
    let trust_level = authorize_peer(socket.as_fd(), &name)?;
    Ok((name, socket, trust_level))
}
