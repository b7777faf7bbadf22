//! A memory node: slabs of registered memory, granted under leases.
//!
//! A node receives requests and the time; it owns no thread, clock or socket. Each grant of a slab has its own
//! registration and key, in memory that is allocated at the grant. When a grant ends, its registration is revoked:
//! that waits for accesses in progress and rejects later ones. Then the memory is returned to the kernel, and only
//! then may the slab be granted again, in new memory of zeros and under another key.

mod lease;
mod server;
mod volume;

use std::collections::BTreeMap;
use std::time::Duration;

use farcall_link::bootstrap::{QpInfo, Secret};
use farcall_link::{Nic, Region};
use farcall_rpc::{Call, Handler, HandlerError};
use farcall_verbs::{Nanos, with_sources};

use crate::wire::{
    Holder, LeaseKey, METHOD, NAME_BYTES_MAX, NodeStatus, Refusal, RefusalKind, Reply, Request, Room,
};
use lease::{Connect, Lease};
pub use server::{MemoryServer, ServeError};
use volume::{Claim, Volume, Volumes, check_version};

/// Memory donated by a node, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Length of each slab in bytes.
    pub slab_bytes: usize,
    /// Number of slabs. A node without slabs is a *witness*: it stores metadata and membership views of volumes, and
    /// counts as a node of a volume like the others.
    pub slabs: u32,
    /// Duration of a lease without renewal.
    pub term: Duration,
    /// Maximum number of leases.
    pub leases_max: usize,
    /// Maximum number of slabs per lease.
    pub slabs_per_lease_max: u32,
    /// Maximum number of queue pairs per lease.
    pub pairs_max: usize,
    /// Maximum number of volumes.
    pub volumes_max: u32,
    /// Maximum total length in bytes of the metadata of volumes, in addition to slabs.
    pub metadata_bytes_max: u64,
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
            metadata_bytes_max: 512 << 20,
        }
    }
}

/// Slab length that a witness announces in bytes. It has no slabs, so it announces the maximum, which suits every
/// client.
const WITNESS_SLAB_BYTES: usize = 1 << 30;

impl NodeConfig {
    /// Returns the configuration of a witness, without slabs.
    #[must_use]
    pub const fn witness(self) -> Self {
        Self { slab_bytes: WITNESS_SLAB_BYTES, slabs: 0, ..self }
    }
}

/// Interval between checks whether closed queue pairs are quiesced.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A memory node.
pub struct Node {
    nic: Nic,
    config: NodeConfig,
    incarnation: u64,
    leases: BTreeMap<[u8; 16], Lease>,
    /// Ended leases whose queue pairs are not quiesced.
    ending: Vec<Lease>,
    volumes: Volumes,
    is_draining: bool,
    /// `true` if clients must leave the node even if fewer replicas remain than configured.
    is_drain_forced: bool,
    expired: u64,
    /// Latest time received.
    now: Nanos,
}

impl Node {
    /// Creates a node that donates memory of a device.
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

    /// Handles a request. It is untrusted input: whatever it contains, its cost is bounded by the limits.
    ///
    /// # Errors
    /// Returns the reason of the refusal.
    pub fn handle(&mut self, request: &[u8], now: Nanos) -> Result<Reply, Refusal> {
        // An expired lease is rejected even if no tick occurred since it expired.
        self.tick(now);
        match Request::parse(request)? {
            Request::Lease { version, name } => self.lease(version, name, now),
            Request::Connect { lease, pairs } => self.connect(&lease, &pairs, now),
            Request::Renew { lease } => {
                let scrubs = self.renew(&lease, now)?.report.scrubs;
                Ok(Reply::Done { room: self.room(), scrubs })
            }
            Request::Grant { lease, slab } => self.grant(&lease, slab, now),
            Request::Return { lease, slab } => {
                // Dropping the slab ends its registration.
                drop(self.renew(&lease, now)?.slabs.remove(&slab));
                self.discard_slab(&lease, slab);
                Ok(self.done())
            }
            Request::End { lease } => {
                self.renew(&lease, now)?;
                self.end(&lease.0, "its client gave it back");
                Ok(self.done())
            }
            Request::Status => Ok(Reply::Status(self.status(now))),
            Request::Drain { is_wanted } => Ok(self.drain(is_wanted, false)),
            Request::DrainForced => Ok(self.drain(true, true)),
            Request::Report { lease, redundancy } => {
                let report = &mut self.renew(&lease, now)?.report;
                report.redundancy = Some(redundancy);
                let scrubs = report.scrubs;
                Ok(Reply::Done { room: self.room(), scrubs })
            }
            Request::Scrub => {
                self.leases.values_mut().for_each(|lease| lease.report.scrubs += 1);
                Ok(self.done())
            }
            Request::QueryVolume { version, volume } => self.query_volume(version, &volume),
            Request::Claim { volume, name, holder, epoch, node, metadata_bytes } => {
                self.claim(Claim { volume, name, holder, epoch, node, metadata_bytes }, now)
            }
            Request::StoreView { lease, view } => self.store_view(&lease, view, now),
            Request::ReadMetadata { lease, offset, len_bytes } => {
                self.read_metadata(&lease, offset, len_bytes, now)
            }
            Request::WriteMetadata { lease, offset, bytes } => {
                self.write_metadata(&lease, offset, &bytes, now)
            }
            Request::Forget { volume } => self.forget(&volume),
        }
    }

    /// Ends expired leases and releases quiesced resources. Returns the time of the next call, if one is needed
    /// without a request.
    pub fn tick(&mut self, now: Nanos) -> Option<Nanos> {
        self.now = now;
        while let Some(key) = self.leases.iter().find(|(_, lease)| lease.until <= now).map(|(key, _)| *key) {
            self.expired += 1;
            self.end(&key, "it expired");
        }
        self.ending.retain_mut(|lease| !lease.is_quiesced());
        let is_busy = self.volumes.values_mut().fold(false, |is_busy, volume| volume.tick() | is_busy);
        let next_check = (is_busy || !self.ending.is_empty()).then(|| now + CHECK_INTERVAL);
        Nanos::earlier(next_check, self.leases.values().map(|lease| lease.until).min())
    }

    /// Returns the status of the node.
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
            metadata_bytes_max: self.config.metadata_bytes_max,
            reports: self.leases.values().map(|lease| lease.report).collect(),
            memberships: self.volumes.values().map(Volume::membership).collect(),
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

    /// Returns the memory of granted slabs with the names of their holders, for tests that damage it.
    pub fn granted(&self) -> impl Iterator<Item = (&str, &Region)> {
        self.leases.values().flat_map(|lease| lease.slabs.values().map(|slab| (&*lease.name, slab)))
    }

    fn room(&self) -> Room {
        let granted: u32 = self.leases.values().map(|lease| lease.slabs.len() as u32).sum();
        let retained: u32 = self.ending.iter().map(|lease| lease.retained_slabs(self.now)).sum();
        let left: u32 = self.volumes.values().map(|volume| volume.slabs_left(self.now)).sum();
        let free = self.config.slabs.saturating_sub(granted + retained + left);
        let slabs = if self.is_drain_forced { 0 } else { self.config.slabs };
        Room { slabs, free, is_draining: self.is_draining }
    }

    /// Returns the number of slabs that count as free but cannot be granted before the device is quiesced.
    fn releasing_slabs(&self) -> u32 {
        let ending = self.ending.iter().map(|lease| lease.releasing_slabs(self.now));
        ending.chain(self.volumes.values().map(|volume| volume.releasing_slabs(self.now))).sum()
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
            .map_err(|error| RefusalKind::Resources.because(with_sources(&error)))?;
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

    /// Checks whether a client named `name` may have another lease.
    fn check_new_lease(&self, name: &str) -> Result<(), Refusal> {
        if name.len() > NAME_BYTES_MAX {
            let why = format!("a name of {} bytes; at most {NAME_BYTES_MAX}", name.len());
            return Err(RefusalKind::Limit.because(why));
        }
        let of_volumes: usize = self.volumes.values().map(Volume::extra_leases).sum();
        if self.leases.len() + self.ending.len() + of_volumes >= self.config.leases_max {
            let why = format!("{} leases are held; end one, or use another node", self.config.leases_max);
            return Err(RefusalKind::Limit.because(why));
        }
        Ok(())
    }

    fn random(&self) -> Result<[u8; 16], Refusal> {
        self.nic.entropy().bytes().map_err(|error| {
            RefusalKind::Resources.because(format!("the system gives no random number: {error}"))
        })
    }

    /// Renews a lease and returns it.
    fn renew(&mut self, key: &LeaseKey, now: Nanos) -> Result<&mut Lease, Refusal> {
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
        match self.renew(key, now)?.connect(pairs) {
            Ok(Connect::Connected(pairs)) => Ok(Reply::Connected { pairs }),
            Ok(Connect::Wait) => Ok(Reply::Wait),
            Err(error) => Err(RefusalKind::Resources.because(with_sources(&error))),
        }
    }

    fn grant(&mut self, key: &LeaseKey, slab: u64, now: Nanos) -> Result<Reply, Refusal> {
        let (room, config) = (self.room(), self.config);
        if let Some(region) = self.renew(key, now)?.slabs.get(&slab) {
            return Ok(Reply::Granted { region: region.remote(), room });
        }
        if let Some(granted) = self.adopt_slab(key, slab)? {
            return Ok(granted);
        }
        if room.is_draining {
            return Err(RefusalKind::Draining.because("it wants its memory back; use another node"));
        }
        if room.free == 0 {
            let why = format!("all {} slabs are granted; use another node", room.slabs);
            return Err(RefusalKind::NoRoom.because(why));
        }
        let releasing_slabs = self.releasing_slabs();
        let (max, lease) = (config.slabs_per_lease_max, self.renew(key, now)?);
        if lease.slabs.len() as u64 >= u64::from(max) {
            return Err(RefusalKind::Limit.because(format!("a client may have {max} slabs")));
        }
        if room.free <= releasing_slabs {
            return Ok(Reply::Wait);
        }
        let granted = lease.grant(slab, config.slab_bytes);
        let region = granted.map_err(|error| RefusalKind::Resources.because(with_sources(&error)))?;
        Ok(Reply::Granted { region, room: self.room() })
    }

    /// Fences a lease: closes its queue pairs and ends its registrations, except for the slabs and the metadata of a
    /// volume.
    fn end(&mut self, key: &[u8; 16], why: &str) {
        let Some(mut lease) = self.leases.remove(key) else { return };
        tracing::info!(client = ?lease.name, slabs = lease.slabs.len(), "a lease ended: {why}");
        if lease.volume.is_some() {
            lease.disconnect_ended(self.now);
            self.retain_lease(lease);
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
