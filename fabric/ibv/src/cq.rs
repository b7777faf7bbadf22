//! Completion queues.

use std::any::Any;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farcall_verbs::{CqInitAttr, Error, Notify, RawCq, Result, Wc};

use crate::channel::{Channel, ChannelCore};
use crate::fault;
use crate::object::Object;
use crate::open_device::OpenDevice;
use farcall_layout as abi;

/// The completion queue as shared by the queue pairs that complete to it.
pub(crate) struct CqCore {
    raw: Object<abi::Cq>,
    pub(crate) open: Arc<OpenDevice>,
    id: u32,
    channel: Option<Arc<ChannelCore>>,
    destroyed: DestroyedQps,
}

impl CqCore {
    pub(crate) fn as_ptr(&self) -> *mut abi::Cq {
        self.raw.as_ptr()
    }

    /// Hides the remaining completions of a destroyed queue pair. Some devices remove them themselves, rxe does not.
    pub(crate) fn forget_qp(&self, qp_num: u32) {
        self.destroyed.insert(qp_num);
    }

    /// Ends the hiding for a number: a new queue pair may get the number of a destroyed one.
    pub(crate) fn remember_qp(&self, qp_num: u32) {
        self.destroyed.remove(qp_num);
    }
}

/// Numbers of destroyed queue pairs whose completions may still be in the queue.
#[derive(Default)]
struct DestroyedQps {
    is_any: AtomicBool,
    numbers: Mutex<Vec<u32>>,
}

impl DestroyedQps {
    fn insert(&self, qp_num: u32) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).push(qp_num);
        self.is_any.store(true, Ordering::Release);
    }

    fn remove(&self, qp_num: u32) {
        if self.is_any.load(Ordering::Acquire) {
            self.numbers.lock().unwrap_or_else(PoisonError::into_inner).retain(|number| *number != qp_num);
        }
    }

    /// Removes the completions of destroyed queue pairs and returns the number of the others. `was_drained` is whether
    /// the poll emptied the queue, so that it contains no more completions of destroyed queue pairs.
    #[cold]
    fn filter(&self, wcs: &mut [Wc], was_drained: bool) -> usize {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = 0;
        for i in 0..wcs.len() {
            if !numbers.contains(&wcs[i].qp_num) {
                wcs[kept] = wcs[i];
                kept += 1;
            }
        }
        if was_drained {
            numbers.clear();
            self.is_any.store(false, Ordering::Release);
        }
        kept
    }
}

pub(crate) struct Cq(Arc<CqCore>);

impl Cq {
    pub(crate) fn new(open: &Arc<OpenDevice>, attr: &CqInitAttr<'_>) -> Result<Self> {
        const OP: &str = "create_cq";
        let channel = match attr.channel {
            None => None,
            Some(channel) => Some(Arc::clone(
                &channel
                    .as_any()
                    .downcast_ref::<Channel>()
                    .ok_or_else(|| Error::invalid(OP, "the completion channel is of another provider"))?
                    .0,
            )),
        };
        let cqe = c_int::try_from(attr.cqe).map_err(|_| {
            Error::invalid(OP, format!("{} completions; no device holds that many", attr.cqe))
        })?;
        let id = open.next_id();
        let channel_ptr = channel.as_ref().map_or(ptr::null_mut(), |channel| channel.as_ptr());
        let context = ptr::without_provenance_mut(id as usize);
        // SAFETY: `open` keeps the device open, and `channel_ptr` is null or a channel of it. Vector 0 exists on all
        // devices.
        let raw = unsafe {
            let made = (open.library.create_cq)(open.as_ptr(), cqe, context, channel_ptr, 0);
            Object::new(made, "completion queue", open.library.destroy_cq, |source| {
                fault::create(OP, format!("a queue of {cqe} completions on {}", open.name), source)
            })?
        };
        Ok(Self(Arc::new(CqCore {
            raw,
            open: Arc::clone(open),
            id,
            channel,
            destroyed: DestroyedQps::default(),
        })))
    }

    pub(crate) fn core(&self) -> &Arc<CqCore> {
        &self.0
    }
}

impl RawCq for Cq {
    fn id(&self) -> u32 {
        self.0.id
    }

    #[inline]
    fn poll(&mut self, wc: &mut [Wc]) -> Result<usize> {
        let core = &*self.0;
        let room = c_int::try_from(wc.len()).unwrap_or(c_int::MAX);
        // SAFETY: `core` keeps the queue alive; `Wc` has the layout of `ibv_wc`, and `wc` has space for `room`
        // completions.
        let count = unsafe { (core.open.ops().poll_cq)(core.as_ptr(), room, wc.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else { return Err(overrun(core)) };
        if core.destroyed.is_any.load(Ordering::Relaxed) {
            let was_drained = count < wc.len();
            return Ok(core.destroyed.filter(&mut wc[..count], was_drained));
        }
        Ok(count)
    }

    fn req_notify(&mut self, notify: Notify) -> Result<()> {
        let core = &*self.0;
        if core.channel.is_none() {
            return Err(Error::invalid("req_notify", "the queue was made without a completion channel"));
        }
        let solicited_only = c_int::from(notify == Notify::Solicited);
        // SAFETY: `core` keeps the queue alive.
        let returned = unsafe { (core.open.ops().req_notify_cq)(core.as_ptr(), solicited_only) };
        fault::check(returned).map_err(|source| {
            Error::os("req_notify", format!("queue {} of {}", core.id, core.open.name), source)
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cold]
fn overrun(core: &CqCore) -> Error {
    Error::Exhausted {
        operation: "poll_cq",
        what: "room for completions",
        // SAFETY: `core` keeps the queue alive, and its size does not change.
        limit: u64::from(unsafe { (*core.as_ptr()).cqe }.unsigned_abs()),
        remedy: "the queue overran or the device failed: make it as large as all queues that complete into it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(qp_num: u32) -> Wc {
        Wc { qp_num, ..Wc::default() }
    }

    #[test]
    fn hides_completions_of_destroyed_pairs_until_a_queue_is_empty() {
        let destroyed = DestroyedQps::default();
        assert!(!destroyed.is_any.load(Ordering::Relaxed));
        destroyed.insert(7);
        destroyed.insert(8);
        destroyed.remove(8);
        let mut wcs = [of(7), of(8), of(7), of(9)];
        assert_eq!(destroyed.filter(&mut wcs, false), 2);
        assert_eq!([wcs[0].qp_num, wcs[1].qp_num], [8, 9]);
        assert!(destroyed.is_any.load(Ordering::Relaxed));
        assert_eq!(destroyed.filter(&mut [of(7)], true), 0);
        assert!(!destroyed.is_any.load(Ordering::Relaxed));
        assert_eq!(destroyed.filter(&mut [of(7)], true), 1);
    }
}
