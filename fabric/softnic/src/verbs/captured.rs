//! Wrappers of queue pairs, completion queues and address handles that record the messages sent through shared memory
//! and forward every call. They are created only if a capture is configured.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use farcall_capture::{Conversation, Ends, QpEnd, Recorder, Request};
use farcall_shm::Mutex;
use farcall_verbs::{
    Access, AddressHandle, AhAttr, Gid, Notify, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawCq,
    RawMr, RawQp, RecvWr, Result, SendFlags, SendWr, Sge, Wc,
};
use farcall_wire::AccessDenied;

use crate::roce::memory;
use crate::shm_transport::ShmTransport;

/// Capture state of an opened device.
pub(super) struct Captured {
    shm: Arc<ShmTransport>,
    recorder: Arc<Recorder>,
    pairs: Mutex<HashMap<u32, Arc<Pair>>>,
    /// Paths of existing address handles, by the address that work requests contain.
    paths: Mutex<HashMap<usize, AhAttr>>,
}

struct Pair {
    pd: u32,
    conversation: Mutex<Conversation>,
}

impl Captured {
    /// Returns the capture state; `None` if no capture is configured.
    pub(super) fn of(shm: &Arc<ShmTransport>) -> Option<Arc<Self>> {
        let recorder = shm.recorder.clone()?;
        let (pairs, paths) = Default::default();
        Some(Arc::new(Self { shm: shm.clone(), recorder, pairs, paths }))
    }

    pub(super) fn queue(self: &Arc<Self>, inner: Box<dyn RawCq>) -> Box<dyn RawCq> {
        Box::new(CapturedCq { inner, captured: self.clone() })
    }

    pub(super) fn queue_pair(
        self: &Arc<Self>,
        inner: Box<dyn RawQp>,
        pd: u32,
        attr: &QpInitAttr<'_>,
    ) -> Box<dyn RawQp> {
        let qpn = inner.qp_num();
        let conversation = Conversation::new(inner.qp_type(), qpn, inner.cap().max_send_wr);
        let pair = Arc::new(Pair { pd, conversation: Mutex::new(conversation) });
        self.pairs.lock().insert(qpn, pair.clone());
        let signals_all = attr.sq_sig_all;
        Box::new(CapturedQp { inner, captured: self.clone(), pair, signals_all, is_remote: false })
    }

    pub(super) fn address_handle(
        self: &Arc<Self>,
        inner: Box<dyn AddressHandle>,
        attr: &AhAttr,
    ) -> Box<dyn AddressHandle> {
        self.paths.lock().insert(inner.as_raw().addr(), *attr);
        Box::new(CapturedHandle { inner, captured: self.clone() })
    }

    fn own_gid(&self, path: &AhAttr) -> Gid {
        self.shm.core.process.table.get(usize::from(path.sgid_index))
    }

    /// Returns whether messages to this destination are sent over RoCEv2. The port records those packets itself.
    fn is_remote_path(&self, dgid: Gid, qpn: u32) -> bool {
        matches!(self.shm.core.process.is_remote_path("record a capture", dgid, qpn), Ok(true))
    }

    fn allows(&self, pd: u32, sges: &[Sge], len_bytes: u64, need: Access) -> bool {
        memory::allows(&self.shm.core.process.regions, pd, sges, (0, len_bytes), need)
    }
}

struct CapturedQp {
    inner: Box<dyn RawQp>,
    captured: Arc<Captured>,
    pair: Arc<Pair>,
    signals_all: bool,
    /// `true` if the peer is on another host.
    is_remote: bool,
}

impl CapturedQp {
    /// Returns whether requests posted now are sent, immediately or later.
    fn is_recorded(&self) -> bool {
        // In a forked child the recorder's lock may be held by a thread that does not exist.
        !self.is_remote
            && !self.captured.shm.core.process.is_inherited()
            && matches!(self.inner.state(), QpState::Rts | QpState::Sqd)
    }

    /// Records requests that are about to be posted.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn record(&self, wrs: &[SendWr<'_>]) {
        let (captured, pd) = (&self.captured, self.pair.pd);
        let mut conversation = self.pair.conversation.lock();
        let mut batch = captured.recorder.batch();
        for wr in wrs {
            let mut ends = None;
            if self.inner.qp_type() == QpType::Ud {
                let target = wr.ud();
                let Some(path) = captured.paths.lock().get(&target.ah.addr()).copied() else { continue };
                if captured.is_remote_path(path.dgid, target.remote_qpn) {
                    continue;
                }
                let dst = QpEnd { gid: path.dgid, qpn: target.remote_qpn };
                ends = Some(Ends { src: captured.own_gid(&path), dst });
            }
            let need = if wr.opcode.returns_data() { Access::LOCAL_WRITE } else { Access::empty() };
            let is_allowed = wr.send_flags.contains(SendFlags::INLINE)
                || captured.allows(pd, wr.sges(), wr.len_bytes(), need);
            let is_signalled = self.signals_all || wr.send_flags.contains(SendFlags::SIGNALED);
            let request = Request { wr, is_signalled, ends };
            conversation.posted(&mut batch, &request, |sges, offset, len_bytes, bytes| {
                if !is_allowed {
                    return Err(AccessDenied);
                }
                // SAFETY: the elements are inline, or `allows` found them inside registered regions; by the contract of
                // this function they are readable.
                unsafe { memory::gather(bytes, sges, offset, len_bytes) };
                Ok(())
            });
        }
    }
}

impl RawQp for CapturedQp {
    fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    fn qp_type(&self) -> QpType {
        self.inner.qp_type()
    }

    fn state(&self) -> QpState {
        self.inner.state()
    }

    fn cap(&self) -> QpCap {
        self.inner.cap()
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.inner.modify(attr)?;
        let mut conversation = self.pair.conversation.lock();
        match (attr.state, attr.ah) {
            (Some(QpState::Reset), _) => self.is_remote = false,
            (Some(QpState::Rtr), Some(path)) => {
                self.is_remote =
                    self.captured.is_remote_path(path.dgid, attr.dest_qp_num.unwrap_or_default());
            }
            _ => {}
        }
        conversation.modify(attr, attr.ah.map(|path| self.captured.own_gid(&path)));
        Ok(())
    }

    /// Requests are recorded before they are posted, so their effects, and the packets that peers send in response,
    /// follow them in the capture.
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if self.is_recorded() {
            // SAFETY: by the contract of this function the requests' memory is valid, as `check_sends` requires.
            let posted = match unsafe { self.inner.check_sends(wrs) } {
                Ok(()) => wrs.len(),
                Err(error) => error.posted,
            };
            if posted > 0 {
                // SAFETY: by the contract of this function the requests' memory is valid, as `record` requires.
                unsafe { self.record(&wrs[..posted]) };
            }
        }
        // SAFETY: the contract of this function is that of the inner `post_send`.
        unsafe { self.inner.post_send(wrs) }
    }

    unsafe fn check_sends(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the contract of this function is that of the inner `check_sends`.
        unsafe { self.inner.check_sends(wrs) }
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the contract of this function is that of the inner `post_recv`.
        unsafe { self.inner.post_recv(wrs) }
    }

    fn places_in_order(&self, mr: &dyn RawMr) -> bool {
        self.inner.places_in_order(mr)
    }

    fn is_quiesced(&self) -> bool {
        self.inner.is_quiesced()
    }
}

impl Drop for CapturedQp {
    fn drop(&mut self) {
        // Removed before the number can be reused. In a forked child the lock may be held by a thread that does not
        // exist.
        if !self.captured.shm.core.process.is_inherited() {
            self.captured.pairs.lock().remove(&self.inner.qp_num());
        }
    }
}

struct CapturedCq {
    inner: Box<dyn RawCq>,
    captured: Arc<Captured>,
}

impl CapturedCq {
    /// Records the responses that completions of sends imply.
    fn record(&self, completions: &[Wc]) {
        let captured = &self.captured;
        for wc in completions.iter().filter(|wc| !wc.opcode.is_receive()) {
            let Some(pair) = captured.pairs.lock().get(&wc.qp_num).cloned() else { continue };
            let mut conversation = pair.conversation.lock();
            if !conversation.awaits_responses() {
                continue;
            }
            conversation.completed(&mut captured.recorder.batch(), wc, |sges, offset, len_bytes, bytes| {
                let end = offset + len_bytes;
                if !captured.allows(pair.pd, sges, end, Access::LOCAL_WRITE) {
                    return Err(AccessDenied);
                }
                // SAFETY: `allows` found the elements inside registered regions. By the contract of `post_send` they
                // stay valid until the program receives this completion, which is after this call.
                unsafe { memory::gather(bytes, sges, offset, len_bytes) };
                Ok(())
            });
        }
    }
}

impl RawCq for CapturedCq {
    fn id(&self) -> u32 {
        self.inner.id()
    }

    fn poll(&mut self, wc: &mut [Wc]) -> Result<usize> {
        let taken = self.inner.poll(wc)?;
        if taken > 0 {
            self.record(&wc[..taken]);
        }
        Ok(taken)
    }

    fn req_notify(&mut self, notify: Notify) -> Result<()> {
        self.inner.req_notify(notify)
    }

    /// Returns the inner queue, because queue pairs are created with it.
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}

struct CapturedHandle {
    inner: Box<dyn AddressHandle>,
    captured: Arc<Captured>,
}

impl AddressHandle for CapturedHandle {
    fn as_raw(&self) -> *const () {
        self.inner.as_raw()
    }
}

impl Drop for CapturedHandle {
    fn drop(&mut self) {
        if !self.captured.shm.core.process.is_inherited() {
            self.captured.paths.lock().remove(&self.inner.as_raw().addr());
        }
    }
}
