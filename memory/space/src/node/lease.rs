//! A lease: its slabs, and the queue pairs over which its holder accesses them. Both belong to a protection domain of
//! the lease: the queue pairs of one lease cannot use the keys of another.

use std::collections::BTreeMap;
use std::time::Duration;

use farcall_io::Target;
use farcall_link::bootstrap::QpInfo;
use farcall_link::{Nic, Region, RemoteRegion};
use farcall_verbs::{Access, Nanos, Result};

use crate::wire::HolderReport;

/// Access rights of a granted slab.
const GRANTED: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// Length in bytes of the chunks in which memory is copied.
const COPY_BYTES: usize = 1 << 20;
/// Maximum time that clients are asked to wait for slabs which the device still retains. The device usually quiesces
/// within microseconds, but a peer that is stopped during an access may delay it for any time.
const QUIESCE_MAX: Duration = Duration::from_secs(2);

pub(super) struct Lease {
    pub name: String,
    nic: Nic,
    pub until: Nanos,
    /// Slabs by the numbers that the holder chose.
    pub slabs: BTreeMap<u64, Region>,
    target: Option<Target>,
    /// Queue pairs that are closed and not quiesced. No others are created before they are.
    closed: Option<Target>,
    /// Upper bound of the number of slabs of an ended lease that the device retains: a peer that was stopped during an
    /// access may complete it there, and nowhere else.
    pub retained: u32,
    /// Time until which the retained slabs are expected to be released.
    quiesce_by: Nanos,
    /// Name and metadata region of the volume of which it is a lease; `None` for a lease without a volume.
    pub volume: Option<(String, Region)>,
    /// Latest report of the client, and the number of scrubs requested from it.
    pub report: HolderReport,
}

/// Result of a request for queue pairs.
pub(super) enum Connect {
    Connected(Vec<QpInfo>),
    /// Accesses over the earlier queue pairs are in progress.
    Wait,
}

impl Lease {
    /// Creates a lease without slabs.
    ///
    /// # Errors
    /// Returns an error if the device cannot create a protection domain.
    pub fn new(name: String, nic: &Nic, until: Nanos) -> Result<Self> {
        let nic = nic.clone().with_pd(nic.context().alloc_pd()?);
        Ok(Self {
            name,
            nic,
            until,
            slabs: BTreeMap::new(),
            target: None,
            closed: None,
            retained: 0,
            quiesce_by: Nanos(0),
            volume: None,
            report: HolderReport::default(),
        })
    }

    /// Grants another slab, in newly allocated memory of zeros.
    pub fn grant(&mut self, number: u64, len_bytes: usize) -> Result<RemoteRegion> {
        let region = Region::alloc(&**self.nic.pd(), len_bytes, GRANTED)?;
        let remote = region.remote();
        self.slabs.insert(number, region);
        Ok(remote)
    }

    /// Allocates the metadata region of a volume: zeros, or a copy of that of an earlier mount.
    ///
    /// # Errors
    /// Returns an error if the region cannot be registered.
    pub fn allocate_metadata(
        &mut self,
        volume: &str,
        len_bytes: u64,
        earlier: Option<&Region>,
    ) -> Result<RemoteRegion> {
        let metadata = Region::alloc(&**self.nic.pd(), len_bytes as usize, GRANTED)?;
        if let Some(earlier) = earlier {
            copy(earlier, &metadata);
        }
        let remote = metadata.remote();
        self.volume = Some((volume.to_owned(), metadata));
        Ok(remote)
    }

    /// Moves a slab of an earlier mount of the volume to this lease: copies it to new memory under another key.
    ///
    /// # Errors
    /// Returns an error if the new slab cannot be registered; nothing has changed then.
    pub fn adopt(&mut self, number: u64, from: &mut Self) -> Result<Option<RemoteRegion>> {
        let Some(earlier) = from.slabs.get(&number) else { return Ok(None) };
        let region = Region::alloc(&**self.nic.pd(), earlier.len_bytes(), GRANTED)?;
        copy(earlier, &region);
        let remote = region.remote();
        self.slabs.insert(number, region);
        from.slabs.remove(&number);
        if !from.is_quiesced() {
            from.retained = (from.retained + 1).min(from.pairs_closed());
        }
        Ok(Some(remote))
    }

    pub const fn is_connected(&self) -> bool {
        self.target.is_some()
    }

    /// Replaces the queue pairs. Waits until the earlier ones are quiesced: a late WRITE over those would corrupt data
    /// written over the new ones.
    pub fn connect(&mut self, pairs: &[QpInfo]) -> Result<Connect> {
        self.disconnect();
        if !self.is_quiesced() {
            return Ok(Connect::Wait);
        }
        let mut target = Target::without_memory(&self.nic, pairs.len())?;
        target.connect(pairs)?;
        let infos = target.infos();
        self.target = Some(target);
        Ok(Connect::Connected(infos))
    }

    /// Revokes all access. Deregistering a slab waits for the accesses that it has admitted. If a peer is stopped
    /// during one, the wait is short and the device retains the memory. There is at most one such access per queue
    /// pair.
    pub fn end(&mut self, now: Nanos) {
        self.disconnect_ended(now);
        self.retained = self.pairs_closed().min(self.slabs.len() as u32);
        self.slabs.clear();
    }

    /// Closes the queue pairs of an ended lease.
    pub fn disconnect_ended(&mut self, now: Nanos) {
        self.disconnect();
        self.quiesce_by = now + QUIESCE_MAX;
    }

    /// Returns the number of slabs that the device retains and that are not expected to be released soon.
    pub fn retained_slabs(&self, now: Nanos) -> u32 {
        self.retained - self.releasing_slabs(now)
    }

    /// Returns the number of slabs that the device retains and that are expected to be released soon.
    pub fn releasing_slabs(&self, now: Nanos) -> u32 {
        if now < self.quiesce_by { self.retained } else { 0 }
    }

    /// Closes the queue pairs, so that no further access is admitted. Its protection domain contains no others, so its
    /// keys become unusable.
    pub fn disconnect(&mut self) {
        if let Some(mut target) = self.target.take() {
            target.close();
            self.closed = Some(target);
        }
    }

    fn pairs_closed(&self) -> u32 {
        self.closed.as_ref().map_or(0, |closed| closed.infos().len() as u32)
    }

    /// Returns whether no access over closed queue pairs is in progress.
    pub fn is_quiesced(&mut self) -> bool {
        if self.closed.as_mut().is_some_and(|target| target.is_quiesced()) {
            self.closed = None;
        }
        self.closed.is_none()
    }
}

/// Copies memory to which no further access is admitted. A peer that was stopped during an access may still complete
/// it: its late write is part of the copy, as if it had been in time, or is lost if it follows the copy.
fn copy(from: &Region, to: &Region) {
    let mut bytes = vec![0; COPY_BYTES];
    let len_bytes = from.len_bytes().min(to.len_bytes());
    for at in (0..len_bytes).step_by(COPY_BYTES) {
        let chunk = &mut bytes[..COPY_BYTES.min(len_bytes - at)];
        from.copy_out(at, chunk);
        to.copy_in(at, chunk);
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

    fn call(node: &mut Node, request: &Request, now: Nanos) -> Reply {
        node.handle(&request.to_bytes(), now).unwrap()
    }

    fn lease(node: &mut Node, now: Nanos) -> (Secret<[u8; 16]>, u32) {
        let request = Request::Lease { version: VERSION, name: "a program".to_owned() };
        let Reply::Leased { lease, room, .. } = call(node, &request, now) else { panic!("no lease") };
        (lease, room.free)
    }

    /// Creates a node all of whose slabs were granted under a lease that has ended, while its device is not quiesced.
    fn node_with_busy_device() -> Node {
        let nic = Nic::open(&SoftNic::new()).unwrap();
        let donated = NodeConfig { slab_bytes: 4_096, slabs: SLABS as u32, ..NodeConfig::default() };
        let mut node = Node::new(nic.clone(), donated, 1);
        let (first, _) = lease(&mut node, Nanos(1));
        (0..SLABS).for_each(|slab| drop(call(&mut node, &Request::Grant { lease: first, slab }, Nanos(1))));
        call(&mut node, &Request::End { lease: first }, Nanos(1));
        let ended = &mut node.ending[0];
        // Open queue pairs are not quiesced.
        (ended.closed, ended.retained) = (Target::without_memory(&nic, SLABS as usize).ok(), SLABS as u32);
        node
    }

    #[test]
    fn asks_to_wait_for_slabs_until_the_device_rests() {
        let mut node = node_with_busy_device();
        let (next, free) = lease(&mut node, Nanos(2));
        assert_eq!(free, SLABS as u32);
        let grant = Request::Grant { lease: next, slab: 7 };
        assert_eq!(call(&mut node, &grant, Nanos(3)), Reply::Wait);
        node.ending[0].closed.as_mut().unwrap().close();
        assert!(matches!(call(&mut node, &grant, Nanos(4)), Reply::Granted { .. }));
    }

    #[test]
    fn refuses_slabs_that_the_device_keeps_for_long() {
        let mut node = node_with_busy_device();
        let late = Nanos(1) + QUIESCE_MAX;
        let (next, free) = lease(&mut node, late);
        assert_eq!(free, 0);
        let grant = Request::Grant { lease: next, slab: 7 };
        assert_eq!(node.handle(&grant.to_bytes(), late).unwrap_err().kind, RefusalKind::NoRoom);
    }
}
