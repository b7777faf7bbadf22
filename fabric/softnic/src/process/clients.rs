//! Client processes: how many may connect, and how their requests are served.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farcall_shm::fence;
use farcall_shm::fork::DontForkFd;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, getrlimit};

use super::Way;
use super::liveness::Lifetime;
use super::rendezvous::{
    Block, Kinship, Refusal, Reply, ReplyBody, Request, RequestBody, judge, recv_frame, send_frame,
    takes_frames,
};
use super::service_thread::{Service, Watched};
use super::service_work::RETRY_LAST;

/// Maximum number of connected clients.
const MAX_CLIENTS: u64 = 4096;

/// Returns the maximum number of connections of one process. It needs one for each block of queue pair numbers of this
/// process that it communicates with.
fn most_of_a_process(most_clients: usize) -> usize {
    (most_clients / 4).min(256)
}

/// Returns the maximum number of clients. Each uses two descriptors; half of all descriptors are left to the program.
fn most_clients(open_files: Option<u64>) -> usize {
    open_files.map_or(MAX_CLIENTS, |limit| (limit / 4).min(MAX_CLIENTS)) as usize
}

/// Maximum number of frames of one client that are handled before other clients are served.
const FRAMES_A_TURN: usize = 32;

/// Condition for which a client's socket is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Further requests.
    Questions,
    /// Space for replies: the client has not read the last ones yet, possibly because its process is not scheduled.
    Room,
    /// None: the connection has ended.
    End,
}

/// A process that sends requests to this one.
pub(crate) struct Client {
    socket: DontForkFd,
    /// Unique among all clients that ever connected.
    pub(crate) id: u64,
    pub(crate) kinship: Kinship,
    process_number: Option<u64>,
    /// `None` if the process has no free descriptor.
    life: Option<Arc<Lifetime>>,
}

/// Returns the inode number of a pidfd, which is unique per process (since Linux 6.9).
fn number_of(pidfd: &OwnedFd) -> Option<u64> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let is_told = rustix::fs::fstatfs(pidfd).is_ok_and(|stat| stat.f_type as u64 == PID_FS_MAGIC);
    is_told.then(|| rustix::fs::fstat(pidfd).ok().map(|stat| stat.st_ino))?
}

impl Client {
    fn new(socket: OwnedFd, id: u64, kinship: Kinship) -> Self {
        let life = Lifetime::at_other_end(socket.as_fd()).ok().map(Arc::new);
        let process_number = life.as_deref().and_then(|life| number_of(&life.pidfd));
        Self { socket: DontForkFd::new(socket), id, kinship, process_number, life }
    }

    pub(crate) fn life(&self) -> Option<&Arc<Lifetime>> {
        self.life.as_ref()
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
    pub(super) fn serve(self: &Arc<Self>, way: &dyn Way) -> Next {
        // Other clients are served next; epoll reports the remaining frames again.
        for _ in 0..FRAMES_A_TURN {
            if !takes_frames(self.socket.as_fd()) {
                return Next::Room;
            }
            match recv_frame(self.socket.as_fd()) {
                Ok(Some((frame, fds))) => {
                    let Some(request) = Request::decode(&frame) else {
                        let reply = Reply { id: 0, body: ReplyBody::Refused(Refusal::Malformed) };
                        let _ = send_frame(self.socket.as_fd(), &reply.encode(), &[]);
                        return Next::End;
                    };
                    let answered = match request.body {
                        RequestBody::Hello { asymmetric } => self.greet(way, &request, asymmetric),
                        _ => way.answer(self, &request, fds),
                    };
                    if answered.is_err() {
                        return Next::End;
                    }
                }
                Ok(None) => return Next::End,
                Err(Errno::AGAIN) => return Next::Questions,
                Err(Errno::INTR) => {}
                Err(_) => return Next::End,
            }
        }
        Next::Questions
    }

    /// Replies with this process's instance and its table of regions.
    fn greet(&self, way: &dyn Way, request: &Request, asymmetric: bool) -> rustix::io::Result<()> {
        if asymmetric != fence::asymmetric() {
            return self.reply(request.id, ReplyBody::Refused(Refusal::FencesDiffer), &[]);
        }
        let body = ReplyBody::Hello { instance: way.process().instance, asymmetric };
        self.reply(request.id, body, &[way.process().regions.segment.fd()])
    }
}

impl Service {
    /// Accepts the connections that wait at a block's socket.
    pub(super) fn accept(&self, block: &Block) {
        loop {
            let socket = match accept_with(&block.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    // The connection stays in the backlog, so the socket stays readable. Sleep instead of spinning on
                    // it.
                    if !self.has_shortage.swap(true, Ordering::Relaxed) {
                        tracing::warn!("softnic service: peers have to wait (raise RLIMIT_NOFILE): {error}");
                    }
                    return std::thread::sleep(RETRY_LAST);
                }
            };
            self.has_shortage.store(false, Ordering::Relaxed);
            let kinship = match judge(socket.as_fd(), "a local process") {
                Ok(kinship) => kinship,
                Err(error) => {
                    tracing::warn!("softnic service: refused a connection: {error}");
                    continue;
                }
            };
            let client = Arc::new(Client::new(socket, self.next_token(), kinship));
            if let Err(why) = self.has_room_for(&client) {
                tracing::warn!("softnic service: refused a connection: {why}");
                continue;
            }
            if let Err(error) = self.add(client.socket.as_fd(), Watched::Client(client.clone())) {
                tracing::warn!("softnic service: {error}");
            }
        }
    }

    /// Checks that the clients in total, one process, or other users do not use too many descriptors of this process.
    fn has_room_for(&self, client: &Client) -> Result<(), String> {
        let (mut all, mut its, mut others) = (0, 0, 0);
        for other in self.watched.lock().values() {
            if let Watched::Client(other) = other {
                all += 1;
                let is_its = client.process_number.is_some() && other.process_number == client.process_number;
                its += usize::from(is_its);
                others += usize::from(other.kinship == Kinship::SameGroup);
            }
        }
        let most = most_clients(getrlimit(Resource::Nofile).current);
        if all >= most {
            return Err(format!(
                "{all} are connected, at most {most} may be (a quarter of RLIMIT_NOFILE: raise it)"
            ));
        }
        if client.kinship == Kinship::SameGroup && others >= most / 2 {
            return Err(format!("{others} of other users are connected, at most {} may be", most / 2));
        }
        if its >= most_of_a_process(most) {
            return Err(format!("its process has {its} already"));
        }
        Ok(())
    }
}
