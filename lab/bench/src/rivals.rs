//! Stores to compare with: their GETs are READs by the client.

use farcall_kv::bypass::{BypassConfig, serve};
use farcall_kv::{farm::Farm, pilaf::Pilaf};
use farcall_rpc::{Server, ServerError};
use farcall_verbs::{Error, Provider};
use serde::{Deserialize, Serialize};

/// A store that is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rival {
    /// A 3-way cuckoo table and extents.
    Pilaf,
    /// A hopscotch table with keys and values in it.
    Farm,
    /// A hopscotch table and extents.
    FarmVar,
}

/// What a rival's server is to hold.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Records.
    pub records: u32,
    /// Memory of the index and of keys and values that are not in it.
    pub memory_bytes: usize,
    /// The largest value.
    pub value_max_bytes: usize,
    /// Of `farm`: the longest key with its value, and one byte, that is in the index.
    pub inline_bytes: u32,
}

impl Rival {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pilaf, Self::Farm, Self::FarmVar];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pilaf => "pilaf",
            Self::Farm => "farm",
            Self::FarmVar => "farm-var",
        }
    }

    /// How it works, in a sentence.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Pilaf => "Another store: clients READ a cuckoo table, then the value; changes by send-send",
            Self::Farm => {
                "Another store: clients READ six entries with their values; changes by server-reply"
            }
            Self::FarmVar => "As farm, with values out of the entries, by one more READ",
        }
    }

    /// By its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rival| rival.name() == name)
    }

    /// READs a GET, as the papers say: RF-RPC, then HERD (which says of FaRM that there is one more READ of a value that
    /// is not in the table).
    #[must_use]
    pub const fn published_reads_a_get(self) -> [Option<f64>; 2] {
        match self {
            Self::Pilaf => [Some(3.2), Some(2.6)],
            Self::Farm => [None, Some(1.0)],
            Self::FarmVar => [None, Some(2.0)],
        }
    }

    /// Entries for so many records: three quarters full as published, or a fifth, so that next to no key is in a block
    /// beyond its neighbourhood.
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

    /// Memory for so many records with pairs of so many bytes, while some of them have an old value beside the new one.
    #[must_use]
    pub fn memory_bytes(self, records: u32, pair_bytes: usize) -> usize {
        let inline_bytes = if self == Self::Farm { pair_bytes as u32 } else { 0 };
        let config = BypassConfig::default().entries(self.entries(records)).inline_bytes(inline_bytes);
        let extent_bytes = pair_bytes.next_power_of_two().max(64);
        self.index_bytes(&config) + extent_bytes * (records as usize + 1_024) + (1 << 20)
    }

    /// Serves an empty store by one thread of a new server.
    ///
    /// # Errors
    /// If there is no room, or the server does not start.
    pub fn serve(self, provider: &dyn Provider, address: &str, room: &Room) -> Result<Server, ServerError> {
        let (config, builder) = (self.config(room)?, Server::builder().address(address));
        match self {
            Self::Pilaf => serve::<Pilaf>(builder, provider, config),
            Self::Farm | Self::FarmVar => serve::<Farm>(builder, provider, config),
        }
    }
}
