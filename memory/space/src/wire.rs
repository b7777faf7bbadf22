//! Messages between clients and nodes over remote calls: one method, with a request and a reply in postcard. Page data
//! is transferred by one-sided accesses instead.

use farcall_link::RemoteRegion;
use farcall_link::bootstrap::{QpInfo, Secret};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Encoding of the reply fields appended since the first version, all of them zero or empty.
const APPENDED: [u8; 2] = [0; 2];

/// The method of all requests.
pub const METHOD: u16 = 1;
/// Protocol version of this build. Later versions append fields and variants.
pub const VERSION: u16 = 1;
/// Maximum length of a client's name in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Maximum length of a volume's name in bytes.
pub const VOLUME_NAME_BYTES_MAX: usize = 64;
/// Maximum number of metadata bytes read by one call.
pub const METADATA_READ_BYTES_MAX: usize = 512 << 10;
/// Maximum number of metadata bytes written by one call.
pub const METADATA_WRITE_BYTES_MAX: usize = 8 << 10;
/// Maximum number of nodes of a volume.
pub const VOLUME_NODES_MAX: usize = 256;

/// Secret that identifies a lease and authorizes its holder.
pub type LeaseKey = Secret<[u8; 16]>;

/// Identifies a volume: named data that nodes retain when the lease of a mount has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRef {
    /// Name chosen by the user.
    pub name: String,
    /// Secret that authorizes the client.
    pub key: Secret<[u8; 16]>,
}

/// Membership view of a volume: the nodes that have its metadata, as determined by its mount. Views are ordered by
/// epoch, then by change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipView {
    /// Random identity of the volume, chosen at its creation.
    pub volume: u64,
    /// Epoch of the mount.
    pub epoch: u64,
    /// Sequence number of the view within the epoch.
    pub change: u32,
    /// All nodes that the mount claimed, or the members at the time when it added another one.
    pub nodes: Vec<u64>,
    /// The nodes of these that have all metadata.
    pub members: Vec<u64>,
}

impl MembershipView {
    /// Returns the key by which views are ordered.
    pub const fn age(&self) -> (u64, u32) {
        (self.epoch, self.change)
    }
}

/// State of a volume on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredVolume {
    /// Identifier of the node within the volume.
    pub node: u64,
    /// Highest claimed epoch.
    pub epoch: u64,
    /// Latest view; `None` if no mount has stored one.
    pub view: Option<MembershipView>,
    /// Length of the metadata area in bytes.
    pub metadata_bytes: u64,
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Requests a lease, under which slabs are granted.
    Lease {
        /// Protocol version of the client.
        version: u16,
        /// Name of the client, for display.
        name: String,
    },
    /// Requests queue pairs for one-sided access to all slabs of the lease. Earlier ones are closed first.
    Connect {
        /// Key of the lease.
        lease: LeaseKey,
        /// The client's queue pairs.
        pairs: Vec<QpInfo>,
    },
    /// Renews the lease. Every request that contains its key does the same.
    Renew {
        /// Key of the lease.
        lease: LeaseKey,
    },
    /// Requests a slab. A repeated request with the same number returns the same slab.
    Grant {
        /// Key of the lease.
        lease: LeaseKey,
        /// Number chosen by the client.
        slab: u64,
    },
    /// Returns a slab, which may already have been returned.
    Return {
        /// Key of the lease.
        lease: LeaseKey,
        /// Number chosen by the client.
        slab: u64,
    },
    /// Ends the lease with all its slabs.
    End {
        /// Key of the lease.
        lease: LeaseKey,
    },
    /// Requests the status of the node.
    Status,
    /// Starts or stops draining: a draining node grants no more slabs, and clients move their pages elsewhere.
    Drain {
        /// `true` to start.
        is_wanted: bool,
    },
    /// Requests the state of a volume.
    QueryVolume {
        /// Protocol version of the client.
        version: u16,
        /// Identifies the volume.
        volume: VolumeRef,
    },
    /// Requests a lease of a volume, which is created if it does not exist. Before the reply, an earlier mount loses
    /// its access: immediately over its queue pairs, and later also its keys.
    Claim {
        /// Identifies the volume.
        volume: VolumeRef,
        /// Name of the client, for display.
        name: String,
        /// Secret of this mount: while its lease is valid no other mount can claim the volume.
        holder: Secret<[u8; 16]>,
        /// New epoch, higher than all claimed ones.
        epoch: u64,
        /// Identifier of the node within the volume, used if it has none yet.
        node: u64,
        /// Length of the metadata area in bytes.
        metadata_bytes: u64,
    },
    /// Stores a membership view of the mount that holds the lease.
    StoreView {
        /// Key of the lease.
        lease: LeaseKey,
        /// The new view.
        view: MembershipView,
    },
    /// Reads bytes of metadata.
    ReadMetadata {
        /// Key of the lease.
        lease: LeaseKey,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes, at most [`METADATA_READ_BYTES_MAX`].
        len_bytes: u32,
    },
    /// Writes bytes of metadata, at most [`METADATA_WRITE_BYTES_MAX`].
    WriteMetadata {
        /// Key of the lease.
        lease: LeaseKey,
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Deletes a volume of which no lease exists.
    Forget {
        /// Identifies the volume.
        volume: VolumeRef,
    },
    /// Reports the redundancy of the address space of a lease, for display to operators.
    Report {
        /// Key of the lease.
        lease: LeaseKey,
        /// The redundancy.
        redundancy: Redundancy,
    },
    /// Like [`Request::Drain`], but clients leave even if fewer replicas remain than configured.
    DrainForced,
    /// Requests that all clients with leases read every replica of every page and repair wrong ones.
    Scrub,
}

/// Redundancy of a client's address space, and progress of its scrubs. Only slabs that were written to are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redundancy {
    /// Configured number of replicas per slab.
    pub replicas: u32,
    /// Number of slabs.
    pub slabs: u32,
    /// Slabs with fewer in-sync replicas than configured.
    pub degraded: u32,
    /// Slabs with a replica that is being copied.
    pub copying: u32,
    /// Slabs without a replica.
    pub lost: u32,
    /// Slabs that stay on this draining node because too few replicas would remain.
    pub held_back: u32,
    /// Completed scrubs of those requested at this node since the lease began.
    pub scrubs: u32,
    /// Pages read by the scrub in progress, or by the latest one.
    pub scrubbed: u64,
    /// Wrong replica pages repaired since the client started.
    pub repaired: u64,
}

/// Information from one of a node's lease holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderReport {
    /// Number of scrubs requested since the lease began.
    pub scrubs: u32,
    /// Latest report; `None` if the client sends none, like earlier versions.
    pub redundancy: Option<Redundancy>,
}

/// Reply of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Reply to [`Request::Lease`].
    Leased {
        /// Incarnation of the node: a different number after each start.
        incarnation: u64,
        /// Key of the lease.
        lease: LeaseKey,
        /// Duration of the lease without renewal, in milliseconds.
        term_ms: u32,
        /// Length of each slab in bytes.
        slab_bytes: u64,
        /// Capacity of the node.
        room: Room,
    },
    /// Reply to [`Request::Connect`]: the node's queue pairs, in the same order.
    Connected {
        /// The node's queue pairs.
        pairs: Vec<QpInfo>,
    },
    /// Reply to [`Request::Connect`] and [`Request::Grant`]: accesses over earlier queue pairs are in progress; repeat
    /// the request.
    Wait,
    /// Reply to [`Request::Grant`].
    Granted {
        /// Address and key of the slab.
        region: RemoteRegion,
        /// Remaining capacity.
        room: Room,
    },
    /// Reply to requests without a specific reply.
    Done {
        /// Capacity of the node.
        room: Room,
        /// For a request that names a lease: number of scrubs requested since the lease began.
        scrubs: u32,
    },
    /// Reply to [`Request::Status`].
    Status(NodeStatus),
    /// Reply to [`Request::QueryVolume`].
    VolumeState {
        /// `None` if the node does not have the volume.
        volume: Option<StoredVolume>,
    },
    /// Reply to [`Request::Claim`].
    Claimed {
        /// Key of the lease.
        lease: LeaseKey,
        /// Duration of the lease without renewal, in milliseconds.
        term_ms: u32,
        /// Length of each slab in bytes.
        slab_bytes: u64,
        /// Capacity of the node.
        room: Room,
        /// The metadata region.
        metadata: RemoteRegion,
        /// Slabs of the volume on this node, to be requested with [`Request::Grant`].
        slabs: Vec<u64>,
    },
    /// Reply to [`Request::ReadMetadata`].
    Metadata {
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// Capacity of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Number of donated slabs.
    pub slabs: u32,
    /// Number of slabs that are free.
    pub free: u32,
    /// `true` if the node is draining.
    pub is_draining: bool,
}

impl Room {
    /// Returns whether the node is draining by force: clients must leave even if fewer replicas remain, and the node
    /// donates no slabs.
    pub const fn is_forced(&self) -> bool {
        self.is_draining && self.slabs == 0
    }
}

/// Status of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Incarnation: a different number after each start.
    pub incarnation: u64,
    /// Length of each slab in bytes.
    pub slab_bytes: u64,
    /// Capacity of the node.
    pub room: Room,
    /// Number of leases that expired and were fenced.
    pub expired: u64,
    /// Lease holders.
    pub holders: Vec<Holder>,
    /// Volumes stored on the node.
    pub volumes: Vec<VolumeStatus>,
    /// Maximum number of volumes.
    pub volumes_max: u32,
    /// Maximum total length of their metadata in bytes.
    pub metadata_bytes_max: u64,
    /// Reports of the holders, in the order of `holders`.
    pub reports: Vec<HolderReport>,
    /// Memberships of the volumes, in the order of `volumes`. Empty if the node does not send them, like earlier
    /// versions.
    pub memberships: Vec<VolumeMembership>,
}

/// Membership of a volume by the latest view that a node has stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMembership {
    /// Number of nodes that the view names.
    pub nodes: u32,
    /// Number of these that have all metadata.
    pub members: u32,
    /// `true` if the node has all metadata. `false` if it is joining: the view is that of an earlier membership then.
    pub is_member: bool,
}

/// Status of a volume on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Name chosen by the user.
    pub name: String,
    /// Highest claimed epoch.
    pub epoch: u64,
    /// Number of its slabs on this node.
    pub slabs: u32,
    /// Length of its metadata in bytes, in addition to slabs.
    pub metadata_bytes: u64,
    /// `true` if a mount holds it.
    pub is_held: bool,
}

/// A lease holder of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Name of the client.
    pub name: String,
    /// Number of slabs.
    pub slabs: u32,
    /// Time until its lease expires without renewal, in milliseconds.
    pub left_ms: u32,
    /// `true` if it has queue pairs at this node.
    pub is_connected: bool,
}

/// Class of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The bytes are not a valid request.
    Malformed = 1,
    /// The protocol version is not supported.
    Version = 2,
    /// The lease does not exist: it expired, or the node was restarted.
    UnknownLease = 3,
    /// All slabs are granted.
    NoRoom = 4,
    /// The node is draining.
    Draining = 5,
    /// A limit of one client, or of all clients, is exceeded.
    Limit = 6,
    /// The device or the machine lacks resources.
    Resources = 7,
    /// Another mount holds the volume.
    Held = 8,
    /// The volume has another key or geometry.
    OtherVolume = 9,
    /// Another mount has claimed the volume in the meantime.
    Overtaken = 10,
}

impl RefusalKind {
    const ALL: [Self; 10] = [
        Self::Malformed,
        Self::Version,
        Self::UnknownLease,
        Self::NoRoom,
        Self::Draining,
        Self::Limit,
        Self::Resources,
        Self::Held,
        Self::OtherVolume,
        Self::Overtaken,
    ];

    /// Returns the class with a code; `None` if this version does not know it.
    pub fn of_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == code)
    }

    /// Creates a refusal of this class.
    pub fn because(self, reason: impl Into<String>) -> Refusal {
        Refusal { kind: self, reason: reason.into() }
    }
}

/// Refusal of a node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the memory node refuses ({kind:?}): {reason}")]
pub struct Refusal {
    /// Class, on which programs can act.
    pub kind: RefusalKind,
    /// Reason, for display.
    pub reason: String,
}

impl Request {
    /// Encodes the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Serialising plain data into a growing vector cannot fail.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes a request. Fields appended by a later version are ignored.
    ///
    /// # Errors
    /// Returns an error if the bytes are invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let parsed = postcard::take_from_bytes(bytes).map(|(request, _appended)| request);
        parsed.map_err(|error| RefusalKind::Malformed.because(format!("not a request: {error}")))
    }
}

impl Reply {
    /// Encodes the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Serialising plain data into a growing vector cannot fail.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes a reply. Fields appended by a later version are ignored, and those that an earlier version lacks are
    /// zero.
    ///
    /// # Errors
    /// Returns an error if the bytes are invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let take = |bytes| postcard::take_from_bytes(bytes).map(|(reply, _appended)| reply);
        let parsed = match take(bytes) {
            Err(postcard::Error::DeserializeUnexpectedEnd) => take(&[bytes, &APPENDED].concat()),
            parsed => parsed,
        };
        parsed.map_err(|error| RefusalKind::Malformed.because(format!("not a reply: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decodes_messages_and_ignores_appended_fields() {
        let lease = Secret([7; 16]);
        let request = Request::Grant { lease, slab: 9 };
        let bytes = [request.to_bytes(), b"more of 2".into()].concat();
        assert_eq!(Request::parse(&bytes), Ok(request));
        let region = RemoteRegion { addr: 4_096, len_bytes: 64, rkey: 5 };
        let reply = Reply::Granted { region, room: Room { slabs: 4, free: 3, is_draining: true } };
        assert_eq!(Reply::parse(&reply.to_bytes()), Ok(reply));
        assert_eq!(Request::parse(&[200]).unwrap_err().kind, RefusalKind::Malformed);
    }

    #[test]
    fn reads_the_status_of_a_node_of_the_first_version() {
        let status = NodeStatus { expired: 3, holders: vec![Holder::default()], ..NodeStatus::default() };
        let mut bytes = Reply::Status(status.clone()).to_bytes();
        for _ in 0..2 {
            assert_eq!(bytes.pop(), Some(0), "the last fields are the lists that were appended");
            assert_eq!(Reply::parse(&bytes), Ok(Reply::Status(status.clone())));
        }
        assert_eq!(Reply::parse(&bytes[..bytes.len() - 3]).unwrap_err().kind, RefusalKind::Malformed);
    }

    #[test]
    fn hides_lease_keys_and_keeps_refusal_codes() {
        let text = format!("{:?}", Request::End { lease: Secret([0xab; 16]) });
        assert!(text.contains("lease: ..") && !text.contains("171"), "{text}");
        let numbers = RefusalKind::ALL.map(|kind| kind as u16);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert!(RefusalKind::ALL.into_iter().all(|kind| RefusalKind::of_code(kind as u16) == Some(kind)));
        assert_eq!(RefusalKind::of_code(99), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::parse(&bytes);
            let _ = Reply::parse(&bytes);
        }
    }
}
