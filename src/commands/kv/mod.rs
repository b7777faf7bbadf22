//! `farcall kv`: the key-value service and its clients.

mod address;
mod client;
mod del;
mod get;
mod load;
mod records;
mod serve;
mod set;
mod stats;

pub use address::resolve;

use crate::commands::bench::KvBench;
use crate::commands::command_group::command_group;

command_group! {
    /// Serve, fill and query the key-value store.
    pub enum Kv {
        always {
            Serve(serve::Serve),
            Load(load::Load),
            Get(get::Get),
            Set(set::Set),
            Del(del::Del),
            Stats(stats::Stats),
            Bench(KvBench),
        }
    }
}
