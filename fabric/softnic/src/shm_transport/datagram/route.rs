//! Route of a datagram, from which the receiver builds the route header. It follows the payload unless it is the
//! default.

use farcall_shm::ring::Record;
use farcall_verbs::{AhAttr, Gid};

use super::GRH_BYTES;
use super::grh::grh;
use crate::process::GidTable;

/// Record flag: a route follows the payload. Without the flag the route is the default.
pub(super) const WITH_ROUTE: u8 = 1 << 2;

/// Traffic class, and the GID table indices of source and destination.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Route {
    traffic_class: u8,
    /// Index of the source in the lower half, of the destination in the upper half.
    gid_indices: u8,
}

impl Route {
    pub(super) const BYTES: usize = 2;

    /// Returns the route of a path on a host with this GID table.
    pub(crate) fn of(table: &GidTable, path: &AhAttr) -> Self {
        let destination = table.position(path.dgid).unwrap_or(0);
        let gid_indices = path.sgid_index & 0xF | (destination as u8) << 4;
        Self { traffic_class: path.traffic_class, gid_indices }
    }

    /// Returns the number of bytes that it occupies in a record.
    #[inline]
    pub(super) fn len_bytes(self) -> usize {
        if self == Self::default() { 0 } else { Self::BYTES }
    }

    pub(super) const fn to_bytes(self) -> [u8; Self::BYTES] {
        [self.traffic_class, self.gid_indices]
    }

    pub(super) const fn from_bytes([traffic_class, gid_indices]: [u8; Self::BYTES]) -> Self {
        Self { traffic_class, gid_indices }
    }

    /// Returns the number of bytes after the record's payload that contain the route.
    pub(super) const fn bytes_of(record: &Record) -> usize {
        if record.flags & WITH_ROUTE != 0 { Self::BYTES } else { 0 }
    }

    /// Returns the header that precedes `len_bytes` of payload.
    pub(super) fn header(self, table: &GidTable, len_bytes: usize, has_immediate: bool) -> [u8; GRH_BYTES] {
        let gid = |index: u8| match table.get(usize::from(index)) {
            gid if gid == Gid::default() => table.get(0),
            gid => gid,
        };
        let (source, destination) = (gid(self.gid_indices & 0xF), gid(self.gid_indices >> 4));
        grh(source, destination, self.traffic_class, len_bytes, has_immediate)
    }
}
