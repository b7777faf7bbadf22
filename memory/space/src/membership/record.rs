//! Records in etcd: JSON with a version. They are untrusted input, since other programs may write to etcd.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum number of nodes of a cluster that are used.
pub const NODES_MAX: usize = 64;
const VERSION: u32 = 1;
/// Maximum length of a record in bytes.
const BYTES_MAX: usize = 64 << 10;

/// Value of a key: only the version for a node; the nodes that have it for a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<SocketAddr>,
}

/// The value is not a record of this release.
#[derive(Debug, Error)]
#[error("{what}; another program or another release wrote it")]
pub struct UnknownRecord {
    what: String,
}

fn unknown(what: impl Into<String>) -> UnknownRecord {
    UnknownRecord { what: what.into() }
}

impl Record {
    /// Creates a record with these nodes.
    pub fn new(nodes: Vec<SocketAddr>) -> Self {
        Self { version: VERSION, nodes }
    }

    /// Returns the nodes of a volume.
    pub fn nodes(&self) -> &[SocketAddr] {
        &self.nodes
    }

    /// Encodes the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Numbers and addresses can always be encoded as JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes the value of a key.
    ///
    /// # Errors
    /// If it is too long, is not valid JSON, has another version, or contains too many nodes.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnknownRecord> {
        if bytes.len() > BYTES_MAX {
            return Err(unknown(format!("a record of {} bytes", bytes.len())));
        }
        let record: Self = serde_json::from_slice(bytes)
            .map_err(|error| unknown(format!("a record is damaged: {error}")))?;
        if record.version != VERSION {
            return Err(unknown(format!("a record of version {}, not {VERSION}", record.version)));
        }
        if record.nodes.len() > NODES_MAX {
            return Err(unknown(format!("a record of {} nodes", record.nodes.len())));
        }
        Ok(record)
    }

    /// Decodes the address of a node from its key without the prefix of the cluster.
    ///
    /// # Errors
    /// If it is not an address.
    pub fn parse_node(key: &[u8]) -> Result<SocketAddr, UnknownRecord> {
        let text = std::str::from_utf8(key).ok().and_then(|text| text.parse().ok());
        text.ok_or_else(|| unknown(format!("{:?} is no address", String::from_utf8_lossy(key))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_valid_records_only() {
        let record = Record::new(vec!["10.0.0.1:11500".parse().unwrap(), "[::1]:1".parse().unwrap()]);
        assert_eq!(Record::parse(&record.to_bytes()).unwrap(), record);
        assert_eq!(Record::parse(br#"{"version":1}"#).unwrap(), Record::new(Vec::new()));
        let many = Record::new(vec!["1.1.1.1:1".parse().unwrap(); NODES_MAX + 1]).to_bytes();
        let unknown = [
            (&br#"{"version":2}"#[..], "version 2"),
            (b"", "damaged"),
            (br#"{"version":1,"nodes":["localhost:1"]}"#, "damaged"),
            (&many, "65 nodes"),
            (&vec![b' '; BYTES_MAX + 1], "65537 bytes"),
        ];
        for (bytes, why) in unknown {
            let error = Record::parse(bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(Record::parse_node(b"10.0.0.1:11500").is_ok());
        assert!(Record::parse_node(b"10.0.0.1:11500/x").is_err() && Record::parse_node(&[0xFF]).is_err());
    }
}
