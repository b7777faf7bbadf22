//! Settings with which clients reach a service over verbs: plain data, for client processes.

use crate::load::client_options;
use farcall::rpc::ClientOptions;
use farcall::rpc::tune::{LinkProfile, Posting, ReadCost};
use farcall::select::Selection;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

/// RNIC of clients, and profile with which their connections start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reach {
    /// RNIC of the clients.
    pub nic: Selection,
    /// Profile with which connections start instead of a probe.
    #[serde(serialize_with = "write_profile", deserialize_with = "read_profile")]
    pub profile: Option<LinkProfile>,
}

impl Reach {
    /// See [`client_options`].
    pub fn options(&self, window: u32, patience: Duration) -> ClientOptions {
        client_options(window, patience, self.profile.as_ref())
    }
}

/// Serialized profile: READs by length, each with the time of a single one and the time per READ among others; time of
/// a reply; posting costs in the order of the fields.
type Costs = (Vec<(u32, u64, u64)>, u64, Option<(u32, u16, u64, u64)>);

fn write_profile<S: Serializer>(profile: &Option<LinkProfile>, to: S) -> Result<S::Ok, S::Error> {
    let read = |read: &ReadCost| (read.len_bytes, read.alone_ns, read.each_ns);
    let posting = |it: Posting| (it.inline_max_bytes, it.signal_every, it.idle_turn_ns, it.wake_ns);
    let costs = |profile: &LinkProfile| -> Costs {
        (profile.reads().iter().map(read).collect(), profile.reply_ns(), profile.posting().map(posting))
    };
    profile.as_ref().map(costs).serialize(to)
}

fn read_profile<'de, D: Deserializer<'de>>(from: D) -> Result<Option<LinkProfile>, D::Error> {
    let Some((reads, reply_ns, posting)) = Option::<Costs>::deserialize(from)? else { return Ok(None) };
    let read = |(len_bytes, alone_ns, each_ns)| ReadCost { len_bytes, alone_ns, each_ns };
    let profile = LinkProfile::new(reads.into_iter().map(read).collect(), reply_ns);
    let profile = profile.and_then(|profile| match posting {
        Some((inline_max_bytes, signal_every, idle_turn_ns, wake_ns)) => {
            profile.with_posting(Posting { inline_max_bytes, signal_every, idle_turn_ns, wake_ns })
        }
        None => Ok(profile),
    });
    profile.map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_travels_whole() {
        let reads = vec![
            ReadCost { len_bytes: 64, alone_ns: 2000, each_ns: 100 },
            ReadCost { len_bytes: 4096, alone_ns: 3000, each_ns: 900 },
        ];
        let posting = Posting { inline_max_bytes: 128, signal_every: 16, idle_turn_ns: 30, wake_ns: 4_000 };
        let profile = LinkProfile::new(reads, 500).unwrap();
        let with_posting = profile.clone().with_posting(posting).unwrap();
        for profile in [None, Some(profile), Some(with_posting)] {
            let reach = Reach { nic: Selection::softnic(), profile };
            let text = serde_json::to_string(&reach).unwrap();
            let same: Reach = serde_json::from_str(&text).unwrap();
            assert_eq!((same.nic, same.profile), (reach.nic, reach.profile));
        }
    }
}
