//! Queue pairs of endpoints: creation with defaults for omitted objects, and state transitions.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr;

use farcall_layout::rdmacm::{AS_MANY_AS_POSSIBLE, CmId};
use farcall_layout::{Cq, Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx, SrqInitAttr, SrqInitAttrEx, mask};

use crate::attributes::{ERR, INIT, RTR, RTS, state, towards};
use crate::errno::{Errno, check, invalid, made, refused, to_return_value};
use crate::id::{self, CmIdObject};
use crate::symbols::export;
use crate::verbs::{create_qp_ex, verbs};

/// `IBV_QP_INIT_ATTR_PD`.
const HAS_PD: u32 = 1;
/// `IBV_SRQ_INIT_ATTR_TYPE`, `IBV_SRQ_INIT_ATTR_PD`.
const SRQ_HAS_TYPE: u32 = 1;
const SRQ_HAS_PD: u32 = 2;
/// `IBV_SRQT_BASIC`.
const BASIC: u32 = 0;

/// # Safety
/// `qp` must be a live queue pair.
unsafe fn modify(qp: *mut Qp, mut attr: QpAttr, attr_mask: c_int) -> Result<(), Errno> {
    // SAFETY: contract of this function: `qp` is live.
    check(unsafe { (verbs()?.modify_qp)(qp, &raw mut attr, attr_mask) })
}

/// Moves an endpoint's queue pair, if it has one, to a connection with its peer. The program may have specified how
/// many READs and atomics it accepts, and how many it will have outstanding.
///
/// # Safety
/// The endpoint's queue pair must not be destroyed during the call.
pub unsafe fn to_ready(of: &CmIdObject, reads_in: Option<u8>, reads_out: Option<u8>) -> Result<(), Errno> {
    // SAFETY: `of.c()` points into `of`, which is live.
    let qp = unsafe { (*of.c()).qp };
    if qp.is_null() {
        return Ok(());
    }
    let is_said = |reads: &u8| *reads != AS_MANY_AS_POSSIBLE;
    let (mut attr, attr_mask) = towards(RTR, of)?;
    if let Some(reads) = reads_in.filter(is_said) {
        attr.max_dest_rd_atomic = reads;
    }
    // SAFETY: contract of this function: the queue pair, which is not null, is not destroyed during the call.
    unsafe { modify(qp, attr, attr_mask)? };
    let (mut attr, attr_mask) = towards(RTS, of)?;
    if let Some(reads) = reads_out.filter(is_said) {
        attr.max_rd_atomic = reads;
    }
    // SAFETY: contract of this function: the queue pair, which is not null, is not destroyed during the call.
    unsafe { modify(qp, attr, attr_mask) }
}

/// Moves an endpoint's queue pair, if it has one, to the error state, which flushes its outstanding requests.
///
/// # Safety
/// The same as for [`to_ready`].
pub unsafe fn to_error(of: &CmIdObject) -> Result<(), Errno> {
    // SAFETY: `of.c()` points into `of`, which is live. Contract of this function: the queue pair, if not null, is not
    // destroyed during the call.
    unsafe {
        let qp = (*of.c()).qp;
        if qp.is_null() { Ok(()) } else { modify(qp, state(ERR), mask::STATE) }
    }
}

/// Moves a new queue pair to the last state that requires no peer: it accepts receives, and a datagram queue pair also
/// sends.
unsafe fn prepare(of: &CmIdObject, qp: *mut Qp) -> Result<(), Errno> {
    let states: &[u32] = if of.is_datagram() { &[INIT, RTR, RTS] } else { &[INIT] };
    for wanted in states {
        let (attr, attr_mask) = towards(*wanted, of)?;
        // SAFETY: `adopt`, the only caller, passes a queue pair that was just created.
        unsafe { modify(qp, attr, attr_mask)? };
    }
    Ok(())
}

/// Creates the completion queues that a program left out, with their own channels, for `rdma_get_send_comp` and
/// `rdma_get_recv_comp`. A size of 0 creates none.
///
/// # Safety
/// `id` must be a live identifier of the program, with a device.
unsafe fn make_cqs(id: *mut CmId, send_wrs: u32, recv_wrs: u32) -> Result<(), Errno> {
    let verbs = verbs()?;
    // SAFETY: contract of this function: `id` is live, and `verbs` in it is an open context.
    unsafe {
        for (wrs, cq, channel) in [
            (recv_wrs, &raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
            (send_wrs, &raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
        ] {
            if wrs > 0 {
                *channel = made((verbs.create_comp_channel)((*id).verbs))?;
                *cq = made((verbs.create_cq)((*id).verbs, wrs as c_int, id.cast(), *channel, 0))?;
            }
        }
    }
    Ok(())
}

/// Destroys the completion queues that this library created, which are those with channels in the identifier.
///
/// # Safety
/// `id` must be a live identifier of the program, whose queues are not used any more.
unsafe fn destroy_cqs(id: *mut CmId) {
    let Ok(verbs) = verbs() else { return };
    // SAFETY: contract of this function: `id` is live and its queues are not used any more. A queue is set to null
    // when it is destroyed.
    unsafe {
        for (cq, channel) in [
            (&raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
            (&raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
        ] {
            if (*channel).is_null() {
                continue;
            }
            if !(*cq).is_null() {
                (verbs.destroy_cq)(*cq);
                *cq = ptr::null_mut();
            }
            (verbs.destroy_comp_channel)(*channel);
            *channel = ptr::null_mut();
        }
    }
}

const OTHER_DOMAIN: &str = "no protection domain of the identifier's device";

/// Completes the attributes of a queue pair, for `ibv_create_qp` and `ibv_create_qp_ex`: both structures begin with
/// the same fields.
///
/// # Safety
/// `id` and its protection domain must be live.
unsafe fn complete_wishes(id: *mut CmId, attr: &mut QpInitAttr) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` is live.
    unsafe {
        if (*id).verbs.is_null() || !(*id).qp.is_null() {
            return Err(invalid("the identifier has no device yet, or a queue pair already"));
        }
        let is_other =
            |ours: *mut Cq, theirs: *mut Cq| !ours.is_null() && !theirs.is_null() && ours != theirs;
        if is_other((*id).recv_cq, attr.recv_cq) || is_other((*id).send_cq, attr.send_cq) {
            return Err(invalid("the identifier has other completion queues"));
        }
        let missing = |given: bool, wrs: u32| if given { 0 } else { wrs };
        let send_wrs = missing(!attr.send_cq.is_null() || !(*id).send_cq.is_null(), attr.cap.max_send_wr);
        let recv_wrs = missing(!attr.recv_cq.is_null() || !(*id).recv_cq.is_null(), attr.cap.max_recv_wr);
        if let Err(number) = make_cqs(id, send_wrs, recv_wrs) {
            destroy_cqs(id);
            return Err(number);
        }
        if attr.send_cq.is_null() {
            attr.send_cq = (*id).send_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = (*id).recv_cq;
        }
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
    }
    Ok(())
}

/// Stores a queue pair in an identifier, or undoes the creation of its objects.
///
/// # Safety
/// `id` must be a live identifier of the program.
unsafe fn adopt(id: *mut CmId, qp: Result<*mut Qp, Errno>) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` is live. `qp` was just created.
    unsafe {
        let prepared = qp.and_then(|qp| match prepare(id::object(id), qp) {
            Ok(()) => Ok(qp),
            Err(number) => {
                (verbs()?.destroy_qp)(qp);
                Err(number)
            }
        });
        match prepared {
            Ok(qp) => {
                (*id).qp = qp;
                (*id).pd = (*qp).pd;
                Ok(())
            }
            Err(number) => {
                destroy_cqs(id);
                Err(number)
            }
        }
    }
}

/// `man rdma_create_qp`.
///
/// # Safety
/// The same as for `rdma_create_qp` (man page).
pub unsafe fn create(id: *mut CmId, pd: *mut Pd, attr: &mut QpInitAttr) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` is live, and `pd` is null or live (man page).
    unsafe {
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if pd.is_null() || (*pd).context != (*id).verbs {
            return Err(invalid(OTHER_DOMAIN));
        }
        complete_wishes(id, attr)?;
        adopt(id, made((verbs()?.create_qp)(pd, attr)))
    }
}

/// Destroys the queue pair of an identifier, and the queues that were created with it.
///
/// # Safety
/// `id` must be a live identifier of the program.
pub unsafe fn destroy(id: *mut CmId) {
    let Ok(verbs) = verbs() else { return };
    // SAFETY: contract of this function: `id` is live; its queue pair is null or live, and set to null when it is
    // destroyed.
    unsafe {
        if !(*id).qp.is_null() {
            (verbs.destroy_qp)((*id).qp);
            (*id).qp = ptr::null_mut();
        }
        destroy_cqs(id);
    }
}

/// Destroys the shared receive queue of an identifier, and the queues that were created with it.
///
/// # Safety
/// `id` must be a live identifier of the program.
pub unsafe fn destroy_srq(id: *mut CmId) {
    let Ok(verbs) = verbs() else { return };
    // SAFETY: contract of this function: `id` is live; its shared receive queue is null or live, and set to null when
    // it is destroyed.
    unsafe {
        if !(*id).srq.is_null() {
            (verbs.destroy_srq)((*id).srq);
            (*id).srq = ptr::null_mut();
        }
        destroy_cqs(id);
    }
}

/// # Safety
/// `id` and `attr` must be valid, and `pd` null or live.
unsafe fn create_srq(id: *mut CmId, pd: *mut Pd, attr: *mut SrqInitAttr) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` and `attr` are valid, and `pd` is null or live.
    unsafe {
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if pd.is_null() {
            return Err(invalid(OTHER_DOMAIN));
        }
        (*id).srq = made((verbs()?.create_srq)(pd, attr))?;
        if (*id).pd.is_null() {
            (*id).pd = pd;
        }
    }
    Ok(())
}

// The extended structures begin with the fields of the plain ones.
const _: () = assert!(
    std::mem::offset_of!(QpInitAttrEx, comp_mask)
        == std::mem::offset_of!(QpInitAttr, sq_sig_all) + size_of::<c_int>()
);
const _: () =
    assert!(std::mem::offset_of!(SrqInitAttrEx, comp_mask) >= size_of::<SrqInitAttr>() - size_of::<c_int>());

export! {
    "RDMACM_1.0" {
        /// `man rdma_create_qp`: the sizes are set to those of the created queue pair.
        fn rdma_create_qp(id: *mut CmId, pd: *mut Pd, attr: *mut QpInitAttr) -> c_int {
            // SAFETY: contract of `rdma_create_qp` (man page): `id` and `attr` are valid, and `pd` is null or live.
            to_return_value(unsafe { create(id, pd, &mut *attr) })
        }

        /// `man rdma_create_qp`, with the attributes of `ibv_create_qp_ex`.
        fn rdma_create_qp_ex(id: *mut CmId, attr: *mut QpInitAttrEx) -> c_int {
            // SAFETY: contract of `rdma_create_qp_ex` (man page): `id` and `attr` are valid. The structure begins with
            // the fields of the plain one (asserted above).
            to_return_value(unsafe {
                if (*attr).comp_mask & HAS_PD == 0 || (*attr).pd.is_null() {
                    (*attr).comp_mask |= HAS_PD;
                    (*attr).pd = (*id).pd;
                }
                let pd = (*attr).pd;
                if pd.is_null() || (*pd).context != (*id).verbs {
                    Err(invalid(OTHER_DOMAIN))
                } else {
                    let plain = attr.cast::<QpInitAttr>();
                    let mut resolved_hints = plain.read();
                    complete_wishes(id, &mut resolved_hints).and_then(|()| {
                        ((*attr).send_cq, (*attr).recv_cq, (*attr).srq) = (resolved_hints.send_cq, resolved_hints.recv_cq, resolved_hints.srq);
                        adopt(id, create_qp_ex((*id).verbs, attr))
                    })
                }
            })
        }

        /// `man rdma_destroy_qp`.
        fn rdma_destroy_qp(id: *mut CmId) {
            // SAFETY: contract of `rdma_destroy_qp` (man page): `id` is a live identifier.
            unsafe { destroy(id) }
        }

        /// `man rdma_create_srq`.
        fn rdma_create_srq(id: *mut CmId, pd: *mut Pd, attr: *mut SrqInitAttr) -> c_int {
            // SAFETY: contract of `rdma_create_srq` (man page): `id` and `attr` are valid, and `pd` is null or live.
            to_return_value(unsafe { create_srq(id, pd, attr) })
        }

        /// `man rdma_create_srq`: basic queues only; XRC is not supported.
        fn rdma_create_srq_ex(id: *mut CmId, attr: *mut SrqInitAttrEx) -> c_int {
            // SAFETY: contract of `rdma_create_srq_ex` (man page): `id` and `attr` are valid.
            to_return_value(unsafe {
                let given = (*attr).comp_mask;
                if given & SRQ_HAS_TYPE == 0 {
                    Err(invalid("comp_mask: no type"))
                } else if (*attr).srq_type != BASIC {
                    Err(refused(libc::EOPNOTSUPP, format_args!("no XRC and no tag matching")))
                } else {
                    let pd = if given & SRQ_HAS_PD != 0 { (*attr).pd } else { ptr::null_mut() };
                    let mut plain = SrqInitAttr { srq_context: (*attr).srq_context, attr: (*attr).attr };
                    let made = create_srq(id, pd, &raw mut plain);
                    (*attr).attr = plain.attr;
                    made
                }
            })
        }

        /// `man rdma_destroy_srq`.
        fn rdma_destroy_srq(id: *mut CmId) {
            // SAFETY: contract of `rdma_destroy_srq` (man page): `id` is a live identifier.
            unsafe { destroy_srq(id) }
        }
    }
}
