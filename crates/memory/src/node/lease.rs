//! One lease: its slabs, and the queue pairs over which its holder reaches them. Both are of a protection domain of its
//! own: over the queue pairs of one lease, the keys of another open nothing.

use std::collections::BTreeMap;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{Nic, Region, RemoteRegion};
use farcall_remio::Target;
use farcall_verbs::{Access, Nanos, Result};

/// What a grant allows.
const GRANTED: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

pub(super) struct Lease {
    pub name: String,
    nic: Nic,
    pub until: Nanos,
    /// By the holder's numbers.
    pub slabs: BTreeMap<u64, Region>,
    target: Option<Target>,
    /// Closed, and not at rest yet. While there is one, there is no other.
    closed: Option<Target>,
    /// Slabs of a lease that has ended which the device keeps aside, at most: a peer that is stopped inside an access
    /// goes on there, and nowhere else.
    pub aside: u32,
}

/// What became of a wish for queue pairs.
pub(super) enum Connect {
    Connected(Vec<QpInfo>),
    /// Something of the earlier ones is under way.
    Wait,
}

impl Lease {
    /// A lease without slabs.
    ///
    /// # Errors
    /// If the device has no protection domain for it.
    pub fn new(name: String, nic: &Nic, until: Nanos) -> Result<Self> {
        let nic = Nic { pd: nic.context.alloc_pd()?, ..nic.clone() };
        Ok(Self { name, nic, until, slabs: BTreeMap::new(), target: None, closed: None, aside: 0 })
    }

    /// A slab more: other memory than anybody had, all zero.
    pub fn grant(&mut self, number: u64, len_bytes: usize) -> Result<RemoteRegion> {
        let region = Region::alloc(&*self.nic.pd, len_bytes, GRANTED)?;
        let remote = region.remote();
        self.slabs.insert(number, region);
        Ok(remote)
    }

    pub const fn is_connected(&self) -> bool {
        self.target.is_some()
    }

    /// New queue pairs in place of the earlier ones. What a WRITE over those may still do it has done before: late ones
    /// would garble what is written over the new ones.
    pub fn connect(&mut self, pairs: &[QpInfo]) -> Result<Connect> {
        if let Some(mut earlier) = self.target.take() {
            earlier.close();
            self.closed = Some(earlier);
        }
        if !self.is_at_rest() {
            return Ok(Connect::Wait);
        }
        let mut target = Target::without_memory(&self.nic, pairs.len())?;
        target.connect(pairs)?;
        let infos = target.infos();
        self.target = Some(target);
        Ok(Connect::Connected(infos))
    }

    /// Revokes everything. Each registration that ends waits for the accesses that it admitted; not for long, if a peer
    /// is stopped inside one: then the device keeps that memory aside. There is one access at a time for each queue pair.
    pub fn end(&mut self) {
        if let Some(mut target) = self.target.take() {
            target.close();
            self.closed = Some(target);
        }
        let pairs = self.closed.as_ref().map_or(0, |closed| closed.infos().len());
        self.aside = self.slabs.len().min(pairs) as u32;
        self.slabs.clear();
    }

    /// Whether nothing is under way over queue pairs that were closed.
    pub fn is_at_rest(&mut self) -> bool {
        if self.closed.as_mut().is_some_and(|target| target.is_quiesced()) {
            self.closed = None;
        }
        self.closed.is_none()
    }
}
