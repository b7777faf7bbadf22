//! A memory node: slabs of registered memory, granted under leases.
//!
//! A node is told of requests and of the time; it owns no thread, clock or socket. Each grant of a slab has a
//! registration, and so a key, of its own. Its memory is taken from the system when it is granted. When the grant ends,
//! the registration does: that waits until no access is under way, and refuses later ones; then the memory goes back,
//! and only then may the slab be granted again, as other memory, all zero, under another key.

mod lease;
mod server;
mod volume;

use std::collections::BTreeMap;
use std::time::Duration;

use farcall_link::bootstrap::{QpInfo, Secret};
use farcall_link::{Nic, Region};
use farcall_rpc::{Call, Handler, HandlerError};
use farcall_verbs::Nanos;

use crate::wire::{
    Holder, LeaseKey, METHOD, NAME_BYTES_MAX, NodeStatus, Refusal, RefusalKind, Reply, Request, Room,
};
use lease::{Connect, Lease};
pub use server::{MemoryServer, ServeError};
use volume::{Claim, Volume, Volumes, check_version};

/// What a node donates, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Bytes of each slab.
    pub slab_bytes: usize,
    /// How many there are. A node without any is a *witness*: it keeps notes and marks of volumes, and counts among the
    /// nodes of a volume as the others do.
    pub slabs: u32,
    /// How long a lease lasts without being renewed.
    pub term: Duration,
    /// Leases at once.
    pub leases_max: usize,
    /// Slabs of one lease.
    pub slabs_per_lease_max: u32,
    /// Queue pairs of one lease.
    pub pairs_max: usize,
    /// Volumes that are kept.
    pub volumes_max: u32,
    /// Bytes of their notes, beside slabs.
    pub notes_bytes_max: u64,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            slab_bytes: 64 << 20,
            slabs: 16,
            term: Duration::from_secs(10),
            leases_max: 64,
            slabs_per_lease_max: u32::MAX,
            pairs_max: 8,
            volumes_max: 16,
            notes_bytes_max: 512 << 20,
        }
    }
}

/// Bytes of the slabs of which a witness has none: no client wants longer ones.
const WITNESS_SLAB_BYTES: usize = 1 << 30;

impl NodeConfig {
    /// The same as a witness: it has no slabs.
    #[must_use]
    pub const fn witness(self) -> Self {
        Self { slab_bytes: WITNESS_SLAB_BYTES, slabs: 0, ..self }
    }
}

/// When to look again whether something that was closed is at rest.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A memory node.
pub struct Node {
    nic: Nic,
    config: NodeConfig,
    incarnation: u64,
    leases: BTreeMap<[u8; 16], Lease>,
    /// Ended, with queue pairs that are not at rest yet.
    ending: Vec<Lease>,
    volumes: Volumes,
    is_draining: bool,
    /// It wants its memory back also where clients keep fewer replicas then.
    is_drain_forced: bool,
    expired: u64,
    /// The latest time that it was told.
    now: Nanos,
}

impl Node {
    /// Donates memory on a device.
    pub fn new(nic: Nic, config: NodeConfig, incarnation: u64) -> Self {
        let (leases, ending, volumes) = (BTreeMap::new(), Vec::new(), Volumes::new());
        Self {
            nic,
            config,
            incarnation,
            leases,
            ending,
            volumes,
            is_draining: false,
            is_drain_forced: false,
            expired: 0,
            now: Nanos(0),
        }
    }

    /// Answers a request. Foreign bytes: whatever they are, they cost no more than the limits say.
    ///
    /// # Errors
    /// Why not.
    pub fn handle(&mut self, request: &[u8], now: Nanos) -> Result<Reply, Refusal> {
        // Who comes too late is refused, whether or not somebody looked at the time since.
        self.tick(now);
        match Request::parse(request)? {
            Request::Lease { version, name } => self.lease(version, name, now),
            Request::Connect { lease, pairs } => self.connect(&lease, &pairs, now),
            Request::Renew { lease } => {
                let scrubs = self.renewed(&lease, now)?.report.scrubs;
                Ok(Reply::Done { room: self.room(), scrubs })
            }
            Request::Grant { lease, slab } => self.grant(&lease, slab, now),
            Request::Return { lease, slab } => {
                // Its registration ends here.
                drop(self.renewed(&lease, now)?.slabs.remove(&slab));
                self.give_up(&lease, slab);
                Ok(self.done())
            }
            Request::End { lease } => {
                self.renewed(&lease, now)?;
                self.end(&lease.0, "its client gave it back");
                Ok(self.done())
            }
            Request::Status => Ok(Reply::Status(self.status(now))),
            Request::Drain { is_wanted } => Ok(self.drain(is_wanted, false)),
            Request::DrainForced => Ok(self.drain(true, true)),
            Request::Report { lease, redundancy } => {
                let report = &mut self.renewed(&lease, now)?.report;
                report.redundancy = Some(redundancy);
                let scrubs = report.scrubs;
                Ok(Reply::Done { room: self.room(), scrubs })
            }
            Request::Scrub => {
                self.leases.values_mut().for_each(|lease| lease.report.scrubs += 1);
                Ok(self.done())
            }
            Request::Look { version, volume } => self.look(version, &volume),
            Request::Claim { volume, name, holder, epoch, node, notes_bytes } => {
                self.claim(Claim { volume, name, holder, epoch, node, notes_bytes }, now)
            }
            Request::Mark { lease, mark } => self.mark(&lease, mark, now),
            Request::ReadNotes { lease, offset, len_bytes } => {
                self.read_notes(&lease, offset, len_bytes, now)
            }
            Request::WriteNotes { lease, offset, bytes } => self.write_notes(&lease, offset, &bytes, now),
            Request::Forget { volume } => self.forget(&volume),
        }
    }

    /// Ends what has expired, and lets go of what is at rest. Returns when to come again, if not before.
    pub fn tick(&mut self, now: Nanos) -> Option<Nanos> {
        self.now = now;
        while let Some(key) = self.leases.iter().find(|(_, lease)| lease.until <= now).map(|(key, _)| *key) {
            self.expired += 1;
            self.end(&key, "it expired");
        }
        self.ending.retain_mut(|lease| !lease.is_at_rest());
        let is_busy = self.volumes.values_mut().fold(false, |is_busy, volume| volume.tick() | is_busy);
        let look = (is_busy || !self.ending.is_empty()).then(|| now + LOOK_AGAIN);
        Nanos::earlier(look, self.leases.values().map(|lease| lease.until).min())
    }

    /// How it stands.
    pub fn status(&self, now: Nanos) -> NodeStatus {
        let holder = |lease: &Lease| Holder {
            name: lease.name.clone(),
            slabs: lease.slabs.len() as u32,
            left_ms: lease.until.since(now).as_millis() as u32,
            is_connected: lease.is_connected(),
        };
        NodeStatus {
            incarnation: self.incarnation,
            slab_bytes: self.config.slab_bytes as u64,
            room: Room { slabs: self.config.slabs, ..self.room() },
            expired: self.expired,
            holders: self.leases.values().map(holder).collect(),
            volumes: self.volume_statuses(),
            volumes_max: self.config.volumes_max,
            notes_bytes_max: self.config.notes_bytes_max,
            reports: self.leases.values().map(|lease| lease.report).collect(),
        }
    }

    fn drain(&mut self, is_wanted: bool, is_forced: bool) -> Reply {
        if (self.is_draining, self.is_drain_forced) != (is_wanted, is_forced) {
            let leases = self.leases.len();
            tracing::info!(is_draining = is_wanted, is_forced, leases, "the request to drain has changed");
        }
        (self.is_draining, self.is_drain_forced) = (is_wanted, is_forced);
        self.done()
    }

    /// The memory of granted slabs, with their holders' names: for tests that damage it.
    pub fn granted(&self) -> impl Iterator<Item = (&str, &Region)> {
        self.leases.values().flat_map(|lease| lease.slabs.values().map(|slab| (&*lease.name, slab)))
    }

    fn room(&self) -> Room {
        let granted: u32 = self.leases.values().map(|lease| lease.slabs.len() as u32).sum();
        let aside: u32 = self.ending.iter().map(|lease| lease.kept_aside(self.now)).sum();
        let left: u32 = self.volumes.values().map(|volume| volume.slabs_left(self.now)).sum();
        let free = self.config.slabs.saturating_sub(granted + aside + left);
        let slabs = if self.is_drain_forced { 0 } else { self.config.slabs };
        Room { slabs, free, is_draining: self.is_draining }
    }

    /// Slabs that count as free, and that cannot be granted before the device is at rest.
    fn expected_back(&self) -> u32 {
        let ending = self.ending.iter().map(|lease| lease.expected_back(self.now));
        ending.chain(self.volumes.values().map(|volume| volume.expected_back(self.now))).sum()
    }

    fn done(&self) -> Reply {
        Reply::Done { room: self.room(), scrubs: 0 }
    }

    fn lease(&mut self, version: u16, name: String, now: Nanos) -> Result<Reply, Refusal> {
        check_version(version)?;
        if self.is_draining {
            return Err(RefusalKind::Draining.because("it wants its memory back; use another node"));
        }
        self.check_new_lease(&name)?;
        let key = self.random()?;
        let lease = Lease::new(name, &self.nic, now + self.config.term)
            .map_err(|error| RefusalKind::Resources.because(error.to_string()))?;
        tracing::info!(client = ?lease.name, leases = self.leases.len() + 1, "a lease begins");
        self.leases.insert(key, lease);
        Ok(Reply::Leased {
            incarnation: self.incarnation,
            lease: Secret(key),
            term_ms: self.config.term.as_millis() as u32,
            slab_bytes: self.config.slab_bytes as u64,
            room: self.room(),
        })
    }

    /// Whether there may be one more, of a client that calls itself so.
    fn check_new_lease(&self, name: &str) -> Result<(), Refusal> {
        if name.len() > NAME_BYTES_MAX {
            let why = format!("a name of {} bytes; at most {NAME_BYTES_MAX}", name.len());
            return Err(RefusalKind::Limit.because(why));
        }
        let of_volumes: usize = self.volumes.values().map(Volume::leases_over).sum();
        if self.leases.len() + self.ending.len() + of_volumes >= self.config.leases_max {
            let why = format!("{} leases are held; end one, or use another node", self.config.leases_max);
            return Err(RefusalKind::Limit.because(why));
        }
        Ok(())
    }

    fn random(&self) -> Result<[u8; 16], Refusal> {
        self.nic.entropy.bytes().map_err(|error| {
            RefusalKind::Resources.because(format!("the system gives no random number: {error}"))
        })
    }

    /// A lease, for another term.
    fn renewed(&mut self, key: &LeaseKey, now: Nanos) -> Result<&mut Lease, Refusal> {
        let lease = self.leases.get_mut(&key.0).ok_or_else(|| {
            let why = "it expired, or the node was started again; what was there is gone: take a new one";
            RefusalKind::UnknownLease.because(why)
        })?;
        lease.until = now + self.config.term;
        Ok(lease)
    }

    fn connect(&mut self, key: &LeaseKey, pairs: &[QpInfo], now: Nanos) -> Result<Reply, Refusal> {
        let max = self.config.pairs_max;
        if pairs.is_empty() || pairs.len() > max {
            let why = format!("{} queue pairs; from 1 to {max}", pairs.len());
            return Err(RefusalKind::Limit.because(why));
        }
        match self.renewed(key, now)?.connect(pairs) {
            Ok(Connect::Connected(pairs)) => Ok(Reply::Connected { pairs }),
            Ok(Connect::Wait) => Ok(Reply::Wait),
            Err(error) => Err(RefusalKind::Resources.because(error.to_string())),
        }
    }

    fn grant(&mut self, key: &LeaseKey, slab: u64, now: Nanos) -> Result<Reply, Refusal> {
        let (room, config) = (self.room(), self.config);
        if let Some(region) = self.renewed(key, now)?.slabs.get(&slab) {
            return Ok(Reply::Granted { region: region.remote(), room });
        }
        if let Some(granted) = self.regrant(key, slab)? {
            return Ok(granted);
        }
        if room.is_draining {
            return Err(RefusalKind::Draining.because("it wants its memory back; use another node"));
        }
        if room.free == 0 {
            let why = format!("all {} slabs are granted; use another node", room.slabs);
            return Err(RefusalKind::NoRoom.because(why));
        }
        let expected_back = self.expected_back();
        let (max, lease) = (config.slabs_per_lease_max, self.renewed(key, now)?);
        if lease.slabs.len() as u64 >= u64::from(max) {
            return Err(RefusalKind::Limit.because(format!("a client may have {max} slabs")));
        }
        if room.free <= expected_back {
            return Ok(Reply::Wait);
        }
        let granted = lease.grant(slab, config.slab_bytes);
        let region = granted.map_err(|error| RefusalKind::Resources.because(error.to_string()))?;
        Ok(Reply::Granted { region, room: self.room() })
    }

    /// Fences a lease: its queue pairs are closed, its registrations end, but for those of a volume.
    fn end(&mut self, key: &[u8; 16], why: &str) {
        let Some(mut lease) = self.leases.remove(key) else { return };
        tracing::info!(client = ?lease.name, slabs = lease.slabs.len(), "a lease ended: {why}");
        if lease.volume.is_some() {
            lease.disconnect_for_good(self.now);
            self.keep(lease);
        } else {
            lease.end(self.now);
            self.ending.push(lease);
        }
    }
}

impl Handler for Node {
    fn handle(&mut self, call: &Call<'_>, reply: &mut farcall_rpc::Reply<'_>) -> Result<(), HandlerError> {
        if call.method() != METHOD {
            return Err(HandlerError::unknown_method(call.method()));
        }
        match Self::handle(self, call.payload(), call.arrived()) {
            Ok(answer) => {
                reply.extend_from_slice(&answer.to_bytes());
                Ok(())
            }
            Err(refusal) => {
                tracing::debug!("refused a wish: {}", refusal.reason);
                Err(HandlerError::new(refusal.kind as u16, refusal.reason))
            }
        }
    }
}
