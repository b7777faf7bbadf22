//! Shared receive queues.

use std::any::Any;
use std::ptr;
use std::sync::Arc;

use farcall_verbs::{Error, PostError, RawSrq, RecvWr, Result, SrqAttr, SrqCap, SrqInUse, SrqInitAttr};

use crate::chain::{self, RecvChain};
use crate::fault;
use crate::object::Object;
use crate::pd::Pd;
use farcall_layout as abi;

/// The queue as shared by the queue pairs that use it.
pub(crate) struct SrqCore {
    raw: Object<abi::Srq>,
    pd: Arc<Pd>,
}

impl SrqCore {
    pub(crate) fn as_ptr(&self) -> *mut abi::Srq {
        self.raw.as_ptr()
    }
}

pub(crate) struct Srq {
    core: Arc<SrqCore>,
    chain: RecvChain,
    id: u32,
    depth: u32,
}

impl Srq {
    pub(crate) fn create(pd: &Arc<Pd>, attr: &SrqInitAttr) -> Result<Self> {
        let id = pd.open.next_id();
        let mut raw_attr = abi::SrqInitAttr {
            srq_context: ptr::without_provenance_mut(id as usize),
            attr: abi::SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: 0 },
        };
        // SAFETY: `pd` keeps the domain alive; the function reads and updates the attributes, a local variable.
        let raw = unsafe {
            let made = (pd.open.library.create_srq)(pd.as_ptr(), &raw mut raw_attr);
            Object::new(made, "shared receive queue", pd.open.library.destroy_srq, |source| {
                let wish =
                    format!("a shared queue of {} receives with {} elements", attr.max_wr, attr.max_sge);
                fault::create("create_srq", wish, source)
            })?
        };
        let core = Arc::new(SrqCore { raw, pd: Arc::clone(pd) });
        Ok(Self { core, chain: RecvChain::default(), id, depth: raw_attr.attr.max_wr })
    }

    pub(crate) fn core(&self) -> &Arc<SrqCore> {
        &self.core
    }
}

impl RawSrq for Srq {
    fn srq_num(&self) -> u32 {
        self.id
    }

    fn query(&self) -> Result<SrqCap> {
        let mut raw = abi::SrqAttr::default();
        // SAFETY: `self.core` keeps the queue alive; the function fills in the attributes.
        let returned = unsafe { (self.core.pd.open.library.query_srq)(self.core.as_ptr(), &raw mut raw) };
        fault::check(returned).map_err(|source| Error::os("query_srq", "ask the device", source))?;
        Ok(SrqCap { max_wr: raw.max_wr, max_sge: raw.max_sge, srq_limit: raw.srq_limit })
    }

    fn modify(&mut self, attr: &SrqAttr) -> Result<()> {
        let mut raw = abi::SrqAttr {
            max_wr: attr.max_wr.unwrap_or_default(),
            max_sge: 0,
            srq_limit: attr.srq_limit.unwrap_or_default(),
        };
        let sets = |is_set: bool, bit: i32| if is_set { bit } else { 0 };
        let mask = sets(attr.max_wr.is_some(), abi::srq_mask::MAX_WR)
            | sets(attr.srq_limit.is_some(), abi::srq_mask::LIMIT);
        // SAFETY: `self.core` keeps the queue alive; the function only reads the attributes.
        let returned =
            unsafe { (self.core.pd.open.library.modify_srq)(self.core.as_ptr(), &raw mut raw, mask) };
        fault::check(returned).map_err(|source| fault::create("modify_srq", format!("{attr:?}"), source))?;
        self.depth = attr.max_wr.unwrap_or(self.depth);
        Ok(())
    }

    fn destroy(self: Box<Self>) -> std::result::Result<(), SrqInUse> {
        // Queue pairs keep the core alive; the library would return EBUSY.
        if Arc::strong_count(&self.core) == 1 {
            return Ok(());
        }
        let source = Error::InvalidState {
            operation: "destroy_srq",
            object: format!("shared receive queue {}", self.id),
            state: "in use".into(),
            remedy: "destroy its queue pairs first",
        };
        Err(SrqInUse { srq: self, source })
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let core = &*self.core;
        let post = core.pd.open.ops().post_srq_recv;
        // SAFETY: the types differ in their lifetime only, and no copy outlives this call: `Chain::post` clears its
        // copies before it returns.
        let wrs = unsafe { std::mem::transmute::<&[RecvWr<'_>], &[RecvWr<'static>]>(wrs) };
        self.chain
            .post(wrs, |first, refused| match post {
                // SAFETY: `core` keeps the queue alive, and the list exists during the call. The memory of the elements
                // is valid by the contract of `RawSrq::post_recv`.
                Some(post) => unsafe { post(core.as_ptr(), first.cast_mut(), refused.cast()) },
                None => libc::EOPNOTSUPP,
            })
            .map_err(|stopped| chain::refused("post_srq_recv", self.depth, stopped))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
