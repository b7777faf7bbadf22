//! Answering peers: what they are granted and what not.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use farcall_verbs::Access as Rights;
use farcall_verbs::AsyncEventKind;
use rustix::io::Errno;

use super::access::execute;
use super::{
    Kinship, Reach, Reply, ReplyBody, Request, RequestBody, Violation, peer_pidfd, recv_frame, refusal,
    send_frame,
};
use crate::fence;
use crate::fork::UnforkedFd;
use crate::in_place::Window;
use crate::process::Process;
use crate::qp::{Connected, RemoteCq};
use crate::regions::{Backing, Grant};
use crate::shared::Segment;

/// Frames of one client that are answered before others have their turn.
const FRAMES_A_TURN: usize = 32;

/// A process that asks us.
pub(crate) struct Client {
    socket: UnforkedFd,
    /// Tells it from all others that ever asked us.
    id: u64,
    kinship: Kinship,
    process_number: Option<u64>,
    /// Readable when the process has ended; `None` if the system has no such descriptor for it.
    life: Option<Arc<OwnedFd>>,
}

/// The number that a process has among all descriptors of its life (since Linux 6.9).
fn number_of(life: &OwnedFd) -> Option<u64> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let is_told = rustix::fs::fstatfs(life).is_ok_and(|stat| stat.f_type as u64 == PID_FS_MAGIC);
    is_told.then(|| rustix::fs::fstat(life).ok().map(|stat| stat.st_ino))?
}

impl Client {
    pub(crate) fn new(socket: OwnedFd, id: u64, kinship: Kinship) -> Self {
        let life = peer_pidfd(socket.as_fd()).ok().map(Arc::new);
        let process_number = life.as_deref().and_then(number_of);
        Self { socket: UnforkedFd::new(socket), id, kinship, process_number, life }
    }

    /// Tells its process from others: equal for all its connections. `None` if the kernel has no such number.
    pub(crate) fn process_number(&self) -> Option<u64> {
        self.process_number
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Answers what a client's socket holds; returns whether to keep it.
pub(crate) fn answer(process: &Process, client: &Client) -> bool {
    let socket = client.socket();
    // Then others have their turn; epoll tells again of what is left.
    for _ in 0..FRAMES_A_TURN {
        match recv_frame(socket) {
            Ok(Some((frame, fds))) => {
                let Some(request) = Request::decode(&frame) else {
                    let reply = Reply { id: 0, body: ReplyBody::Refused(refusal::MALFORMED) };
                    let _ = send_frame(socket, &reply.encode(), &[]);
                    return false;
                };
                if answer_one(process, client, &request, fds).is_err() {
                    return false;
                }
            }
            Ok(None) => return false,
            Err(Errno::AGAIN) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

fn answer_one(
    process: &Process,
    client: &Client,
    request: &Request,
    came: Vec<OwnedFd>,
) -> rustix::io::Result<()> {
    let socket = client.socket();
    let send =
        |body, fds: &[BorrowedFd<'_>]| send_frame(socket, &Reply { id: request.id, body }.encode(), fds);
    let refuse = |reason| send(ReplyBody::Refused(reason), &[]);
    match request.body {
        RequestBody::Hello { asymmetric } if asymmetric != fence::asymmetric() => {
            refuse(refusal::FENCES_DIFFER)
        }
        RequestBody::Hello { asymmetric } => {
            let body = ReplyBody::Hello { instance: process.instance(), asymmetric };
            send(body, &[process.regions.segment().fd()])
        }
        RequestBody::Connect { instance, src_qpn, life, dst_qpn, transport, credit_bit, credit_event } => {
            let Some(transport) = Connected::from_number(transport) else {
                return refuse(refusal::TRANSPORT);
            };
            let Some(qp) = process.qp(dst_qpn) else { return refuse(refusal::UNKNOWN_QP) };
            let initiator = || {
                let creditor = RemoteCq::from_fds(credit_bit, credit_event, &mut came.into_iter());
                (client.life.clone(), creditor)
            };
            let asker = (instance, src_qpn, life);
            match qp.grant_inbound(asker, transport, client.id, initiator, |body, fds| send(body, fds)) {
                Ok(sent) => sent,
                Err(reason) => refuse(reason),
            }
        }
        RequestBody::Match { dst_qpn } => {
            if let Some(qp) = process.qp(dst_qpn) {
                qp.message_came();
            }
            Ok(())
        }
        RequestBody::Violated { dst_qpn, life, violation } => {
            if let Some(qp) = process.qp(dst_qpn).filter(|qp| qp.accepts_from(client.id, life).is_ok()) {
                qp.fail(Some(match violation {
                    Violation::Access => AsyncEventKind::QpAccessErr,
                    Violation::Request => AsyncEventKind::QpReqErr,
                }));
            }
            Ok(())
        }
        RequestBody::MapRegion { dst_qpn, rkey, receive } => {
            let Some(qp) = process.qp(dst_qpn) else { return refuse(refusal::UNKNOWN_QP) };
            if !qp.is_granted_to(client.id) {
                return refuse(refusal::TAKEN);
            }
            let pd = if receive { qp.receives_pd() } else { qp.pd() };
            let Some(grant) = process.regions.grant(rkey, pd, receive) else {
                return refuse(refusal::UNKNOWN_KEY);
            };
            let memory = Handover::of(process, client.kinship, &grant, receive);
            let Extent { addr, len_bytes, file_offset } = memory.mapped(&grant);
            let body = ReplyBody::MapRegion {
                addr: grant.addr,
                len_bytes: grant.len_bytes,
                file_offset,
                generation: grant.generation,
                access: grant.access.bits(),
                reach: memory.reach(),
                mapped_addr: addr,
                mapped_len_bytes: len_bytes,
            };
            match memory {
                Handover::Segment(segment) => send(body, &[segment.fd()]),
                Handover::Window(window) => send(body, &[window.pages.fd()]),
                Handover::Partly(window, space) => send(body, &[window.pages.fd(), space]),
                Handover::AddressSpace(fd) => send(body, &[fd]),
                Handover::Nothing => send(body, &[]),
            }
        }
        RequestBody::Access(access) => match execute(process, client.id, &access, &came) {
            Ok(value) => send(ReplyBody::Access { value }, &[]),
            Err(reason) => refuse(reason),
        },
        RequestBody::OpenDatagrams { instance, src_qpn, dst_qpn } => {
            let Some(qp) = process.datagrams(dst_qpn) else { return refuse(refusal::UNKNOWN_QP) };
            match qp.open_inlet((instance, src_qpn), |body, fds| send(body, fds)) {
                Ok(sent) => {
                    if let Some(life) = &client.life {
                        process.service.watch_sender(instance, life);
                    }
                    sent
                }
                Err(reason) => refuse(reason),
            }
        }
    }
}

/// Memory in a memfd.
#[derive(Default)]
struct Extent {
    addr: u64,
    len_bytes: u64,
    file_offset: u64,
}

/// What goes to a peer that may access a region.
enum Handover<'a> {
    Segment(&'a Segment),
    /// All of it is moved to where it can be mapped.
    Window(&'a Window),
    /// A part of it is; our address space for the rest.
    Partly(&'a Window, BorrowedFd<'a>),
    AddressSpace(BorrowedFd<'a>),
    Nothing,
}

impl<'a> Handover<'a> {
    fn of(process: &'a Process, kinship: Kinship, grant: &'a Grant, receive: bool) -> Self {
        let writes = receive || grant.access.intersects(Rights::REMOTE_WRITE);
        match &grant.backing {
            Backing::Pool(segment) => Self::Segment(segment),
            // Our address space is more than a member of a group is given.
            Backing::Private { .. } if kinship != Kinship::SameUser => Self::Nothing,
            Backing::Private { window: Some(window), .. } if window.len_bytes == grant.len_bytes => {
                Self::Window(window)
            }
            Backing::Private { window, .. } => match (process.address_space(writes), window) {
                (Some(space), Some(window)) => Self::Partly(window, space.fd()),
                (Some(space), None) => Self::AddressSpace(space.fd()),
                (None, _) => Self::Nothing,
            },
        }
    }

    /// What of the region lies in the memfd, and where.
    fn mapped(&self, grant: &Grant) -> Extent {
        match self {
            Self::Segment(_) => Extent { addr: grant.addr, len_bytes: grant.len_bytes, file_offset: 0 },
            Self::Window(window) | Self::Partly(window, _) => {
                let Window { addr, len_bytes, file_offset, .. } = **window;
                Extent { addr, len_bytes, file_offset }
            }
            Self::AddressSpace(_) | Self::Nothing => Extent::default(),
        }
    }

    const fn reach(&self) -> Reach {
        match self {
            Self::Segment(_) | Self::Window(_) => Reach::Mapped,
            Self::Partly(..) => Reach::Partly,
            Self::AddressSpace(_) => Reach::AddressSpace,
            Self::Nothing => Reach::Owner,
        }
    }
}
