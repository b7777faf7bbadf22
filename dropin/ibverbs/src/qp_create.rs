//! Creation of queue pairs.

use std::ptr;

use farcall_verbs::{QpInitAttr as Init, QpState, QpType, RawQp};
use std::ffi::c_int;

use crate::cq::{self, CqObject};
use crate::qp::QpObject;
use crate::symbols::export;
use crate::{errno, live, memory, qp_ex, srq, traced};
use farcall_layout::{Context, Pd, Qp, QpInitAttr, QpInitAttrEx};

/// `IBV_QP_INIT_ATTR_PD`, `..._CREATE_FLAGS`, `..._SEND_OPS_FLAGS`.
const MASK_PD: u32 = 1;
const MASK_CREATE_FLAGS: u32 = 1 << 2;
const MASK_SEND_OPS_FLAGS: u32 = 1 << 6;

/// Returns the operations of `enum ibv_qp_create_send_ops_flags` that a transport supports (`man ibv_wr_post`).
fn operations(qp_type: u32) -> u64 {
    const WRITES: u64 = 0b11;
    const SENDS: u64 = 0b1100;
    const READ_AND_ATOMICS: u64 = 0b111_0000;
    match QpType::Rc as u32 {
        rc if qp_type == rc => WRITES | SENDS | READ_AND_ATOMICS,
        _ if qp_type == QpType::Uc as u32 => WRITES | SENDS,
        _ => SENDS,
    }
}

/// See `man ibv_create_qp_ex`.
pub unsafe extern "C" fn create_ex(_context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp {
    // SAFETY: contract of `ibv_create_qp_ex` (man page): `attr` is valid.
    let init = unsafe { &*attr };
    let known = MASK_PD | MASK_CREATE_FLAGS | MASK_SEND_OPS_FLAGS;
    let has = |bit: u32| init.comp_mask & bit != 0;
    if init.comp_mask & !known != 0
        || (has(MASK_CREATE_FLAGS) && init.create_flags != 0)
        || (has(MASK_SEND_OPS_FLAGS) && init.send_ops_flags & !operations(init.qp_type) != 0)
    {
        let (mask, flags, operations) = (init.comp_mask, init.create_flags, init.send_ops_flags);
        return errno::null(errno::refused(
            libc::EOPNOTSUPP,
            format_args!(
                "comp_mask {mask:#x}, create_flags {flags:#x} or send_ops_flags {operations:#x}: not offered"
            ),
        ));
    }
    let pd = if has(MASK_PD) { init.pd } else { ptr::null_mut() };
    // SAFETY: contract of `ibv_create_qp_ex` (man page): the objects in `attr` are valid. The structure begins with
    // the fields of the plain one.
    unsafe { create(pd, &mut *attr.cast::<QpInitAttr>(), true) }
}

/// Maximum number of inline bytes that programs can request through this interface: similar to that of devices, which
/// programs find by trying.
const INLINE_BYTES_MAX: u32 = 4096;

/// Parameters of a queue pair of `ibv_create_qp` or `ibv_create_qp_ex`.
struct QpCreateParams<'a> {
    pd: *mut Pd,
    init: &'a QpInitAttr,
    is_extended: bool,
}

fn transport(qp_type: u32) -> Result<QpType, c_int> {
    match qp_type {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        // Raw packets, XRC and driver-specific types.
        _ => Err(errno::refused(
            libc::EOPNOTSUPP,
            format_args!("qp_type {qp_type}: there are RC (2), UC (3) and UD (4)"),
        )),
    }
}

/// Creates a queue pair, or sets `errno` and returns null. The sizes are set to those of the created queue pair.
///
/// # Safety
/// The pointers must be valid objects of the program.
unsafe fn create(pd: *mut Pd, init: &mut QpInitAttr, is_extended: bool) -> *mut Qp {
    // SAFETY: contract of this function, which is that of `make`.
    match unsafe { make(&QpCreateParams { pd, init, is_extended }) } {
        Ok(made) => {
            // SAFETY: `made` was just created.
            init.cap = unsafe { (*made).cap() };
            made.cast()
        }
        Err(number) => errno::null(number),
    }
}

/// # Safety
/// The same as for [`create`].
unsafe fn make(wanted: &QpCreateParams<'_>) -> Result<*mut QpObject, c_int> {
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
    require_one_context(wanted)?;
    let qp_type = transport(wanted.init.qp_type)?;
    let inline_bytes = wanted.init.cap.max_inline_data;
    if inline_bytes > INLINE_BYTES_MAX {
        let what = format_args!("max_inline_data {inline_bytes}; the device has {INLINE_BYTES_MAX}");
        return Err(errno::refused(libc::EINVAL, what));
    }
    // SAFETY: the domain and both queues are live (checked above).
    let (pd, send_cq, recv_cq) = unsafe {
        (
            memory::domain(wanted.pd),
            cq::object(wanted.init.send_cq.cast()),
            cq::object(wanted.init.recv_cq.cast::<CqObject>()),
        )
    };
    // SAFETY: the shared receive queue, if not null, is live (checked above).
    let shared = (!wanted.init.srq.is_null()).then(|| unsafe { srq::object(wanted.init.srq) });
    let provider = {
        let mut cap = wanted.init.cap;
        if shared.is_some() {
            // The queue pair has no receives of its own.
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

/// Checks that the queues of a queue pair belong to the context of its domain: the kernel searches only there.
fn require_one_context(params: &QpCreateParams<'_>) -> Result<(), c_int> {
    let init = params.init;
    // SAFETY: the caller, `make`, has checked that the domain and the queues are live.
    let (context, of_send, of_recv, of_srq) = unsafe {
        let of_srq = init.srq.as_ref().map(|srq| srq.context);
        ((*params.pd).context, (*init.send_cq).context, (*init.recv_cq).context, of_srq)
    };
    if (of_send, of_recv, of_srq.unwrap_or(context)) == (context, context, context) {
        return Ok(());
    }
    Err(errno::refused(libc::EINVAL, format_args!("a queue belongs to another context than the domain")))
}

fn wrap(wanted: &QpCreateParams<'_>, provider: Box<dyn RawQp>) -> *mut QpObject {
    let qp_num = provider.qp_num();
    // SAFETY: the caller, `make`, has checked that the domain is live.
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
    let mut functions = qp_ex::table(base);
    if farcall_trace::is_on() {
        traced::qp_table(&mut functions);
    }
    QpObject::create(functions, provider, wanted.init.sq_sig_all, wanted.is_extended)
}

/// Both completion queues of a new queue pair, locked; only once if they are the same.
struct LockedQueues<'a> {
    send: std::sync::MutexGuard<'a, Box<dyn farcall_verbs::RawCq>>,
    recv: Option<std::sync::MutexGuard<'a, Box<dyn farcall_verbs::RawCq>>>,
}

impl<'a> LockedQueues<'a> {
    /// Locks in ascending order of addresses, so that two threads cannot deadlock.
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

export! {
    "IBVERBS_1.1" {
        /// `man ibv_create_qp`: the sizes are set to those of the created queue pair.
        fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
            // SAFETY: contract of `ibv_create_qp` (man page): the structure and the objects in it are valid.
            unsafe { create(pd, &mut *attr, false) }
        }
    }
}
