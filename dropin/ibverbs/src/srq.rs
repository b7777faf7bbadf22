//! Shared receive queues.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_trace::Unacknowledged;
use farcall_verbs as verbs;
use farcall_verbs::{RawSrq, RecvWr};

use crate::posting::post_receives;
use crate::symbols::export;
use crate::use_count::UseCount;
use crate::{context, errno, live, memory};
use farcall_layout::{Context, Pd, Srq, SrqAttr, SrqInitAttr, SrqInitAttrEx, srq_mask};

#[repr(C)]
pub struct SrqObject {
    srq: Srq,
    provider: Mutex<Box<dyn RawSrq>>,
    pub events: Unacknowledged,
    pub uses: UseCount,
}

/// # Safety
/// `srq` must have been created by [`ibv_create_srq`] and be live.
pub unsafe fn object<'a>(srq: *mut Srq) -> &'a SrqObject {
    // SAFETY: contract of this function: `srq` is live. The C structure is the first field of its object (`repr(C)`);
    // fields that change are behind locks.
    unsafe { &*srq.cast::<SrqObject>() }
}

impl SrqObject {
    pub fn lock(&self) -> MutexGuard<'_, Box<dyn RawSrq>> {
        self.provider.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See `man ibv_post_srq_recv`.
pub unsafe extern "C" fn post_recv(
    srq: *mut Srq,
    wr: *mut RecvWr<'static>,
    bad_wr: *mut *mut RecvWr<'static>,
) -> c_int {
    // SAFETY: contract of `ibv_post_srq_recv` (man page): `srq` is live.
    let mut provider = unsafe { object(srq) }.lock();
    // SAFETY: contract of `ibv_post_srq_recv` (man page): the chain is valid, and its memory stays valid until the
    // completions, as `RawSrq::post_recv` requires.
    unsafe { post_receives(wr, bad_wr, |batch| provider.post_recv(batch)) }
}

/// See `ibv_create_srq_ex`: the queues that the header does not map to `ibv_create_srq` (XRC, tag matching) are not
/// supported.
pub unsafe extern "C" fn create_ex(_context: *mut Context, _attr: *mut SrqInitAttrEx) -> *mut Srq {
    errno::null(errno::refused(libc::EOPNOTSUPP, format_args!("no XRC and no tag matching")))
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_create_srq`: the sizes are set to those of the created queue.
        fn ibv_create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq {
            if let Err(number) = live::DOMAINS.check(pd) {
                return errno::null(number);
            }
            // SAFETY: the domain is live (checked above). Contract of `ibv_create_srq` (man page): `attr` is valid.
            let (domain, init) = unsafe { (memory::domain(pd), &mut *attr) };
            let wanted = verbs::SrqInitAttr { max_wr: init.attr.max_wr, max_sge: init.attr.max_sge };
            let made = domain.provider.create_srq(&wanted).and_then(|provider| {
                let cap = provider.query()?;
                Ok((provider, cap))
            });
            let (provider, cap) = match made {
                Ok(made) => made,
                Err(error) => return errno::null(errno::number(&error)),
            };
            (init.attr.max_wr, init.attr.max_sge) = (cap.max_wr, cap.max_sge);
            let srq_num = provider.srq_num();
            // SAFETY: the domain is live (checked above).
            let context = unsafe { (*pd).context };
            let srq = Srq {
                context,
                srq_context: init.srq_context,
                pd,
                handle: srq_num,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                events_completed: 0,
            };
            domain.uses.add();
            let made = Box::into_raw(Box::new(SrqObject {
                srq,
                provider: Mutex::new(provider),
                events: Unacknowledged::default(),
                uses: UseCount::default(),
            }));
            // SAFETY: `made` was just created, and the context of a live domain is open.
            unsafe {
                live::RECEIVE_QUEUES.insert(made.cast::<Srq>());
                context::object(context).registry.srqs.insert(srq_num, made.cast());
            }
            made.cast()
        }

        /// `man ibv_modify_srq`.
        fn ibv_modify_srq(srq: *mut Srq, attr: *mut SrqAttr, attr_mask: c_int) -> c_int {
            if attr_mask & !(srq_mask::MAX_WR | srq_mask::LIMIT) != 0 {
                return errno::refused(libc::EINVAL, format_args!("attr_mask {attr_mask:#x}"));
            }
            if let Err(number) = live::RECEIVE_QUEUES.check(srq) {
                return number;
            }
            // SAFETY: contract of `ibv_modify_srq` (man page): `attr` is valid.
            let wanted = unsafe { &*attr };
            let changes = verbs::SrqAttr {
                max_wr: (attr_mask & srq_mask::MAX_WR != 0).then_some(wanted.max_wr),
                srq_limit: (attr_mask & srq_mask::LIMIT != 0).then_some(wanted.srq_limit),
            };
            // SAFETY: the queue is live (checked above).
            errno::code(unsafe { object(srq) }.lock().modify(&changes))
        }

        /// `man ibv_query_srq`.
        fn ibv_query_srq(srq: *mut Srq, attr: *mut SrqAttr) -> c_int {
            if let Err(number) = live::RECEIVE_QUEUES.check(srq) {
                return number;
            }
            // SAFETY: the queue is live (checked above).
            errno::code(unsafe { object(srq) }.lock().query().map(|cap| {
                let filled = SrqAttr { max_wr: cap.max_wr, max_sge: cap.max_sge, srq_limit: cap.srq_limit };
                // SAFETY: contract of `ibv_query_srq` (man page): `attr` is valid.
                unsafe { attr.write(filled) }
            }))
        }

        /// `man ibv_create_srq`.
        fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
            if let Err(number) = live::RECEIVE_QUEUES.check(srq) {
                return number;
            }
            // SAFETY: the queue is live (checked above).
            let of = unsafe { object(srq) };
            if let Err(number) = of.uses.check_none().and_then(|()| live::RECEIVE_QUEUES.remove(srq)) {
                return number;
            }
            // SAFETY: contract of `ibv_close_device` (man page): a context outlives its queues.
            unsafe { context::object(of.srq.context) }.registry.srqs.remove(of.srq.handle);
            of.events.wait();
            let pd = of.srq.pd;
            // SAFETY: `ibv_create_srq` made it with `Box::into_raw`. No queue pair uses it, and `remove` succeeds only
            // once. The domain is live, because its use count is positive.
            unsafe {
                drop(Box::from_raw(srq.cast::<SrqObject>()));
                memory::domain(pd).uses.remove();
            }
            0
        }
    }
}
