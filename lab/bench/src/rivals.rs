//! Other designs of stores to compare with, whose clients execute a GET by RDMA READs.

use farcall::rpc::{Server, ServerError};
use farcall_kv::bypass::{BypassConfig, serve};
use farcall_kv::{farm::Farm, pilaf::Pilaf};
use farcall_link::Nic;
use farcall_verbs::Error;
use serde::{Deserialize, Serialize};

/// A store design of another project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rival {
    /// Pilaf: a 3-way cuckoo table and extents.
    Pilaf,
    /// FaRM: a hopscotch table that contains keys and values.
    Farm,
    /// FaRM-VAR: a hopscotch table and extents.
    FarmVar,
}

names! { Rival { Pilaf => "pilaf", Farm => "farm", FarmVar => "farm-var" } }

/// Capacity of a store's server.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Number of records.
    pub records: u32,
    /// Bytes of the index, and of keys and values stored outside it.
    pub memory_bytes: usize,
    /// Length of the largest value in bytes.
    pub value_max_bytes: usize,
    /// `farm` only: length in bytes of the longest key and its value, plus one byte; they are stored in the index.
    pub inline_bytes: u32,
}

impl Rival {
    /// Returns a description in one sentence.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Pilaf => "Another store: clients READ a cuckoo table, then the value; changes by send-send",
            Self::Farm => {
                "Another store: clients READ six entries with their values; changes by server-reply"
            }
            Self::FarmVar => "As farm, with values out of the entries, by one more READ",
        }
    }

    /// Returns the design with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rival| rival.name() == name)
    }

    /// Returns the READs per GET that RF-RPC and then HERD publish. HERD states that FaRM needs one more READ for a
    /// value that is not in the table.
    pub const fn published_reads_a_get(self) -> [Option<f64>; 2] {
        match self {
            Self::Pilaf => [Some(3.2), Some(2.6)],
            Self::Farm => [None, Some(1.0)],
            Self::FarmVar => [None, Some(2.0)],
        }
    }

    /// Returns the number of index entries for `records`. Pilaf's table is three quarters full, as published. The
    /// hopscotch tables are one fifth full, so that almost no key lies in a block outside its neighbourhood.
    const fn entries(self, records: u32) -> u32 {
        match self {
            Self::Pilaf => records.saturating_mul(4).div_ceil(3).saturating_add(16),
            Self::Farm | Self::FarmVar => records.saturating_mul(5).saturating_add(64),
        }
    }

    fn index_bytes(self, config: &BypassConfig) -> usize {
        match self {
            Self::Pilaf => config.index_bytes::<Pilaf>(),
            Self::Farm | Self::FarmVar => config.index_bytes::<Farm>(),
        }
    }

    fn config(self, room: &Room) -> Result<BypassConfig, Error> {
        let inline_bytes = if self == Self::Farm { room.inline_bytes } else { 0 };
        let config = BypassConfig::default()
            .entries(self.entries(room.records))
            .value_max_bytes(room.value_max_bytes)
            .inline_bytes(inline_bytes);
        let index_bytes = self.index_bytes(&config);
        let left = room.memory_bytes.checked_sub(index_bytes).filter(|left| *left > 0);
        let extents_bytes = left.ok_or_else(|| {
            let what = format!(
                "the index of {} records takes {index_bytes} bytes; the store has {}",
                room.records, room.memory_bytes
            );
            Error::invalid("serve a store", what)
        })?;
        Ok(config.extents_bytes(extents_bytes))
    }

    /// Returns the memory for `records` pairs of `pair_bytes` bytes, some of which temporarily have an old value in
    /// addition to the new one.
    pub fn memory_bytes(self, records: u32, pair_bytes: usize) -> usize {
        let inline_bytes = if self == Self::Farm { pair_bytes as u32 } else { 0 };
        let config = BypassConfig::default().entries(self.entries(records)).inline_bytes(inline_bytes);
        let extent_bytes = pair_bytes.next_power_of_two().max(64);
        self.index_bytes(&config) + extent_bytes * (records as usize + 1_024) + (1 << 20)
    }

    /// Serves an empty store with one thread of a new server.
    ///
    /// # Errors
    /// Returns an error if the memory does not suffice or the server does not start.
    pub fn serve(self, nic: &Nic, address: &str, room: &Room) -> Result<Server, ServerError> {
        let (config, builder) = (self.config(room)?, Server::builder().address(address));
        match self {
            Self::Pilaf => serve::<Pilaf>(builder, nic, config),
            Self::Farm | Self::FarmVar => serve::<Farm>(builder, nic, config),
        }
    }
}
