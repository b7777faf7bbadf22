//! Accesses to target memory that is not mapped here: through the target's address space if it was granted, otherwise
//! by the target's service thread. They are fenced against revocation like all others.

use std::sync::Arc;

use farcall_shm::{MAX_RANGES, MemoryRange, TransferError, hazard};
use farcall_verbs::{Access, Sge, WcStatus, WrOpcode};

use super::MAX_SGE;
use super::initiator::{CachedRegion, Initiator};
use super::message::{advert, publish_placed};
use super::proxied_request::Target;
use super::request::{ExecuteOutcome, Request, WaitReason};
use super::transfer::{gather_to_pieces, pointer};
use crate::process::PeerReply;
use crate::process::rendezvous::Operation;
use crate::shm_transport::granted::{Region, UnmappedRegion};

const _: () = assert!(MAX_SGE <= MAX_RANGES);

/// Returns the effect of a fault on the request.
fn failed(fault: TransferError) -> ExecuteOutcome {
    match fault {
        TransferError::Local => ExecuteOutcome::Failed(WcStatus::LOC_PROT_ERR),
        TransferError::Remote => ExecuteOutcome::Failed(WcStatus::REM_OP_ERR),
        // The exit of the process is reported soon.
        TransferError::Ended => ExecuteOutcome::Wait(WaitReason::Peer),
    }
}

/// Returns the elements as memory ranges.
fn pieces_of(sges: &[Sge]) -> ([MemoryRange; MAX_SGE], usize) {
    let mut pieces = [(std::ptr::null_mut(), 0); MAX_SGE];
    let mut count = 0;
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        pieces[count] = (pointer(sge), sge.length as usize);
        count += 1;
    }
    (pieces, count)
}

impl Initiator {
    /// Executes a one-sided access to a region that is not mapped.
    ///
    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    #[cold]
    pub(super) unsafe fn access_unmapped(
        &mut self,
        request: &Request<'_>,
        need: Access,
        region: Arc<UnmappedRegion>,
    ) -> ExecuteOutcome {
        if self.accepts().is_some_and(|accept| !accept.access().contains(need)) {
            // The queue pair does not permit such requests, regardless of the memory (IBA 11.6.2).
            return ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR);
        }
        let target = Target { rkey: request.rkey, addr: request.remote_addr, len_bytes: request.len_bytes };
        match request.opcode {
            WrOpcode::ATOMIC_FETCH_AND_ADD => {
                let add = request.target.atomic().compare_add;
                let (proxied, at) = self.proxied_target();
                proxied.atomic(at, target, Operation::FetchAdd { add })
            }
            WrOpcode::ATOMIC_CMP_AND_SWP => {
                let operands = request.target.atomic();
                let (compare, swap) = (operands.compare_add, operands.swap);
                let (proxied, at) = self.proxied_target();
                proxied.atomic(at, target, Operation::CompareSwap { compare, swap })
            }
            opcode if region.space.is_none() => {
                let operation = if opcode == WrOpcode::READ { Operation::Read } else { Operation::Write };
                let (proxied, at) = self.proxied_target();
                // SAFETY: by the contract of this function the elements are valid until the request completes, as
                // `transfer` requires.
                unsafe { proxied.transfer(at, request.sges, &[target], operation) }
            }
            // SAFETY: by the contract of this function the request's memory is valid, as `access_by_space` requires.
            _ => unsafe { self.access_by_space(request, need, region) },
        }
    }

    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    unsafe fn access_by_space(
        &mut self,
        request: &Request<'_>,
        need: Access,
        mut region: Arc<UnmappedRegion>,
    ) -> ExecuteOutcome {
        for _ in 0..2 {
            hazard::enter(self.inbound(), hazard::of_region(request.rkey));
            // SAFETY: by the contract of this function the request's memory is valid, and the region's hazard is
            // published, as `access_inside` requires.
            let (outcome, current) = unsafe { access_inside(self, request, need, &region) };
            hazard::leave(self.inbound());
            if current || matches!(outcome, ExecuteOutcome::Wait(_)) {
                return outcome;
            }
            // The key may have been reused for a new region; search once more.
            self.forget_unmapped(&region);
            region = match self.find_region(request.rkey, false) {
                PeerReply::Granted(CachedRegion::Unmapped(region)) if region.space.is_some() => region,
                PeerReply::Granted(CachedRegion::Mapped(at)) if let Some(whole) = &self.cached(at).whole => {
                    whole.clone()
                }
                PeerReply::Refused(_) => return ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR),
                // Its kind has changed, which the next attempt handles.
                PeerReply::Granted(_) | PeerReply::Pending => {
                    return ExecuteOutcome::Wait(WaitReason::PeerReply);
                }
            };
        }
        ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR)
    }

    /// Writes a message to an advertised receive of which some memory is not mapped.
    ///
    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    #[cold]
    pub(super) unsafe fn place_unmapped(&mut self, request: &Request<'_>, flags: u8) -> ExecuteOutcome {
        let mut places = [const { None }; MAX_SGE];
        let (mut count, mut left) = (0, request.len_bytes);
        for sge in 0..self.layout.recv_sge.min(MAX_SGE as u8) {
            let (addr, room, rkey) = advert(self, sge);
            let len_bytes = left.min(room.into());
            if len_bytes == 0 {
                continue;
            }
            let region = match self.find_region(rkey, true) {
                // Held in `places`, because the cache may evict it in favour of the next.
                PeerReply::Granted(CachedRegion::Mapped(at)) => {
                    let region = self.cached(at);
                    match &region.whole {
                        Some(whole) if region.locate(addr, len_bytes).is_none() => {
                            Region::Unmapped(whole.clone())
                        }
                        _ => Region::Mapped(region.clone()),
                    }
                }
                PeerReply::Granted(CachedRegion::Unmapped(region)) => Region::Unmapped(region),
                PeerReply::Refused(_) => return ExecuteOutcome::Failed(WcStatus::REM_OP_ERR),
                PeerReply::Pending => return ExecuteOutcome::Wait(WaitReason::PeerReply),
            };
            places[count] = Some(MessageTarget { target: Target { rkey, addr, len_bytes }, region });
            count += 1;
            left -= len_bytes;
        }
        if left > 0 {
            return ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR);
        }
        let only_owner = places.iter().flatten().any(MessageTarget::needs_proxy);
        if only_owner {
            let none = Target { rkey: 0, addr: 0, len_bytes: 0 };
            let targets: [Target; MAX_SGE] =
                std::array::from_fn(|i| places[i].as_ref().map_or(none, |place| place.target));
            let (proxied, at) = self.proxied_target();
            // SAFETY: by the contract of this function the elements are valid until the request completes, as
            // `transfer` requires.
            match unsafe { proxied.transfer(at, request.sges, &targets[..count], Operation::Place) } {
                ExecuteOutcome::Done => {}
                ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR) => {
                    return ExecuteOutcome::Failed(WcStatus::REM_OP_ERR);
                }
                outcome => return outcome,
            }
        }
        hazard::enter(self.inbound(), hazard::RECEIVES);
        let outcome = if self.accepts().is_none() {
            ExecuteOutcome::Wait(WaitReason::Peer)
        } else {
            // SAFETY: by the contract of this function the request's memory is valid, and the hazard of receives is
            // published, as `place_inside` requires.
            let placed = if only_owner { Ok(()) } else { unsafe { place_inside(self, request, &places) } };
            match placed {
                Ok(()) => {
                    publish_placed(self, request, flags);
                    ExecuteOutcome::Done
                }
                Err(outcome) => outcome,
            }
        };
        hazard::leave(self.inbound());
        outcome
    }
}

/// Part of a receive.
struct MessageTarget {
    target: Target,
    region: Region,
}

impl MessageTarget {
    fn needs_proxy(&self) -> bool {
        matches!(&self.region, Region::Unmapped(region) if region.space.is_none())
    }
}

/// Executes an access through the target's address space. Also returns whether the region is current.
///
/// # Safety
/// The contract of [`Initiator::execute`] applies. The region's hazard must be published.
unsafe fn access_inside(
    initiator: &Initiator,
    request: &Request<'_>,
    need: Access,
    region: &UnmappedRegion,
) -> (ExecuteOutcome, bool) {
    let current = region.is_current(&initiator.peer);
    let Some(accept) = initiator.accepts() else { return (ExecuteOutcome::Wait(WaitReason::Peer), current) };
    let allowed = (region.access & accept.access()).contains(need)
        && region.contains(request.remote_addr, request.len_bytes);
    let Some(space) = region.space.as_ref().filter(|_| current && allowed) else {
        return (ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR), current);
    };
    let (pieces, count) = pieces_of(request.sges);
    // SAFETY: by the contract of this function the elements are valid. The checks above found the range inside a
    // current region, which the target registered for access by peers, as `AddressSpace` requires.
    let moved = unsafe {
        if request.opcode == WrOpcode::READ {
            space.read(region.memory_at(request.remote_addr), &pieces[..count])
        } else {
            space.write_in_order(region.memory_at(request.remote_addr), &pieces[..count])
        }
    };
    (moved.map_or_else(failed, |()| ExecuteOutcome::Done), current)
}

/// Writes a message to a receive.
///
/// # Safety
/// The contract of [`Initiator::execute`] applies. The hazard of receives must be published.
unsafe fn place_inside(
    initiator: &mut Initiator,
    request: &Request<'_>,
    places: &[Option<MessageTarget>; MAX_SGE],
) -> Result<(), ExecuteOutcome> {
    let (from, count) = pieces_of(request.sges);
    let (mut from, mut skip) = (from[..count].iter().copied().peekable(), 0);
    for MessageTarget { target, region } in places.iter().flatten() {
        // Sections of the message that belong to this part of the receive.
        let (mut pieces, mut n, mut left) =
            ([(std::ptr::null_mut(), 0); MAX_SGE], 0, target.len_bytes as usize);
        while left > 0 {
            let Some((base, len)) = from.peek().copied() else { break };
            let now = left.min(len - skip);
            pieces[n] = (base.wrapping_add(skip), now);
            n += 1;
            left -= now;
            skip += now;
            if skip == len {
                from.next();
                skip = 0;
            }
        }
        // It was re-registered since the receive was posted: at another address, or without write permission.
        let changed = ExecuteOutcome::Failed(WcStatus::REM_OP_ERR);
        if !region.is_current(&initiator.peer) {
            // Requested again by the next attempt.
            initiator.forget_receive(target.rkey);
            return Err(ExecuteOutcome::Wait(WaitReason::PeerReply));
        }
        match region {
            Region::Mapped(region) => {
                let place = region.locate(target.addr, target.len_bytes);
                let may = region.access.contains(Access::LOCAL_WRITE);
                let place = place.filter(|_| may).ok_or(changed)?;
                let sges = pieces.map(|(base, len)| Sge { addr: base as u64, length: len as u32, lkey: 0 });
                // SAFETY: `locate` found the range inside the mapping that `region` keeps alive. By the contract of
                // this function the elements are readable.
                unsafe { gather_to_pieces(&sges[..n], &[(place, target.len_bytes as usize)]) };
            }
            Region::Unmapped(region) => {
                let inside = region.contains(target.addr, target.len_bytes);
                let may = inside && region.access.contains(Access::LOCAL_WRITE);
                let space = region.space.as_ref().filter(|_| may).ok_or(changed)?;
                // SAFETY: by the contract of this function the elements are readable. `contains` found the range inside
                // the region, and by the contract of `post_recv` no references exist to memory that the target posted
                // as a receive.
                unsafe { space.write_in_order(region.memory_at(target.addr), &pieces[..n]) }
                    .map_err(failed)?;
            }
        }
    }
    Ok(())
}
