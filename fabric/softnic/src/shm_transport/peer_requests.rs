//! Handlers for the requests of peer processes, and the grants that they return.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use farcall_verbs::{Access, AsyncEventKind};

use super::context::ShmTransport;
use super::qp::{Connected, RemoteCq};
use crate::process::Client;
use crate::process::regions::{Backing, Grant};
use crate::process::rendezvous::{
    Reach, Refusal, RegionGrant, ReplyBody, Request, RequestBody, TrustLevel, Violation,
};
use crate::process::shared_remap::Window;

impl ShmTransport {
    /// Handles one request of a client and replies to it.
    pub(super) fn handle_peer_request(
        &self,
        client: &Arc<Client>,
        request: &Request,
        fds: Vec<OwnedFd>,
    ) -> rustix::io::Result<()> {
        let reply = |body, fds: &[BorrowedFd<'_>]| client.reply(request.id, body, fds);
        let answered = match request.body {
            // The process layer has already replied to it.
            RequestBody::Hello { .. } => Ok(Ok(())),
            RequestBody::Connect { instance, src_qpn, incarnation, dst_qpn, transport, credit } => {
                let initiator = || {
                    let credit_waiter = RemoteCq::from_fds(credit, &mut fds.into_iter());
                    (client.liveness().cloned(), credit_waiter)
                };
                self.qp(dst_qpn).ok_or(Refusal::UnknownQp).and_then(|qp| {
                    let transport = Connected::from_number(transport).ok_or(Refusal::Transport)?;
                    qp.grant_inbound((instance, src_qpn, incarnation), transport, client.id, initiator, reply)
                })
            }
            RequestBody::Match { dst_qpn } => {
                self.qp(dst_qpn).iter().for_each(|qp| qp.on_message());
                Ok(Ok(()))
            }
            RequestBody::Ready { dst_qpn } => {
                self.qp(dst_qpn).iter().for_each(|qp| qp.on_peer_ready());
                Ok(Ok(()))
            }
            RequestBody::Violated { dst_qpn, incarnation, violation } => {
                if let Some(qp) =
                    self.qp(dst_qpn).filter(|qp| qp.accepts_from(client.id, incarnation).is_ok())
                {
                    qp.fail(Some(match violation {
                        Violation::Access => AsyncEventKind::QpAccessErr,
                        Violation::Request => AsyncEventKind::QpReqErr,
                    }));
                }
                Ok(Ok(()))
            }
            RequestBody::MapRegion { dst_qpn, rkey, receive } => {
                self.grant_region(client, dst_qpn, rkey, receive, reply)
            }
            RequestBody::Access(access) => self
                .execute_for_peer(client.id, &access, &fds)
                .map(|value| reply(ReplyBody::Access { value }, &[])),
            RequestBody::OpenDatagrams { instance, src_qpn, dst_qpn } => {
                self.datagrams(dst_qpn).ok_or(Refusal::UnknownQp).and_then(|qp| {
                    let sent = qp.open_rx_ring((instance, src_qpn), client.id, reply)?;
                    if let Some(liveness) = client.liveness() {
                        self.core.process.service.watch_sender(instance, liveness);
                    }
                    Ok(sent)
                })
            }
            RequestBody::AwaitReceiverProgress { dst_qpn, bit, consumed, posted } => {
                let qp = self.datagrams(dst_qpn);
                let waits =
                    qp.is_some_and(|qp| qp.add_blocked_sender(client, request.id, bit, consumed, posted));
                Ok(if waits { Ok(()) } else { reply(ReplyBody::Place, &[]) })
            }
        };
        answered.unwrap_or_else(|reason| reply(ReplyBody::Refused(reason), &[]))
    }

    /// Grants a client access to a region, with the most direct reach that its trust level permits.
    ///
    /// # Errors
    /// Returns the reason of refusal.
    fn grant_region<R>(
        &self,
        client: &Client,
        dst_qpn: u32,
        rkey: u32,
        receive: bool,
        reply: impl FnOnce(ReplyBody, &[BorrowedFd<'_>]) -> R,
    ) -> Result<R, Refusal> {
        let qp = self.qp(dst_qpn).ok_or(Refusal::UnknownQp)?;
        if !qp.is_granted_to(client.id) {
            return Err(Refusal::Taken);
        }
        let pd = if receive { qp.receives_pd } else { qp.pd };
        let grant = self.core.process.regions.grant(rkey, pd, receive).ok_or(Refusal::UnknownKey)?;
        let RegionHandover { reach, mapped, fds } =
            RegionHandover::of(self, client.trust_level, &grant, receive);
        let body = ReplyBody::MapRegion(RegionGrant {
            addr: grant.addr,
            memory_addr: grant.memory_addr,
            len_bytes: grant.len_bytes,
            file_offset: mapped.file_offset,
            generation: grant.generation,
            access: grant.access.bits(),
            reach,
            mapped_offset: mapped.offset,
            mapped_len_bytes: mapped.len_bytes,
        });
        Ok(reply(body, &fds))
    }
}

/// A byte range of a region, and its position in a memfd.
#[derive(Default)]
struct MemfdRange {
    /// Offset from the start of the region in bytes.
    offset: u64,
    len_bytes: u64,
    file_offset: u64,
}

/// Grant of a region to a peer: the kind of access, the part of the region in a memfd, and the file descriptors.
struct RegionHandover<'a> {
    reach: Reach,
    mapped: MemfdRange,
    fds: Vec<BorrowedFd<'a>>,
}

impl<'a> RegionHandover<'a> {
    fn of(shm: &'a ShmTransport, trust_level: TrustLevel, grant: &'a Grant, receive: bool) -> Self {
        let of = |reach, mapped, fds| Self { reach, mapped, fds };
        let part = |window: &Window| {
            let Window { addr, len_bytes, file_offset, .. } = *window;
            MemfdRange { offset: addr - grant.memory_addr, len_bytes, file_offset }
        };
        let window = match &grant.backing {
            Backing::Pool(segment) => {
                let file_offset = segment.offset() as u64;
                let all = MemfdRange { offset: 0, len_bytes: grant.len_bytes, file_offset };
                return of(Reach::Mapped, all, vec![segment.fd()]);
            }
            // Access to this process's address space exceeds what a member of the group may receive.
            Backing::Private { .. } if trust_level != TrustLevel::SameUser => None,
            Backing::Private { window, .. } => window.as_ref(),
        };
        if let Some(all) = window.filter(|window| window.len_bytes == grant.len_bytes) {
            return of(Reach::Mapped, part(all), vec![all.pages.fd()]);
        }
        let writes = receive || grant.access.intersects(Access::REMOTE_WRITE);
        let space = if trust_level == TrustLevel::SameUser { shm.address_space(writes) } else { None };
        match (space, window) {
            (Some(space), Some(window)) => {
                of(Reach::Partly, part(window), vec![window.pages.fd(), space.fd()])
            }
            (Some(space), None) => of(Reach::AddressSpace, MemfdRange::default(), vec![space.fd()]),
            (None, _) => of(Reach::Owner, MemfdRange::default(), Vec::new()),
        }
    }
}
