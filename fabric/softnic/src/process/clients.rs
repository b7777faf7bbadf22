//! Client processes: how many may connect, and how their requests are served.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farcall_shm::fence;
use farcall_shm::fork::DontForkFd;
use farcall_verbs::with_sources;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, getrlimit};

use super::TransportBackend;
use super::liveness::ProcessLiveness;
use super::rendezvous::{
    Block, Refusal, Reply, ReplyBody, Request, RequestBody, TrustLevel, accepts_frames, authorize_peer,
    recv_frame, send_frame,
};
use super::service_work::RESUME_DELAY_MAX;

/// Maximum number of connected clients.
const MAX_CLIENTS: u64 = 4096;

/// Returns the maximum number of connections of one process. It needs one for each block of queue pair numbers of this
/// process that it communicates with.
fn clients_per_process_max(clients_max: usize) -> usize {
    (clients_max / 4).min(256)
}

/// Returns the maximum number of clients. Each uses two descriptors; half of all descriptors are left to the program.
fn clients_max(open_files: Option<u64>) -> usize {
    open_files.map_or(MAX_CLIENTS, |limit| (limit / 4).min(MAX_CLIENTS)) as usize
}

/// Maximum number of frames of one client that are handled before other clients are served.
const FRAMES_PER_EVENT: usize = 32;

/// Condition for which a client's socket is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextInterest {
    /// Further requests.
    Requests,
    /// Space for replies: the client has not read the last ones yet, possibly because its process is not scheduled.
    ReplySpace,
    /// None: the connection has ended.
    End,
}

/// A process that sends requests to this one.
pub(crate) struct Client {
    socket: DontForkFd,
    /// Unique among all clients that ever connected.
    pub(crate) id: u64,
    pub(crate) trust_level: TrustLevel,
    process_number: Option<u64>,
    /// `None` if the process has no free descriptor.
    liveness: Option<Arc<ProcessLiveness>>,
}

/// Returns the inode number of a pidfd, which is unique per process (since Linux 6.9).
fn process_number(pidfd: &OwnedFd) -> Option<u64> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let is_unique = rustix::fs::fstatfs(pidfd).is_ok_and(|stat| stat.f_type as u64 == PID_FS_MAGIC);
    is_unique.then(|| rustix::fs::fstat(pidfd).ok().map(|stat| stat.st_ino))?
}

impl Client {
    pub(super) fn new(socket: OwnedFd, id: u64, trust_level: TrustLevel) -> Self {
        let liveness = ProcessLiveness::of_socket_peer(socket.as_fd()).ok().map(Arc::new);
        let process_number = liveness.as_deref().and_then(|liveness| process_number(&liveness.pidfd));
        Self { socket: DontForkFd::new(socket), id, trust_level, process_number, liveness }
    }

    /// Checks that with it the clients in total, one process, or other users do not use too many descriptors of this
    /// process; `connected` are all other clients.
    ///
    /// # Errors
    /// Returns the reason if they do.
    pub(super) fn require_capacity<'a>(
        &self,
        connected: impl Iterator<Item = &'a Self>,
    ) -> Result<(), String> {
        let (mut all, mut same_process, mut others) = (0, 0, 0);
        for other in connected {
            all += 1;
            let is_same_process =
                self.process_number.is_some() && other.process_number == self.process_number;
            same_process += usize::from(is_same_process);
            others += usize::from(other.trust_level == TrustLevel::SameGroup);
        }
        let max = clients_max(getrlimit(Resource::Nofile).current);
        if all >= max {
            return Err(format!(
                "{all} are connected, at most {max} may be (a quarter of RLIMIT_NOFILE: raise it)"
            ));
        }
        if self.trust_level == TrustLevel::SameGroup && others >= max / 2 {
            return Err(format!("{others} of other users are connected, at most {} may be", max / 2));
        }
        if same_process >= clients_per_process_max(max) {
            return Err(format!("its process has {same_process} already"));
        }
        Ok(())
    }

    pub(crate) fn liveness(&self) -> Option<&Arc<ProcessLiveness>> {
        self.liveness.as_ref()
    }

    /// Replies to its request with the given number.
    pub(crate) fn reply(&self, id: u32, body: ReplyBody, fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        send_frame(self.socket.as_fd(), &Reply { id, body }.encode(), fds)
    }

    /// Returns its socket.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Handles the frames in its socket while there is space for replies. Returns the condition to wait for.
    pub(super) fn serve(self: &Arc<Self>, backend: &dyn TransportBackend) -> NextInterest {
        // Other clients are served next; epoll reports the remaining frames again.
        for _ in 0..FRAMES_PER_EVENT {
            if !accepts_frames(self.socket.as_fd()) {
                return NextInterest::ReplySpace;
            }
            match recv_frame(self.socket.as_fd()) {
                Ok(Some((frame, fds))) => {
                    let Some(request) = Request::decode(&frame) else {
                        let reply = Reply { id: 0, body: ReplyBody::Refused(Refusal::Malformed) };
                        let _ = send_frame(self.socket.as_fd(), &reply.encode(), &[]);
                        return NextInterest::End;
                    };
                    let answered = match request.body {
                        RequestBody::Hello { asymmetric } => {
                            self.reply_to_hello(backend, &request, asymmetric)
                        }
                        _ => backend.answer(self, &request, fds),
                    };
                    if answered.is_err() {
                        return NextInterest::End;
                    }
                }
                Ok(None) => return NextInterest::End,
                Err(Errno::AGAIN) => return NextInterest::Requests,
                Err(Errno::INTR) => {}
                Err(_) => return NextInterest::End,
            }
        }
        NextInterest::Requests
    }

    /// Replies with this process's instance and its table of regions.
    fn reply_to_hello(
        &self,
        backend: &dyn TransportBackend,
        request: &Request,
        asymmetric: bool,
    ) -> rustix::io::Result<()> {
        if asymmetric != fence::asymmetric() {
            return self.reply(request.id, ReplyBody::Refused(Refusal::FencesDiffer), &[]);
        }
        let body = ReplyBody::Hello { instance: backend.process().instance, asymmetric };
        self.reply(request.id, body, &[backend.process().regions.segment.fd()])
    }
}

/// Accepts the connections of client processes.
#[derive(Default)]
pub(super) struct ClientAcceptor {
    /// `true` if the last `accept` failed and a warning was logged.
    has_shortage: AtomicBool,
}

impl ClientAcceptor {
    /// Accepts the next connection of an authorized process that waits at a block's socket; `None` if there is none.
    pub(super) fn accept(&self, block: &Block) -> Option<(OwnedFd, TrustLevel)> {
        loop {
            let socket = match accept_with(&block.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    // The connection stays in the backlog, so the socket stays readable. Sleep instead of spinning on
                    // it.
                    if !self.has_shortage.swap(true, Ordering::Relaxed) {
                        tracing::warn!("softnic service: peers have to wait (raise RLIMIT_NOFILE): {error}");
                    }
                    std::thread::sleep(RESUME_DELAY_MAX);
                    return None;
                }
            };
            self.has_shortage.store(false, Ordering::Relaxed);
            match authorize_peer(socket.as_fd(), "a local process") {
                Ok(trust_level) => return Some((socket, trust_level)),
                Err(error) => {
                    tracing::warn!("softnic service: refused a connection: {}", with_sources(&error))
                }
            }
        }
    }
}
