//! Queue pairs.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use farcall_trace::Unacknowledged;
use farcall_verbs::{
    QpInitAttr as Init, QpState, QpType, RawQp, RecvWr, SendFlags, SendWr, UdTarget, WrOpcode,
};

use crate::cq::{self, CqObject};
use crate::posting::{PostLock, Posting};
use crate::qp_ex::Batch;
use crate::region_names::Elements;
use crate::symbols::export;
use crate::{address, attributes, context, errno, live, memory, qp_ex, region_names, srq, traced};
use farcall_layout::{Pd, Qp, QpAttr, QpCap, QpEx, QpInitAttr};

#[repr(C)]
pub struct QpObject {
    pub qp: QpEx,
    pub posting: PostLock,
    /// What `ibv_modify_qp` set, for `ibv_query_qp`.
    attr: Mutex<QpAttr>,
    pub events: Unacknowledged,
    cap: QpCap,
    sq_sig_all: c_int,
    /// Made by `ibv_create_qp_ex`, as those are that may be used through `ibv_wr_*`.
    is_extended: bool,
}

/// # Safety
/// `qp` must come from [`create`].
pub unsafe fn object<'a>(qp: *mut Qp) -> &'a QpObject {
    // SAFETY: the C structure begins its object. Fields that change are behind locks.
    unsafe { &*qp.cast::<QpObject>() }
}

/// Bytes of inline data that programs of this interface can ask for: about as many as devices have, which programs find
/// out by trying.
const INLINE_BYTES_MAX: u32 = 4096;

/// What a queue pair is made of, by `ibv_create_qp` or `ibv_create_qp_ex`.
struct Wanted<'a> {
    pd: *mut Pd,
    init: &'a QpInitAttr,
    is_extended: bool,
}

fn transport(qp_type: u32) -> Result<QpType, c_int> {
    match qp_type {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        // Raw packets, XRC and drivers' own.
        _ => Err(errno::refused(
            libc::EOPNOTSUPP,
            format_args!("qp_type {qp_type}: there are RC (2), UC (3) and UD (4)"),
        )),
    }
}

/// Makes a queue pair, or sets `errno` and returns null. The sizes become those that the pair has.
///
/// # Safety
/// The pointers must be the program's valid objects.
pub unsafe fn create(pd: *mut Pd, init: &mut QpInitAttr, is_extended: bool) -> *mut Qp {
    // SAFETY: the caller's objects.
    match unsafe { make(&Wanted { pd, init, is_extended }) } {
        Ok(made) => {
            // SAFETY: just made.
            init.cap = unsafe { (*made).cap };
            made.cast()
        }
        Err(number) => errno::null(number),
    }
}

/// # Safety
/// As [`create`].
unsafe fn make(wanted: &Wanted<'_>) -> Result<*mut QpObject, c_int> {
    if wanted.pd.is_null() || wanted.init.send_cq.is_null() || wanted.init.recv_cq.is_null() {
        return Err(errno::refused(
            libc::EINVAL,
            format_args!("a domain and two completion queues are needed"),
        ));
    }
    live::DOMAINS.check(wanted.pd)?;
    live::COMPLETION_QUEUES.check(wanted.init.send_cq)?;
    live::COMPLETION_QUEUES.check(wanted.init.recv_cq)?;
    if !wanted.init.srq.is_null() {
        live::RECEIVE_QUEUES.check(wanted.init.srq)?;
    }
    let qp_type = transport(wanted.init.qp_type)?;
    let inline_bytes = wanted.init.cap.max_inline_data;
    if inline_bytes > INLINE_BYTES_MAX {
        let what = format_args!("max_inline_data {inline_bytes}; the device has {INLINE_BYTES_MAX}");
        return Err(errno::refused(libc::EINVAL, what));
    }
    // SAFETY: the caller's objects.
    let (pd, send_cq, recv_cq) = unsafe {
        (
            memory::domain(wanted.pd),
            cq::object(wanted.init.send_cq.cast()),
            cq::object(wanted.init.recv_cq.cast::<CqObject>()),
        )
    };
    // SAFETY: as above.
    let shared = (!wanted.init.srq.is_null()).then(|| unsafe { srq::object(wanted.init.srq) });
    let provider = {
        let mut cap = wanted.init.cap;
        if shared.is_some() {
            // It has no receives of its own.
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        let mut queues = LockedQueues::lock(send_cq, recv_cq);
        let (send, recv) = queues.both();
        let receives = shared.map(|shared| shared.lock());
        let srq = receives.as_ref().map(|receives| &***receives);
        let init =
            Init { send_cq: send, recv_cq: recv, srq, cap, qp_type, sq_sig_all: wanted.init.sq_sig_all != 0 };
        pd.provider.create_qp(&init).map_err(|error| errno::number(&error))?
    };
    pd.uses.add();
    send_cq.uses.add();
    recv_cq.uses.add();
    if let Some(shared) = shared {
        shared.uses.add();
    }
    Ok(wrap(wanted, provider))
}

fn wrap(wanted: &Wanted<'_>, provider: Box<dyn RawQp>) -> *mut QpObject {
    let qp_num = provider.qp_num();
    // SAFETY: the caller's domain.
    let context = unsafe { (*wanted.pd).context };
    let base = Qp {
        context,
        qp_context: wanted.init.qp_context,
        pd: wanted.pd,
        send_cq: wanted.init.send_cq,
        recv_cq: wanted.init.recv_cq,
        srq: wanted.init.srq,
        handle: qp_num,
        qp_num,
        state: QpState::Reset as u32,
        qp_type: wanted.init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let cap = provider.cap();
    let mut functions = qp_ex::table(base);
    if farcall_trace::is_on() {
        traced::qp_table(&mut functions);
    }
    let made = Box::into_raw(Box::new(QpObject {
        qp: functions,
        posting: PostLock::new(Posting { provider, batch: Batch::default() }),
        attr: Mutex::new(attributes::fresh(cap)),
        events: Unacknowledged::default(),
        cap,
        sq_sig_all: wanted.init.sq_sig_all,
        is_extended: wanted.is_extended,
    }));
    // SAFETY: just made, and the caller's context.
    unsafe {
        live::PAIRS.insert(made.cast::<Qp>());
        context::object(context).registry.qps.insert(qp_num, made);
    }
    made
}

/// Both completion queues of a new pair, locked: once if they are one.
struct LockedQueues<'a> {
    send: std::sync::MutexGuard<'a, Box<dyn farcall_verbs::RawCq>>,
    recv: Option<std::sync::MutexGuard<'a, Box<dyn farcall_verbs::RawCq>>>,
}

impl<'a> LockedQueues<'a> {
    /// In the order of their addresses, so that two threads do not wait for each other.
    fn lock(send: &'a CqObject, recv: &'a CqObject) -> Self {
        if ptr::eq(send, recv) {
            return Self { send: send.lock(), recv: None };
        }
        if ptr::from_ref(send) < ptr::from_ref(recv) {
            let send = send.lock();
            return Self { send, recv: Some(recv.lock()) };
        }
        let recv = Some(recv.lock());
        Self { send: send.lock(), recv }
    }

    fn both(&mut self) -> (&dyn farcall_verbs::RawCq, &dyn farcall_verbs::RawCq) {
        let send: &dyn farcall_verbs::RawCq = &**self.send;
        (send, self.recv.as_ref().map_or(send, |recv| &***recv))
    }
}

/// Requests posted as one doorbell.
const BATCH: usize = 16;

/// As `man ibv_post_send`.
pub unsafe extern "C" fn post_send(
    qp: *mut Qp,
    wr: *mut SendWr<'static>,
    bad_wr: *mut *mut SendWr<'static>,
) -> c_int {
    // SAFETY: the program's pair.
    let of = unsafe { object(qp) };
    let is_ud = of.qp.qp_base.qp_type == QpType::Ud as u32;
    let locked = of.posting.lock();
    let mut posting = locked.posting();
    if region_names::are_any() {
        // SAFETY: contract of this function.
        return unsafe { post_translated(&mut posting, is_ud, wr, bad_wr) };
    }
    let mut next = wr;
    while !next.is_null() {
        let mut at = [ptr::null_mut(); BATCH];
        let mut count = 0;
        // A request alone is posted where it lies; a datagram's handle is translated in a copy.
        // SAFETY: the program's chain.
        let (first, is_alone) = unsafe { (&*next, (*next).next.is_null()) };
        let result = if is_alone {
            at[0] = next;
            next = ptr::null_mut();
            let datagram;
            let request = if is_ud {
                // SAFETY: datagrams name an address handle of ours.
                datagram = unsafe { addressed(first) };
                &datagram
            } else {
                first
            };
            // SAFETY: the program's promise (man ibv_post_send).
            unsafe { posting.provider.post_send(std::slice::from_ref(request)) }
        } else {
            let mut batch = [*first; BATCH];
            while count < BATCH && !next.is_null() {
                // SAFETY: the program's chain.
                let request = unsafe { &*next };
                // SAFETY: as above; datagrams name an address handle of ours.
                batch[count] = if is_ud { unsafe { addressed(request) } } else { *request };
                at[count] = next;
                next = request.next.cast_mut();
                count += 1;
            }
            // SAFETY: the program's promise (man ibv_post_send).
            unsafe { posting.provider.post_send(&batch[..count]) }
        };
        if let Err(error) = result {
            // SAFETY: the program's variable.
            unsafe { *bad_wr = at[error.posted.min(BATCH - 1)] };
            return errno::number(&error.source);
        }
    }
    0
}

/// Posts a chain in a program that names memory by other addresses than its own, one request at a time.
///
/// # Safety
/// As [`post_send`]; `is_ud`: the pair sends datagrams.
#[cold]
unsafe fn post_translated(
    posting: &mut Posting,
    is_ud: bool,
    wr: *mut SendWr<'static>,
    bad_wr: *mut *mut SendWr<'static>,
) -> c_int {
    let (mut next, mut elements) = (wr, Elements::default());
    while !next.is_null() {
        // SAFETY: the program's chain.
        let first = unsafe { &*next };
        // SAFETY: datagrams name an address handle of ours.
        let mut request = if is_ud { unsafe { addressed(first) } } else { *first };
        // Inline data has no key.
        if !request.send_flags.contains(SendFlags::INLINE) {
            request = request.with_sges(elements.translated(request.sges()));
        }
        // SAFETY: the program's promise (man ibv_post_send).
        if let Err(error) = unsafe { posting.provider.post_send(&[request]) } {
            // SAFETY: the program's variable.
            unsafe { *bad_wr = next };
            return errno::number(&error.source);
        }
        next = first.next.cast_mut();
    }
    0
}

/// Sets the field that programs read; several threads may ask for the state at once.
///
/// # Safety
/// `qp` must be a live pair of ours.
unsafe fn show_state(qp: *mut Qp, state: u32) {
    // SAFETY: a field of the pair, aligned; the library writes it here alone.
    unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*qp).state)) }.store(state, Ordering::Relaxed);
}

/// A datagram as the provider knows its address handle.
///
/// # Safety
/// If it sends, its handle must be null or of [`address`].
unsafe fn addressed(request: &SendWr<'static>) -> SendWr<'static> {
    if !matches!(request.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM) {
        // Another arm of the union: there is no handle. The provider refuses the opcode.
        return *request;
    }
    let to = request.ud();
    // SAFETY: the caller's promise.
    let ah = if to.ah.is_null() { ptr::null() } else { unsafe { address::raw(to.ah) } };
    let mut copy = SendWr::send_to(request.wr_id, request.sges(), UdTarget { ah, ..to });
    copy.opcode = request.opcode;
    copy.send_flags = request.send_flags;
    copy.imm_data_be = request.imm_data_be;
    copy
}

/// Posts a chain of receives through `post`; on a refusal tells which.
///
/// # Safety
/// `wr` must be a chain as `man ibv_post_recv` says.
pub unsafe fn post_receives(
    wr: *mut RecvWr<'static>,
    bad_wr: *mut *mut RecvWr<'static>,
    mut post: impl FnMut(&[RecvWr<'_>]) -> Result<(), farcall_verbs::PostError>,
) -> c_int {
    let mut next = wr;
    while !next.is_null() && region_names::are_any() {
        // SAFETY: the program's chain.
        let (first, mut elements) = (unsafe { *next }, Elements::default());
        if let Err(error) = post(&[RecvWr::new(first.wr_id, elements.translated(first.sges()))]) {
            // SAFETY: the program's variable.
            unsafe { *bad_wr = next };
            return errno::number(&error.source);
        }
        next = first.next.cast_mut();
    }
    while !next.is_null() {
        // SAFETY: the program's chain.
        let first = unsafe { *next };
        let (mut batch, mut at, mut count) = ([first; BATCH], [next; BATCH], 0);
        while count < BATCH && !next.is_null() {
            // SAFETY: the program's chain.
            batch[count] = unsafe { *next };
            at[count] = next;
            next = batch[count].next.cast_mut();
            count += 1;
        }
        if let Err(error) = post(&batch[..count]) {
            // SAFETY: the program's variable.
            unsafe { *bad_wr = at[error.posted.min(BATCH - 1)] };
            return errno::number(&error.source);
        }
    }
    0
}

/// As `man ibv_post_recv`.
pub unsafe extern "C" fn post_recv(
    qp: *mut Qp,
    wr: *mut RecvWr<'static>,
    bad_wr: *mut *mut RecvWr<'static>,
) -> c_int {
    // SAFETY: the program's pair.
    let locked = unsafe { object(qp) }.posting.lock();
    let mut posting = locked.posting();
    // SAFETY: the program's chain, and its promise (man ibv_post_recv).
    unsafe { post_receives(wr, bad_wr, |batch| posting.provider.post_recv(batch)) }
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_create_qp`: the sizes become those that the pair has.
        fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
            // SAFETY: the caller's objects and structure.
            unsafe { create(pd, &mut *attr, false) }
        }

        /// `man ibv_modify_qp`.
        fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, attr_mask: c_int) -> c_int {
            if let Err(number) = live::PAIRS.check(qp) {
                return number;
            }
            // SAFETY: a live pair, and the caller's structure.
            let (of, wanted) = unsafe { (object(qp), &*attr) };
            // SAFETY: contexts outlive their pairs.
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
            // SAFETY: the caller's pair.
            unsafe { show_state(qp, posting.provider.state() as u32) };
            0
        }

        /// `man ibv_query_qp`: everything, whatever the mask asks for.
        fn ibv_query_qp(qp: *mut Qp, attr: *mut QpAttr, _attr_mask: c_int, init: *mut QpInitAttr) -> c_int {
            if let Err(number) = live::PAIRS.check(qp) {
                return number;
            }
            // SAFETY: a live pair.
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
            // SAFETY: the caller's structures.
            unsafe {
                attr.write(known);
                init.write(made_with);
                show_state(qp, state);
            }
            0
        }

        /// `man ibv_destroy_qp`.
        fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
            if let Err(number) = live::PAIRS.remove(qp) {
                return number;
            }
            // SAFETY: it was live, and is no longer.
            let of = unsafe { object(qp) };
            let base = &of.qp.qp_base;
            // SAFETY: contexts outlive their pairs.
            unsafe { context::object(base.context) }.registry.qps.remove(base.qp_num);
            of.events.wait();
            let (pd, send_cq, recv_cq, srq) = (base.pd, base.send_cq, base.recv_cq, base.srq);
            // SAFETY: made by `create`; the program does not use it any more. What it was made of outlives it.
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
        /// `man ibv_wr_post`: the extended pair, if it was made with `send_ops_flags`.
        fn ibv_qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
            // SAFETY: the caller's pair.
            if unsafe { object(qp) }.is_extended { qp.cast() } else { ptr::null_mut() }
        }
    }
    "IBVERBS_1.10" {
        /// `man ibv_query_ece`: there is nothing to enhance.
        fn ibv_query_ece(_qp: *mut Qp, ece: *mut [u32; 3]) -> c_int {
            // SAFETY: the caller's structure.
            unsafe { ece.write([0; 3]) };
            0
        }

        /// `man ibv_set_ece`.
        fn ibv_set_ece(_qp: *mut Qp, ece: *mut [u32; 3]) -> c_int {
            // SAFETY: the caller's structure.
            match unsafe { *ece } {
                [0, 0, _] => 0,
                _ => errno::refused(libc::EOPNOTSUPP, format_args!("there is nothing to enhance")),
            }
        }
    }
    "IBVERBS_1.14" {
        /// `man ibv_query_qp_data_in_order`: no promise for memory of any kind.
        fn ibv_query_qp_data_in_order(_qp: *mut Qp, _opcode: c_int, _flags: u32) -> c_int {
            0
        }
    }
}
