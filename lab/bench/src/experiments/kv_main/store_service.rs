//! A server of the store behind one front end, and the arguments that start it.

use super::super::ready::Ready;
use super::{FrontEnd, KvMainPlan};
use crate::rivals::Rival;
use crate::workload::{RecordShape, Workload};
use farcall::select::Selection;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of records inserted by the script of one connection.
const INSERTS_MAX: u64 = 1 << 12;

/// Limits above those of any measurement; inserted records count as well.
const RECORDS_MAX: u64 = 1 << 26;
const KEY_LEN_BYTES_MAX: usize = 250;
const VALUE_LEN_BYTES_MAX: usize = 1 << 20;

/// A store behind a front end, and its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreService {
    front_end: FrontEnd,
    /// Number of records, inserted ones included.
    records: u64,
    shape: RecordShape,
}

impl StoreService {
    pub(super) fn new(front_end: FrontEnd, plan: &KvMainPlan) -> Self {
        let inserts = plan.workloads.iter().any(|(workload, _)| *workload == Workload::D);
        let inserts = if inserts { INSERTS_MAX * u64::from(plan.clients * plan.connections) } else { 0 };
        Self { front_end, records: plan.records + inserts, shape: plan.shape }
    }

    /// Rejects sizes that no client half requests.
    pub(in crate::experiments) fn check(&self) -> Result<(), String> {
        let (key, value) = (self.shape.key_len_bytes(), self.shape.value_len_bytes());
        if self.records > RECORDS_MAX || key > KEY_LEN_BYTES_MAX || value > VALUE_LEN_BYTES_MAX {
            return Err(format!(
                "{} records with keys of {key} and values of {value} bytes; {RECORDS_MAX}, {KEY_LEN_BYTES_MAX} and \
                 {VALUE_LEN_BYTES_MAX} are the most",
                self.records
            ));
        }
        match self.front_end {
            FrontEnd::Unix | FrontEnd::Foreign(..) => Err(format!("{} is of one host", self.front_end)),
            _ => Ok(()),
        }
    }

    /// Returns the arguments that start a server with this front end only, listening at `address` or where a previous
    /// server listened.
    pub(in crate::experiments) fn args(
        &self,
        nic: &Selection,
        address: &str,
        again: Option<&Ready>,
    ) -> Vec<String> {
        let at = |earlier: Option<&String>| earlier.cloned().unwrap_or_else(|| address.to_owned());
        let mut args = vec!["--json".to_owned(), "kv".to_owned(), "serve".to_owned()];
        match self.front_end {
            FrontEnd::Tcp => args.extend(["--tcp".to_owned(), at(again.and_then(|ready| ready.tcp.first()))]),
            FrontEnd::Unix => {
                let earlier = again.and_then(|ready| ready.unix.first()).cloned();
                let path = earlier.unwrap_or_else(private_socket);
                args.extend(["--unix".to_owned(), path.to_string_lossy().into_owned()]);
            }
            _ => {
                args.extend(["--rpc".to_owned(), at(again.and_then(|ready| ready.rpc.as_ref()))]);
                args.extend(nic.args());
            }
        }
        if let Some(rival) = self.front_end.rival() {
            args.extend(self.rival_args(rival));
        }
        args
    }

    /// Returns the sizes of another store design, whose index then has the intended load factor.
    fn rival_args(&self, rival: Rival) -> impl Iterator<Item = String> {
        let records = u32::try_from(self.records).unwrap_or(u32::MAX);
        // One byte holds the length of the key.
        let pair_bytes = 1 + self.shape.key_len_bytes() + self.shape.value_len_bytes();
        let memory_mib = rival.memory_bytes(records, pair_bytes).div_ceil(1 << 20);
        let options = [
            ("--preset", rival.name().to_owned()),
            ("--records", records.to_string()),
            ("--memory-mib", memory_mib.to_string()),
            ("--value-max", self.shape.value_len_bytes().to_string()),
            ("--inline-bytes", pair_bytes.to_string()),
        ];
        options.into_iter().flat_map(|(name, value)| [name.to_owned(), value])
    }
}

/// Returns a new path for a socket. The server makes it accessible to this user only, and removes it when it ends.
pub(super) fn private_socket() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("farcall-bench-{}-{number}.sock", std::process::id()))
}
