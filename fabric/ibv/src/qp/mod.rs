//! Queue pairs.

mod modify;

use std::ptr::{self, NonNull};
use std::sync::Arc;

use farcall_verbs::{
    Error, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawCq, RawMr, RawQp, RawSrq, RecvWr,
    Result, SendWr, WrOpcode,
};

use crate::chain::{self, RecvChain, SendChain};
use crate::cq::{Cq, CqCore};
use crate::pd::Pd;
use crate::srq::{Srq, SrqCore};
use crate::{NAME, fault};
use farcall_layout as abi;

pub(crate) struct Qp {
    raw: NonNull<abi::Qp>,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    /// The last requested state; the device may have moved to the error state since.
    requested: QpState,
    sends: SendChain,
    receives: RecvChain,
    pd: Arc<Pd>,
    send_cq: Arc<CqCore>,
    recv_cq: Arc<CqCore>,
    srq: Option<Arc<SrqCore>>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for Qp {}

fn cq_core(cq: &dyn RawCq) -> Result<Arc<CqCore>> {
    let cq = cq.as_any().downcast_ref::<Cq>();
    let cq = cq.ok_or_else(|| Error::invalid("create_qp", "a completion queue is of another provider"))?;
    Ok(Arc::clone(cq.core()))
}

fn srq_core(srq: &dyn RawSrq) -> Result<Arc<SrqCore>> {
    let srq = srq.as_any().downcast_ref::<Srq>();
    let srq =
        srq.ok_or_else(|| Error::invalid("create_qp", "the shared receive queue is of another provider"))?;
    Ok(Arc::clone(srq.core()))
}

impl Qp {
    pub(crate) fn create(pd: &Arc<Pd>, attr: &QpInitAttr<'_>) -> Result<Self> {
        let (send_cq, recv_cq) = (cq_core(attr.send_cq)?, cq_core(attr.recv_cq)?);
        let srq = attr.srq.map(srq_core).transpose()?;
        let mut raw_attr = abi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.as_ptr(),
            recv_cq: recv_cq.as_ptr(),
            srq: srq.as_ref().map_or(ptr::null_mut(), |srq| srq.as_ptr()),
            cap: attr.cap,
            qp_type: attr.qp_type as u32,
            sq_sig_all: i32::from(attr.sq_sig_all),
        };
        // SAFETY: the `Arc`s keep domain and queues alive; the function reads and updates the attributes, a local
        // variable.
        let raw = unsafe { (pd.open.library.create_qp)(pd.as_ptr(), &raw mut raw_attr) };
        let raw = fault::non_null(raw, |source| {
            let wish = format!("a {:?} queue pair on {} with {:?}", attr.qp_type, pd.open.name, attr.cap);
            fault::create("create_qp", wish, source)
        })?;
        // SAFETY: the queue pair was just created, and its number is constant.
        let qp_num = unsafe { (*raw.as_ptr()).qp_num };
        send_cq.remember_qp(qp_num);
        recv_cq.remember_qp(qp_num);
        Ok(Self {
            raw,
            qp_num,
            qp_type: attr.qp_type,
            cap: raw_attr.cap,
            requested: QpState::Reset,
            sends: SendChain::default(),
            receives: RecvChain::default(),
            pd: Arc::clone(pd),
            send_cq,
            recv_cq,
            srq,
        })
    }

    /// Queries the state from the device; the library's own copy of the state does not reflect errors.
    fn query_state(&self) -> std::io::Result<QpState> {
        let (mut attr, mut init) = (abi::QpAttr::default(), abi::QpInitAttr::default());
        // SAFETY: `self` owns the queue pair; the function fills in both structures.
        let returned = unsafe {
            (self.pd.open.library.query_qp)(self.raw.as_ptr(), &raw mut attr, abi::mask::STATE, &raw mut init)
        };
        fault::check(returned)?;
        Ok(QpState::from_raw(attr.qp_state).unwrap_or(QpState::Err))
    }

    #[cold]
    fn wrong_state(&self, operation: &'static str, remedy: &'static str) -> PostError {
        let source = Error::InvalidState {
            operation,
            object: format!("QP {:#x}", self.qp_num),
            state: self.requested.to_string(),
            remedy,
        };
        PostError::new(0, source)
    }

    #[cold]
    fn has_srq() -> PostError {
        let what = "the queue pair receives through a shared receive queue; post there";
        PostError::new(0, Error::invalid("post_recv", what))
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: `create_qp` created the queue pair, and it is destroyed only here.
        fault::note_destroy("queue pair", unsafe { (self.pd.open.library.destroy_qp)(self.raw.as_ptr()) });
        self.send_cq.forget_qp(self.qp_num);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.forget_qp(self.qp_num);
        }
    }
}

impl RawQp for Qp {
    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn state(&self) -> QpState {
        // A queue pair whose state cannot be queried is unusable.
        self.query_state().unwrap_or(QpState::Err)
    }

    fn cap(&self) -> QpCap {
        self.cap
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        if self.pd.open.is_iwarp() && attr.state == Some(QpState::Rtr) {
            return Err(Error::Unsupported {
                operation: "modify_qp",
                provider: NAME,
                what: format!(
                    "{} is an iWARP device: only the RDMA connection manager connects its queue pairs; use a RoCE or \
                     InfiniBand device, rxe, or the software RNIC",
                    self.pd.open.name
                ),
            });
        }
        let (mut raw, set) = modify::translate(attr);
        // SAFETY: `self` owns the queue pair; the function only reads the attributes.
        let returned = unsafe { (self.pd.open.library.modify_qp)(self.raw.as_ptr(), &raw mut raw, set) };
        fault::check(returned)
            .map_err(|source| modify::refused((self.qp_type, self.qp_num), self.requested, attr, source))?;
        self.requested = attr.state.unwrap_or(self.requested);
        Ok(())
    }

    #[inline]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // Devices differ in the handling of a request posted before RTS: some accept it and never execute it.
        if !self.requested.accepts_sends() {
            return Err(self.wrong_state("post_send", "connect it first (RTS)"));
        }
        // SAFETY: the types differ in their lifetime only, and no copy outlives this call: `Chain::post` clears its
        // copies before it returns.
        let wrs = unsafe { std::mem::transmute::<&[SendWr<'_>], &[SendWr<'static>]>(wrs) };
        let (raw, post) = (self.raw.as_ptr(), self.pd.open.ops().post_send);
        // SAFETY: `self` owns the queue pair, and the list exists during the call. The memory of the elements is valid
        // by the contract of `RawQp::post_send`.
        self.sends
            .post(wrs, |first, refused| unsafe { post(raw, first.cast_mut(), refused.cast()) })
            .map_err(|stopped| chain::refused("post_send", self.cap.max_send_wr, stopped))
    }

    #[inline]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.srq.is_some() {
            return Err(Self::has_srq());
        }
        if !self.requested.accepts_receives() {
            return Err(self.wrong_state("post_recv", "initialise it first (INIT)"));
        }
        // SAFETY: the types differ in their lifetime only, and no copy outlives this call: `Chain::post` clears its
        // copies before it returns.
        let wrs = unsafe { std::mem::transmute::<&[RecvWr<'_>], &[RecvWr<'static>]>(wrs) };
        let (raw, post) = (self.raw.as_ptr(), self.pd.open.ops().post_recv);
        // SAFETY: `self` owns the queue pair, and the list exists during the call. The memory of the elements is valid
        // by the contract of `RawQp::post_recv`.
        self.receives
            .post(wrs, |first, refused| unsafe { post(raw, first.cast_mut(), refused.cast()) })
            .map_err(|stopped| chain::refused("post_recv", self.cap.max_recv_wr, stopped))
    }

    fn places_in_order(&self, _mr: &dyn RawMr) -> bool {
        // Libraries without this query give no guarantee.
        let Some(query) = self.pd.open.library.query_qp_data_in_order else { return false };
        // SAFETY: `self` owns the queue pair. Without flags, the result 1 means that all bytes are placed in order.
        unsafe { query(self.raw.as_ptr(), WrOpcode::WRITE.0, 0) == 1 }
    }

    fn is_quiesced(&self) -> bool {
        // A device executes nothing for a queue pair after it reports the error state.
        !self.state().responds()
    }
}
