//! One lease: its slabs, and the queue pairs over which its holder reaches them. Both are of a protection domain of its
//! own: over the queue pairs of one lease, the keys of another open nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use farcall_io::Target;
use farcall_link::bootstrap::QpInfo;
use farcall_link::{Nic, Region, RemoteRegion};
use farcall_verbs::{Access, Nanos, Result};

use crate::wire::HolderReport;

/// What a grant allows.
const GRANTED: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// What is copied at once.
const COPY_BYTES: usize = 1 << 20;
/// Longest time that clients are asked to wait for slabs which the device keeps aside. As a rule it rests within
/// microseconds; a peer that is stopped inside an access may stay there for any time.
const REST_MAX: Duration = Duration::from_secs(2);

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
    /// Until then they are expected back.
    rest_by: Nanos,
    /// Of which volume it is, and the notes of that.
    pub volume: Option<(String, Region)>,
    /// What its client has reported, and scrubs that it is to make.
    pub report: HolderReport,
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
        Ok(Self {
            name,
            nic,
            until,
            slabs: BTreeMap::new(),
            target: None,
            closed: None,
            aside: 0,
            rest_by: Nanos(0),
            volume: None,
            report: HolderReport::default(),
        })
    }

    /// A slab more: other memory than anybody had, all zero.
    pub fn grant(&mut self, number: u64, len_bytes: usize) -> Result<RemoteRegion> {
        let region = Region::alloc(&*self.nic.pd, len_bytes, GRANTED)?;
        let remote = region.remote();
        self.slabs.insert(number, region);
        Ok(remote)
    }

    /// The notes of a volume: all zero, or those of an earlier mount, in other memory.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn keep_notes(
        &mut self,
        volume: &str,
        len_bytes: u64,
        earlier: Option<&Region>,
    ) -> Result<RemoteRegion> {
        let notes = Region::alloc(&*self.nic.pd, len_bytes as usize, GRANTED)?;
        if let Some(earlier) = earlier {
            copy(earlier, &notes);
        }
        let remote = notes.remote();
        self.volume = Some((volume.to_owned(), notes));
        Ok(remote)
    }

    /// A slab that an earlier mount of the volume had, in other memory and under another key.
    ///
    /// # Errors
    /// If the device has no room; then nothing has changed.
    pub fn adopt(&mut self, number: u64, from: &mut Self) -> Result<Option<RemoteRegion>> {
        let Some(earlier) = from.slabs.get(&number) else { return Ok(None) };
        let region = Region::alloc(&*self.nic.pd, earlier.len_bytes(), GRANTED)?;
        copy(earlier, &region);
        let remote = region.remote();
        self.slabs.insert(number, region);
        from.slabs.remove(&number);
        if !from.is_at_rest() {
            from.aside = (from.aside + 1).min(from.pairs_closed());
        }
        Ok(Some(remote))
    }

    pub const fn is_connected(&self) -> bool {
        self.target.is_some()
    }

    /// New queue pairs in place of the earlier ones. What a WRITE over those may still do it has done before: late ones
    /// would garble what is written over the new ones.
    pub fn connect(&mut self, pairs: &[QpInfo]) -> Result<Connect> {
        self.disconnect();
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
    pub fn end(&mut self, now: Nanos) {
        self.disconnect_for_good(now);
        self.aside = self.pairs_closed().min(self.slabs.len() as u32);
        self.slabs.clear();
    }

    /// Closes the queue pairs of a lease that has ended.
    pub fn disconnect_for_good(&mut self, now: Nanos) {
        self.disconnect();
        self.rest_by = now + REST_MAX;
    }

    /// Slabs that the device keeps aside, and that are not expected back.
    pub fn kept_aside(&self, now: Nanos) -> u32 {
        self.aside - self.expected_back(now)
    }

    /// Slabs that the device keeps aside, and that are expected back in a moment.
    pub fn expected_back(&self, now: Nanos) -> u32 {
        if now < self.rest_by { self.aside } else { 0 }
    }

    /// Closes the queue pairs: nothing is admitted over them any more. There are no others in its protection domain, so
    /// its keys open nothing.
    pub fn disconnect(&mut self) {
        if let Some(mut target) = self.target.take() {
            target.close();
            self.closed = Some(target);
        }
    }

    fn pairs_closed(&self) -> u32 {
        self.closed.as_ref().map_or(0, |closed| closed.infos().len() as u32)
    }

    /// Whether nothing is under way over queue pairs that were closed.
    pub fn is_at_rest(&mut self) -> bool {
        if self.closed.as_mut().is_some_and(|target| target.is_quiesced()) {
            self.closed = None;
        }
        self.closed.is_none()
    }
}

/// Copies memory that nobody is let into any more. A peer that was stopped inside may go on there: what it writes late
/// may be in the copy, as if it had come in time, and nowhere once the copy is made.
fn copy(from: &Region, to: &Region) {
    let mut bytes = vec![0; COPY_BYTES];
    let len_bytes = from.len_bytes().min(to.len_bytes());
    for at in (0..len_bytes).step_by(COPY_BYTES) {
        let piece = &mut bytes[..COPY_BYTES.min(len_bytes - at)];
        from.copy_out(at, piece);
        to.copy_in(at, piece);
    }
}

#[cfg(test)]
mod tests {
    use farcall_link::bootstrap::Secret;
    use farcall_softnic::SoftNic;

    use super::*;
    use crate::node::{Node, NodeConfig};
    use crate::wire::{RefusalKind, Reply, Request, VERSION};

    const SLABS: u64 = 2;

    fn ask(node: &mut Node, request: &Request, now: Nanos) -> Reply {
        node.handle(&request.to_bytes(), now).unwrap()
    }

    fn lease(node: &mut Node, now: Nanos) -> (Secret<[u8; 16]>, u32) {
        let request = Request::Lease { version: VERSION, name: "a program".to_owned() };
        let Reply::Leased { lease, room, .. } = ask(node, &request, now) else { panic!("no lease") };
        (lease, room.free)
    }

    /// A node of which all slabs were granted under a lease that has ended, while its device does not rest.
    fn node_that_does_not_rest() -> Node {
        let nic = Nic::open(&SoftNic::new()).unwrap();
        let donated = NodeConfig { slab_bytes: 4_096, slabs: SLABS as u32, ..NodeConfig::default() };
        let mut node = Node::new(nic.clone(), donated, 1);
        let (first, _) = lease(&mut node, Nanos(1));
        (0..SLABS).for_each(|slab| drop(ask(&mut node, &Request::Grant { lease: first, slab }, Nanos(1))));
        ask(&mut node, &Request::End { lease: first }, Nanos(1));
        let ended = &mut node.ending[0];
        // Queue pairs that are not closed are not at rest.
        (ended.closed, ended.aside) = (Target::without_memory(&nic, SLABS as usize).ok(), SLABS as u32);
        node
    }

    #[test]
    fn asks_to_wait_for_slabs_until_the_device_rests() {
        let mut node = node_that_does_not_rest();
        let (next, free) = lease(&mut node, Nanos(2));
        assert_eq!(free, SLABS as u32);
        let grant = Request::Grant { lease: next, slab: 7 };
        assert_eq!(ask(&mut node, &grant, Nanos(3)), Reply::Wait);
        node.ending[0].closed.as_mut().unwrap().close();
        assert!(matches!(ask(&mut node, &grant, Nanos(4)), Reply::Granted { .. }));
    }

    #[test]
    fn refuses_slabs_that_the_device_keeps_for_long() {
        let mut node = node_that_does_not_rest();
        let late = Nanos(1) + REST_MAX;
        let (next, free) = lease(&mut node, late);
        assert_eq!(free, 0);
        let grant = Request::Grant { lease: next, slab: 7 };
        assert_eq!(node.handle(&grant.to_bytes(), late).unwrap_err().kind, RefusalKind::NoRoom);
    }
}
