//! Conversion of a slice of work requests to libibverbs' linked list.

use std::ffi::c_int;
use std::ptr;

use farcall_verbs::{Error, PostError, RecvWr, SendWr};

use crate::fault;

/// A work request with a pointer to its successor.
pub(crate) trait Linked: Copy {
    /// Returns whether the request is the last of its list.
    fn is_last(&self) -> bool;
    /// Sets the successor.
    fn link(&mut self, next: *const Self);
}

impl Linked for SendWr<'_> {
    fn is_last(&self) -> bool {
        self.next.is_null()
    }

    fn link(&mut self, next: *const Self) {
        self.next = next;
    }
}

impl Linked for RecvWr<'_> {
    fn is_last(&self) -> bool {
        self.next.is_null()
    }

    fn link(&mut self, next: *const Self) {
        self.next = next;
    }
}

/// Buffer for a linked copy of a batch; it grows to the longest batch and is reused.
pub(crate) struct Chain<W>(Vec<W>);

pub(crate) type SendChain = Chain<SendWr<'static>>;
pub(crate) type RecvChain = Chain<RecvWr<'static>>;

// SAFETY: between calls of `post` the vector is empty, so it holds no pointer.
unsafe impl<W> Send for Chain<W> {}

impl<W> Default for Chain<W> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<W: Linked> Chain<W> {
    /// Posts a batch as one list. `post` receives its first request and the location for a pointer to the refused one.
    /// On failure returns the number of posted requests and the return value of `post`.
    #[inline]
    pub(crate) fn post(
        &mut self,
        wrs: &[W],
        post: impl FnOnce(*const W, *mut *const W) -> c_int,
    ) -> Result<(), (usize, c_int)> {
        let first = match wrs {
            [] => return Ok(()),
            // A single request without successor needs no copy.
            [only] if only.is_last() => ptr::from_ref(only),
            _ => self.link(wrs),
        };
        let mut refused = ptr::null();
        let returned = post(first, &raw mut refused);
        self.0.clear();
        if returned == 0 {
            return Ok(());
        }
        let posted = (refused as usize).wrapping_sub(first as usize) / size_of::<W>();
        // If the driver reports no request of the batch as refused, assume that it posted none.
        Err((if posted < wrs.len() { posted } else { 0 }, returned))
    }

    fn link(&mut self, wrs: &[W]) -> *const W {
        self.0.clear();
        self.0.extend_from_slice(wrs);
        let base = self.0.as_mut_ptr();
        for i in 0..wrs.len() {
            // SAFETY: `base` points to `wrs.len()` elements of the vector; `i` is in bounds, and `next` is in bounds or
            // null.
            unsafe {
                let next = if i + 1 < wrs.len() { base.add(i + 1) } else { ptr::null_mut() };
                (*base.add(i)).link(next);
            }
        }
        base
    }
}

/// Returns the error of a failed post to a queue of `depth` requests.
#[cold]
pub(crate) fn refused(operation: &'static str, depth: u32, (posted, returned): (usize, c_int)) -> PostError {
    let source = fault::check(returned).err().unwrap_or_else(fault::last);
    let source = match source.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => Error::Exhausted {
            operation,
            what: "places in the queue",
            limit: u64::from(depth),
            remedy: "poll for completions first, or make the queue deeper",
        },
        Some(libc::EINVAL) => Error::os(
            operation,
            "the request is malformed: its operation, number of elements, inline length or address handle",
            source,
        ),
        _ => Error::os(operation, "the device refuses the request", source),
    };
    PostError::new(posted, source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::Sge;

    /// Follows a list like a driver.
    fn ids(mut at: *const RecvWr<'static>) -> Vec<u64> {
        let mut ids = Vec::new();
        while !at.is_null() {
            // SAFETY: `Chain::link` linked the list, whose vector is not changed during the call.
            let wr = unsafe { &*at };
            ids.push(wr.wr_id);
            at = wr.next;
        }
        ids
    }

    #[test]
    fn a_batch_becomes_a_list_in_order() {
        let mut chain = RecvChain::default();
        let mut wrs = [1, 2, 3].map(|id| RecvWr::new(id, &[]));
        // `next` of the caller's requests is ignored.
        wrs[2].next = &raw const wrs[0];
        chain
            .post(&wrs, |first, _| {
                assert_eq!(ids(first), [1, 2, 3]);
                0
            })
            .unwrap();
        chain
            .post(&wrs[2..], |first, _| {
                assert_eq!(ids(first), [3]);
                0
            })
            .unwrap();
        chain.post(&[], |_, _| unreachable!()).unwrap();
    }

    #[test]
    fn a_single_request_is_not_copied() {
        let sges = [Sge::default(); 1];
        let wr: RecvWr<'static> = RecvWr::new(9, Box::leak(Box::new(sges)));
        let wrs = [wr];
        RecvChain::default()
            .post(&wrs, |first, _| {
                assert_eq!(first, wrs.as_ptr());
                0
            })
            .unwrap();
    }

    #[test]
    fn the_refused_request_is_known_by_its_place() {
        let mut chain = RecvChain::default();
        let wrs = [1, 2, 3].map(|id| RecvWr::new(id, &[]));
        let refuse = |place: usize| {
            move |first: *const RecvWr<'static>, refused: *mut *const RecvWr<'static>| {
                // SAFETY: `place` is inside the list of three requests; `refused` points to a local variable of
                // `Chain::post`.
                unsafe { *refused = first.add(place) };
                libc::ENOMEM
            }
        };
        assert_eq!(chain.post(&wrs, refuse(2)), Err((2, libc::ENOMEM)));
        assert_eq!(chain.post(&wrs, |_, _| libc::EINVAL), Err((0, libc::EINVAL)));
        let error = super::refused("post_recv", 16, (2, libc::ENOMEM));
        assert_eq!(error.posted, 2);
        let refusal = error.source.to_string();
        assert!(refusal.contains("poll for completions"), "{refusal}");
    }
}
