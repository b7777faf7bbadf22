//! Answering peers: what they are granted and what not.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::{Reply, ReplyBody, Request, RequestBody, peer_pidfd, recv_frame, refusal, send_frame};
use crate::fence;
use crate::process::Process;
use crate::qp::Connected;

/// Frames of one client that are answered before others have their turn.
const FRAMES_A_TURN: usize = 32;

/// Answers what a client socket holds; returns whether to keep it.
pub(crate) fn answer(process: &Process, socket: BorrowedFd<'_>) -> bool {
    // Then others have their turn; epoll tells again of what is left.
    for _ in 0..FRAMES_A_TURN {
        match recv_frame(socket) {
            Ok(Some((frame, _unwanted_fds))) => {
                let Some(request) = Request::decode(&frame) else {
                    let reply = Reply { id: 0, body: ReplyBody::Refused(refusal::MALFORMED) };
                    let _ = send_frame(socket, &reply.encode(), &[]);
                    return false;
                };
                if answer_one(process, socket, &request).is_err() {
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

fn answer_one(process: &Process, socket: BorrowedFd<'_>, request: &Request) -> rustix::io::Result<()> {
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
        RequestBody::Connect { instance, src_qpn, life, dst_qpn, transport } => {
            let Some(transport) = Connected::from_number(transport) else {
                return refuse(refusal::TRANSPORT);
            };
            let Some(qp) = process.qp(dst_qpn) else { return refuse(refusal::UNKNOWN_QP) };
            let initiator = || peer_pidfd(socket).ok();
            let asker = (instance, src_qpn, life);
            match qp.grant_inbound(asker, transport, initiator, |body, fds| send(body, fds)) {
                Ok(sent) => sent,
                Err(reason) => refuse(reason),
            }
        }
        RequestBody::MapRegion { dst_qpn, rkey, receive } => {
            let Some(qp) = process.qp(dst_qpn) else { return refuse(refusal::UNKNOWN_QP) };
            let Some(grant) = process.regions.grant(rkey, qp.pd()) else {
                return refuse(refusal::UNKNOWN_KEY);
            };
            let local_only = !grant.access.intersects(crate::REMOTE_ACCESS);
            if local_only && !receive {
                return refuse(refusal::UNKNOWN_KEY);
            }
            let body = ReplyBody::MapRegion {
                addr: grant.addr,
                len_bytes: grant.len_bytes,
                file_offset: 0,
                generation: grant.generation,
                access: grant.access.bits(),
            };
            send(body, &[grant.segment.fd().as_fd()])
        }
    }
}
