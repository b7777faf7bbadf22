//! Queue pairs.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use farcall_trace::Unacknowledged;
use farcall_verbs::{QpType, RawQp, RecvWr, SendFlags, SendWr, UdTarget, WrOpcode};

use crate::batch::Batch;
use crate::posting::{BATCH, PostLock, Posting, post_receives};
use crate::region_names::Elements;
use crate::symbols::export;
use crate::{address, attributes, context, cq, errno, live, memory, region_names, srq};
use farcall_layout::{Qp, QpAttr, QpCap, QpEx, QpInitAttr};

#[repr(C)]
pub struct QpObject {
    pub qp: QpEx,
    pub posting: PostLock,
    /// The attributes that `ibv_modify_qp` has set, for `ibv_query_qp`.
    attr: Mutex<QpAttr>,
    pub events: Unacknowledged,
    cap: QpCap,
    sq_sig_all: c_int,
    /// `true` if created by `ibv_create_qp_ex`, which is required for `ibv_wr_*`.
    is_extended: bool,
}

impl QpObject {
    /// Creates the object of a queue pair with its functions, and registers it. Its context must be open.
    pub fn create(qp: QpEx, provider: Box<dyn RawQp>, sq_sig_all: c_int, is_extended: bool) -> *mut Self {
        let (context, qp_num) = (qp.qp_base.context, qp.qp_base.qp_num);
        let cap = provider.cap();
        let made = Box::into_raw(Box::new(Self {
            qp,
            posting: PostLock::new(Posting { provider, batch: Batch::default() }),
            attr: Mutex::new(attributes::fresh(cap)),
            events: Unacknowledged::default(),
            cap,
            sq_sig_all,
            is_extended,
        }));
        // SAFETY: `made` was just created, and its context is open.
        unsafe {
            live::PAIRS.insert(made.cast::<Qp>());
            context::object(context).registry.qps.insert(qp_num, made.cast());
        }
        made
    }

    /// Returns the sizes of the queue pair.
    pub fn cap(&self) -> QpCap {
        self.cap
    }
}

/// # Safety
/// `qp` must have been created by [`QpObject::create`] and be live.
pub unsafe fn object<'a>(qp: *mut Qp) -> &'a QpObject {
    // SAFETY: contract of this function: `qp` is live. The C structure is the first field of its `QpObject`
    // (`repr(C)`); fields that change are behind locks.
    unsafe { &*qp.cast::<QpObject>() }
}

/// See `man ibv_post_send`.
pub unsafe extern "C" fn post_send(
    qp: *mut Qp,
    wr: *mut SendWr<'static>,
    bad_wr: *mut *mut SendWr<'static>,
) -> c_int {
    // SAFETY: contract of `ibv_post_send` (man page): `qp` is live.
    let of = unsafe { object(qp) };
    let is_ud = of.qp.qp_base.qp_type == QpType::Ud as u32;
    let locked = of.posting.lock();
    let mut posting = locked.posting();
    if region_names::are_any() {
        // SAFETY: contract of `ibv_post_send` (man page), which is that of `post_translated`.
        return unsafe { post_translated(&mut posting, is_ud, wr, bad_wr) };
    }
    let mut next = wr;
    while !next.is_null() {
        let mut at = [ptr::null_mut(); BATCH];
        let mut count = 0;
        // A single request is posted without a copy, unless the address handle of a datagram must be translated.
        // SAFETY: contract of `ibv_post_send` (man page): `next`, which is not null, is an element of a valid chain.
        let (first, is_alone) = unsafe { (&*next, (*next).next.is_null()) };
        let result = if is_alone {
            at[0] = next;
            next = ptr::null_mut();
            let datagram;
            let request = if is_ud {
                // SAFETY: contract of `ibv_post_send` (man page): a datagram refers to a live address handle of this
                // library.
                datagram = unsafe { addressed(first) };
                &datagram
            } else {
                first
            };
            // SAFETY: contract of `ibv_post_send` (man page): the memory of the request stays valid until its
            // completion, as `RawQp::post_send` requires.
            unsafe { posting.provider.post_send(std::slice::from_ref(request)) }
        } else {
            let mut batch = [*first; BATCH];
            while count < BATCH && !next.is_null() {
                // SAFETY: contract of `ibv_post_send` (man page): `next`, which is not null, is an element of a valid
                // chain.
                let request = unsafe { &*next };
                // SAFETY: contract of `ibv_post_send` (man page): a datagram refers to a live address handle of this
                // library.
                batch[count] = if is_ud { unsafe { addressed(request) } } else { *request };
                at[count] = next;
                next = request.next.cast_mut();
                count += 1;
            }
            // SAFETY: contract of `ibv_post_send` (man page): the memory of the requests stays valid until their
            // completions, as `RawQp::post_send` requires.
            unsafe { posting.provider.post_send(&batch[..count]) }
        };
        if let Err(error) = result {
            // SAFETY: contract of `ibv_post_send` (man page): `bad_wr` is valid.
            unsafe { *bad_wr = at[error.posted.min(BATCH - 1)] };
            return errno::number(&error.source);
        }
    }
    0
}

/// Posts a chain in a program that refers to memory by translated addresses, one request at a time.
///
/// # Safety
/// The same as for [`post_send`]; `is_ud`: the queue pair sends datagrams.
#[cold]
unsafe fn post_translated(
    posting: &mut Posting,
    is_ud: bool,
    wr: *mut SendWr<'static>,
    bad_wr: *mut *mut SendWr<'static>,
) -> c_int {
    let (mut next, mut elements) = (wr, Elements::default());
    while !next.is_null() {
        // SAFETY: contract of this function: `next`, which is not null, is an element of a valid chain.
        let first = unsafe { &*next };
        // SAFETY: contract of this function: a datagram refers to a live address handle of this library.
        let mut request = if is_ud { unsafe { addressed(first) } } else { *first };
        // Inline data has no key.
        if !request.send_flags.contains(SendFlags::INLINE) {
            request = request.with_sges(elements.translated(request.sges()));
        }
        // SAFETY: contract of this function: the memory of the request stays valid until its completion, as
        // `RawQp::post_send` requires.
        if let Err(error) = unsafe { posting.provider.post_send(&[request]) } {
            // SAFETY: contract of this function: `bad_wr` is valid.
            unsafe { *bad_wr = next };
            return errno::number(&error.source);
        }
        next = first.next.cast_mut();
    }
    0
}

/// Sets the state field that programs read. Several threads may query the state concurrently.
///
/// # Safety
/// `qp` must be a live queue pair of this library.
unsafe fn publish_state(qp: *mut Qp, state: u32) {
    // SAFETY: contract of this function: `qp` is live. The field is aligned, and this library writes it only here,
    // atomically.
    unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*qp).state)) }.store(state, Ordering::Relaxed);
}

/// Returns a datagram with the provider's address handle.
///
/// # Safety
/// If the request is a SEND, its handle must be null, or live and created by [`address`].
unsafe fn addressed(request: &SendWr<'static>) -> SendWr<'static> {
    if !matches!(request.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM) {
        // Another member of the union: there is no handle. The provider refuses the opcode.
        return *request;
    }
    let to = request.ud();
    // SAFETY: contract of this function: the handle, which is not null, is live and created by `address`.
    let ah = if to.ah.is_null() { ptr::null() } else { unsafe { address::raw(to.ah) } };
    let mut copy = SendWr::send_to(request.wr_id, request.sges(), UdTarget { ah, ..to });
    copy.opcode = request.opcode;
    copy.send_flags = request.send_flags;
    copy.imm_data_be = request.imm_data_be;
    copy
}

/// See `man ibv_post_recv`.
pub unsafe extern "C" fn post_recv(
    qp: *mut Qp,
    wr: *mut RecvWr<'static>,
    bad_wr: *mut *mut RecvWr<'static>,
) -> c_int {
    // SAFETY: contract of `ibv_post_recv` (man page): `qp` is live.
    let locked = unsafe { object(qp) }.posting.lock();
    let mut posting = locked.posting();
    // SAFETY: contract of `ibv_post_recv` (man page): the chain is valid, and its memory stays valid until the
    // completions, as `RawQp::post_recv` requires.
    unsafe { post_receives(wr, bad_wr, |batch| posting.provider.post_recv(batch)) }
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_modify_qp`.
        fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, attr_mask: c_int) -> c_int {
            if let Err(number) = live::PAIRS.check(qp) {
                return number;
            }
            // SAFETY: the queue pair is live (checked above). Contract of `ibv_modify_qp` (man page): `attr` is valid.
            let (of, wanted) = unsafe { (object(qp), &*attr) };
            // SAFETY: contract of `ibv_close_device` (man page): a context outlives its queue pairs.
            let limits = &unsafe { context::object((*qp).context) }.limits;
            let locked = of.posting.lock();
            let mut posting = locked.posting();
            let is_now = (posting.provider.qp_type(), posting.provider.state());
            let changes = match attributes::changes(wanted, attr_mask, is_now, limits) {
                Ok(changes) => changes,
                Err(number) => return number,
            };
            if let Err(error) = posting.provider.modify(&changes) {
                return errno::number(&error);
            }
            attributes::remember(&mut of.attr.lock().unwrap_or_else(PoisonError::into_inner), wanted, attr_mask);
            // SAFETY: the queue pair is live (checked above).
            unsafe { publish_state(qp, posting.provider.state() as u32) };
            0
        }

        /// `man ibv_query_qp`: returns all attributes, whatever the mask selects.
        fn ibv_query_qp(qp: *mut Qp, attr: *mut QpAttr, _attr_mask: c_int, init: *mut QpInitAttr) -> c_int {
            if let Err(number) = live::PAIRS.check(qp) {
                return number;
            }
            // SAFETY: the queue pair is live (checked above).
            let of = unsafe { object(qp) };
            let state = of.posting.lock().posting().provider.state() as u32;
            let mut known = *of.attr.lock().unwrap_or_else(PoisonError::into_inner);
            (known.qp_state, known.cur_qp_state) = (state, state);
            let base = &of.qp.qp_base;
            let made_with = QpInitAttr {
                qp_context: base.qp_context,
                send_cq: base.send_cq,
                recv_cq: base.recv_cq,
                srq: base.srq,
                cap: of.cap,
                qp_type: base.qp_type,
                sq_sig_all: of.sq_sig_all,
            };
            // SAFETY: contract of `ibv_query_qp` (man page): both structures are valid. The queue pair is live
            // (checked above).
            unsafe {
                attr.write(known);
                init.write(made_with);
                publish_state(qp, state);
            }
            0
        }

        /// `man ibv_destroy_qp`.
        fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
            if let Err(number) = live::PAIRS.remove(qp) {
                return number;
            }
            // SAFETY: the queue pair was live, `remove` succeeds only once, and it is freed only below.
            let of = unsafe { object(qp) };
            let base = &of.qp.qp_base;
            // SAFETY: contract of `ibv_close_device` (man page): a context outlives its queue pairs.
            unsafe { context::object(base.context) }.registry.qps.remove(base.qp_num);
            of.events.wait();
            let (pd, send_cq, recv_cq, srq) = (base.pd, base.send_cq, base.recv_cq, base.srq);
            // SAFETY: `QpObject::create` made it with `Box::into_raw`. The domain and the queues are live, because they cannot
            // be destroyed while their use counts are positive.
            unsafe {
                drop(Box::from_raw(qp.cast::<QpObject>()));
                memory::domain(pd).uses.remove();
                cq::object(send_cq.cast()).uses.remove();
                cq::object(recv_cq.cast()).uses.remove();
                if !srq.is_null() {
                    srq::object(srq).uses.remove();
                }
            }
            0
        }
    }
    "IBVERBS_1.6" {
        /// `man ibv_wr_post`: returns the extended queue pair if it was created by `ibv_create_qp_ex`.
        fn ibv_qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
            // SAFETY: contract of `ibv_qp_to_qp_ex`: `qp` is live.
            if unsafe { object(qp) }.is_extended { qp.cast() } else { ptr::null_mut() }
        }
    }
    "IBVERBS_1.10" {
        /// `man ibv_query_ece`: no enhancements are supported.
        fn ibv_query_ece(_qp: *mut Qp, ece: *mut [u32; 3]) -> c_int {
            // SAFETY: contract of `ibv_query_ece` (man page): `ece` is valid.
            unsafe { ece.write([0; 3]) };
            0
        }

        /// `man ibv_set_ece`.
        fn ibv_set_ece(_qp: *mut Qp, ece: *mut [u32; 3]) -> c_int {
            // SAFETY: contract of `ibv_set_ece` (man page): `ece` is valid.
            match unsafe { *ece } {
                [0, 0, _] => 0,
                _ => errno::refused(libc::EOPNOTSUPP, format_args!("there is nothing to enhance")),
            }
        }
    }
    "IBVERBS_1.14" {
        /// `man ibv_query_qp_data_in_order`: no guarantee for any kind of memory.
        fn ibv_query_qp_data_in_order(_qp: *mut Qp, _opcode: c_int, _flags: u32) -> c_int {
            0
        }
    }
}
