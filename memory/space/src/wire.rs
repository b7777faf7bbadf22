//! What clients and nodes say to each other over remote calls: one method, a request and a reply in postcard. Data never
//! goes this way.

use farcall_link::RemoteRegion;
use farcall_link::bootstrap::{QpInfo, Secret};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The fields of a reply that versions since the first have appended, all of them zero or empty.
const APPENDED: [u8; 1] = [0];

/// The method of all requests.
pub const METHOD: u16 = 1;
/// The version that this build speaks. Later ones append fields and variants.
pub const VERSION: u16 = 1;
/// The longest name of a client.
pub const NAME_BYTES_MAX: usize = 64;

/// The longest name of a volume.
pub const VOLUME_NAME_BYTES_MAX: usize = 64;
/// Bytes of notes that are read by one call.
pub const NOTES_READ_BYTES_MAX: usize = 512 << 10;
/// Bytes of notes that are written by one call.
pub const NOTES_WRITE_BYTES_MAX: usize = 8 << 10;
/// Nodes of one volume.
pub const VOLUME_NODES_MAX: usize = 256;

/// What names a lease, and proves that it is one's own.
pub type LeaseKey = Secret<[u8; 16]>;

/// A volume: what nodes keep under a name when the lease of its mount has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRef {
    /// What people call it.
    pub name: String,
    /// Proves that it is one's own.
    pub key: Secret<[u8; 16]>,
}

/// Which nodes have the notes of a volume, as its mount saw it. The newer of two has the higher epoch, then the higher
/// change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Of this volume and no other: drawn when it was made.
    pub volume: u64,
    /// Of the mount.
    pub epoch: u64,
    /// Counts marks of the mount.
    pub change: u32,
    /// All nodes that the mount claimed, or the members when it took another one in.
    pub nodes: Vec<u64>,
    /// Of these, those that have all notes.
    pub members: Vec<u64>,
}

impl Mark {
    /// What orders marks.
    pub const fn age(&self) -> (u64, u32) {
        (self.epoch, self.change)
    }
}

/// What a node keeps of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// What the volume calls the node.
    pub node: u64,
    /// The highest that was claimed.
    pub epoch: u64,
    /// The last one; none if no mount came so far.
    pub mark: Option<Mark>,
    /// Room for notes.
    pub notes_bytes: u64,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A lease, under which slabs are granted.
    Lease {
        /// What the client speaks.
        version: u16,
        /// What it calls itself, for people.
        name: String,
    },
    /// Queue pairs, for one-sided access to all slabs of the lease. Earlier ones are closed first.
    Connect {
        /// Which lease.
        lease: LeaseKey,
        /// The client's ends.
        pairs: Vec<QpInfo>,
    },
    /// The lease for another term. Every request that names it does the same.
    Renew {
        /// Which lease.
        lease: LeaseKey,
    },
    /// A slab. Asking again for the same number brings the same slab.
    Grant {
        /// Which lease.
        lease: LeaseKey,
        /// What the client calls it.
        slab: u64,
    },
    /// A slab is given back; it may be gone already.
    Return {
        /// Which lease.
        lease: LeaseKey,
        /// What the client calls it.
        slab: u64,
    },
    /// The lease ends, with all its slabs.
    End {
        /// Which lease.
        lease: LeaseKey,
    },
    /// How the node stands.
    Status,
    /// Whether the node wants its memory back: nothing more is granted, and clients move their pages elsewhere.
    Drain {
        /// Whether it does.
        is_wanted: bool,
    },
    /// What the node keeps of a volume.
    Look {
        /// What the client speaks.
        version: u16,
        /// Which volume.
        volume: VolumeRef,
    },
    /// A lease of a volume, which is made if there is none. What an earlier mount had of it, it has no more, before
    /// this is answered: queue pairs, and by and by keys.
    Claim {
        /// Which volume.
        volume: VolumeRef,
        /// What the client calls itself, for people.
        name: String,
        /// Of this mount: while its lease lasts nobody else claims the volume.
        holder: Secret<[u8; 16]>,
        /// Higher than any that was claimed.
        epoch: u64,
        /// What the volume is to call the node, if it has no name for it.
        node: u64,
        /// Room for notes.
        notes_bytes: u64,
    },
    /// A mark of the mount that has the lease.
    Mark {
        /// Which lease.
        lease: LeaseKey,
        /// From now on.
        mark: Mark,
    },
    /// Bytes of notes.
    ReadNotes {
        /// Which lease.
        lease: LeaseKey,
        /// Where they begin.
        offset: u64,
        /// At most [`NOTES_READ_BYTES_MAX`].
        len_bytes: u32,
    },
    /// Other bytes of notes, at most [`NOTES_WRITE_BYTES_MAX`].
    WriteNotes {
        /// Which lease.
        lease: LeaseKey,
        /// Where they begin.
        offset: u64,
        /// What is to be there.
        bytes: Vec<u8>,
    },
    /// A volume that nobody has a lease of is kept no longer.
    Forget {
        /// Which volume.
        volume: VolumeRef,
    },
    /// How redundant the address space of a lease is, to be shown to operators.
    Report {
        /// Which lease.
        lease: LeaseKey,
        /// How redundant it is.
        redundancy: Redundancy,
    },
    /// As [`Request::Drain`], and clients leave also where fewer replicas stay than they are configured for.
    DrainForced,
    /// All clients that hold leases are to read every replica of every page, and to repair those that are wrong.
    Scrub,
}

/// How redundant the address space of a client is, and how far its checks are. Slabs are those that were written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redundancy {
    /// Replicas that each slab is to have.
    pub replicas: u32,
    /// Slabs.
    pub slabs: u32,
    /// Slabs with fewer replicas in sync than that.
    pub degraded: u32,
    /// Slabs with a replica that is being made.
    pub copying: u32,
    /// Slabs without a replica.
    pub lost: u32,
    /// Slabs on this node, which wants its memory back, that stay there: too few replicas would be left.
    pub held_back: u32,
    /// Scrubs that were requested at this node since the lease began, and are complete.
    pub scrubs: u32,
    /// Pages that the scrub in progress, or the latest one, of those has read.
    pub scrubbed: u64,
    /// Wrong pages of replicas that were repaired since the client began.
    pub repaired: u64,
}

/// What a node knows from one of its holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderReport {
    /// Scrubs that were requested since the lease began.
    pub scrubs: u32,
    /// The latest report; `None` if its client sends none, as earlier versions do.
    pub redundancy: Option<Redundancy>,
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Lease`].
    Leased {
        /// The node's incarnation: another number after each start.
        incarnation: u64,
        /// The lease.
        lease: LeaseKey,
        /// How long it lasts without being renewed.
        term_ms: u32,
        /// Bytes of each slab.
        slab_bytes: u64,
        /// How much there is.
        room: Room,
    },
    /// To [`Request::Connect`]: the node's ends, in the same order.
    Connected {
        /// The node's ends.
        pairs: Vec<QpInfo>,
    },
    /// To [`Request::Connect`] and [`Request::Grant`]: something of earlier queue pairs is under way; ask again.
    Wait,
    /// To [`Request::Grant`].
    Granted {
        /// Where it is, and its key.
        region: RemoteRegion,
        /// How much is left.
        room: Room,
    },
    /// To what has no answer of its own.
    Done {
        /// How much there is.
        room: Room,
        /// To a request that names a lease: scrubs that were requested since it began.
        scrubs: u32,
    },
    /// To [`Request::Status`].
    Status(NodeStatus),
    /// To [`Request::Look`].
    Looked {
        /// Nothing, if it keeps no such volume.
        kept: Option<Kept>,
    },
    /// To [`Request::Claim`].
    Claimed {
        /// The lease.
        lease: LeaseKey,
        /// How long it lasts without being renewed.
        term_ms: u32,
        /// Bytes of each slab.
        slab_bytes: u64,
        /// How much there is.
        room: Room,
        /// The notes.
        notes: RemoteRegion,
        /// The slabs that it keeps of the volume; granted by [`Request::Grant`].
        slabs: Vec<u64>,
    },
    /// To [`Request::ReadNotes`].
    Notes {
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// How much a node can still grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Slabs that it donates.
    pub slabs: u32,
    /// Of these, granted to nobody.
    pub free: u32,
    /// It wants its memory back.
    pub is_draining: bool,
}

impl Room {
    /// Whether the node wants its memory back also where clients keep fewer replicas then: it donates nothing any more.
    pub const fn is_forced(&self) -> bool {
        self.is_draining && self.slabs == 0
    }
}

/// How a node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Another number after each start.
    pub incarnation: u64,
    /// Bytes of each slab.
    pub slab_bytes: u64,
    /// How much there is.
    pub room: Room,
    /// Leases that expired so far, and so were fenced.
    pub expired: u64,
    /// Who holds slabs.
    pub holders: Vec<Holder>,
    /// Volumes that it keeps.
    pub volumes: Vec<VolumeStatus>,
    /// How many it keeps at most.
    pub volumes_max: u32,
    /// Bytes of notes of all of them, at most.
    pub notes_bytes_max: u64,
    /// What is known from the holders, in their order.
    pub reports: Vec<HolderReport>,
}

/// A volume that a node keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// What people call it.
    pub name: String,
    /// The highest that was claimed.
    pub epoch: u64,
    /// Slabs of it here.
    pub slabs: u32,
    /// Memory for its notes, beside slabs.
    pub notes_bytes: u64,
    /// Whether a mount has it.
    pub is_held: bool,
}

/// Who holds slabs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// What it calls itself.
    pub name: String,
    /// How many.
    pub slabs: u32,
    /// When its lease expires if it is not renewed.
    pub left_ms: u32,
    /// Whether it has queue pairs here.
    pub is_connected: bool,
}

/// Why a node does not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The bytes are no request.
    Malformed = 1,
    /// Another version.
    Version = 2,
    /// There is no such lease: it expired, or the node was started again.
    UnknownLease = 3,
    /// All slabs are granted.
    NoRoom = 4,
    /// The node wants its memory back.
    Draining = 5,
    /// More than one client, or all of them, may have.
    Limit = 6,
    /// The device, or the machine, has no more.
    Resources = 7,
    /// Another mount has the volume.
    Held = 8,
    /// The volume has another key, or another shape.
    OtherVolume = 9,
    /// Another mount claimed the volume meanwhile.
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

    /// That of a number; `None` if this version knows none.
    pub fn of_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == code)
    }

    /// A refusal with its reason.
    pub fn because(self, reason: impl Into<String>) -> Refusal {
        Refusal { kind: self, reason: reason.into() }
    }
}

/// Why a node refuses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the memory node refuses ({kind:?}): {reason}")]
pub struct Refusal {
    /// The class: what a program decides by.
    pub kind: RefusalKind,
    /// The reason, for people.
    pub reason: String,
}

impl Request {
    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Vectors grow: serialising plain data into one cannot fail.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Reads one. What a later version appended is ignored.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let parsed = postcard::take_from_bytes(bytes).map(|(request, _appended)| request);
        parsed.map_err(|error| RefusalKind::Malformed.because(format!("not a request: {error}")))
    }
}

impl Reply {
    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        // As above.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Reads one. What a later version appended is ignored, and what an earlier one lacks is zero.
    ///
    /// # Errors
    /// If the bytes are none.
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
    fn requests_and_replies_travel_and_appended_fields_are_ignored() {
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
        assert_eq!(bytes.pop(), Some(0), "the last field is the list that was appended");
        assert_eq!(Reply::parse(&bytes), Ok(Reply::Status(status)));
        assert_eq!(Reply::parse(&bytes[..bytes.len() - 2]).unwrap_err().kind, RefusalKind::Malformed);
    }

    #[test]
    fn a_lease_is_not_printed_and_refusals_keep_their_numbers() {
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
