//! The keys of a cluster in etcd.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use thiserror::Error;

use super::etcd::{Etcd, EtcdError, Pair};
use super::record::{NODES_MAX, Record};

const SCHEME: &str = "etcd://";
const ROOT: &str = "/farcall/memory/v1";
const CLUSTER_CHARS_MAX: usize = 64;

/// Directory in which the memory nodes of a cluster register: `etcd://HOST:PORT,.../CLUSTER`. The servers belong to one
/// etcd cluster, which is accessed over HTTP without TLS and without a password. Any process that can write to it
/// determines which nodes clients use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    endpoints: Vec<String>,
    cluster: String,
}

/// The text is not the name of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not etcd://HOST:PORT,.../CLUSTER, with a name of letters, digits, '.', '_' and '-'")]
pub struct ParseError(String);

impl FromStr for Directory {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let is_endpoint = |text: &str| {
            let is_of_host = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
            text.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && host.chars().all(is_of_host) && port.parse::<u16>().is_ok()
            })
        };
        let is_of_cluster = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let parse = || {
            let (endpoints, cluster) = text.strip_prefix(SCHEME)?.split_once('/')?;
            let is_named =
                (1..=CLUSTER_CHARS_MAX).contains(&cluster.len()) && cluster.chars().all(is_of_cluster);
            (is_named && endpoints.split(',').all(is_endpoint)).then(|| Self {
                endpoints: endpoints.split(',').map(str::to_owned).collect(),
                cluster: cluster.to_owned(),
            })
        };
        parse().ok_or_else(|| ParseError(text.to_owned()))
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.endpoints.join(","), self.cluster)
    }
}

impl Directory {
    /// Returns whether the text has the scheme of a directory. Its other parts may still be invalid.
    pub fn has_scheme(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    pub(super) fn etcd(&self) -> Etcd {
        Etcd::new(self.endpoints.clone())
    }

    pub(super) fn node_key(&self, address: SocketAddr) -> String {
        format!("{}{address}", self.nodes_prefix())
    }

    fn nodes_prefix(&self) -> String {
        format!("{ROOT}/{}/nodes/", self.cluster)
    }

    fn volume_key(&self, volume: &str) -> String {
        format!("{ROOT}/{}/volumes/{volume}", self.cluster)
    }

    /// Returns at most [`NODES_MAX`] registered nodes, in the order of registration. Keys that are not those of a node
    /// of this release are logged and omitted.
    ///
    /// # Errors
    /// If no etcd server responds, or one refuses the request.
    pub fn nodes(&self) -> Result<Vec<SocketAddr>, EtcdError> {
        self.nodes_by(&self.etcd())
    }

    /// Like [`Directory::nodes`], over an existing client.
    pub(super) fn nodes_by(&self, etcd: &Etcd) -> Result<Vec<SocketAddr>, EtcdError> {
        let prefix = self.nodes_prefix();
        let pairs = etcd.get_all(&prefix, NODES_MAX)?;
        let node = |pair: &Pair| {
            Record::parse(&pair.value)?;
            Record::parse_node(pair.key.strip_prefix(prefix.as_bytes()).unwrap_or_default())
        };
        let parsed_or_logged = |pair: Pair| {
            let found = node(&pair);
            found.inspect_err(|error| tracing::warn!(directory = %self, "a key is left out: {error}")).ok()
        };
        Ok(pairs.into_iter().filter_map(parsed_or_logged).collect())
    }

    /// Returns the nodes that may have the volume, as recorded by [`Directory::record_volume`]. The list is empty if
    /// the directory has no record of the volume.
    ///
    /// # Errors
    /// If no etcd server responds, one refuses the request, or the record is not one of this release.
    pub fn nodes_of_volume(&self, volume: &str) -> Result<Vec<SocketAddr>, EtcdError> {
        let Some(value) = self.etcd().get(&self.volume_key(volume))? else { return Ok(Vec::new()) };
        let record = Record::parse(&value);
        let unknown = |why: String| EtcdError::NotEtcd { endpoint: self.to_string(), why };
        record.map(|record| record.nodes().to_vec()).map_err(|error| unknown(error.to_string()))
    }

    /// Records which nodes have a volume. The next mount also queries these nodes, even if they are not registered
    /// then.
    ///
    /// # Errors
    /// If no etcd server responds, or one refuses the request.
    pub fn record_volume(&self, volume: &str, nodes: Vec<SocketAddr>) -> Result<(), EtcdError> {
        self.etcd().put(&self.volume_key(volume), &Record::new(nodes).to_bytes(), None)
    }

    /// Deletes the record of a volume.
    ///
    /// # Errors
    /// If no etcd server responds, or one refuses the request.
    pub fn forget_volume(&self, volume: &str) -> Result<(), EtcdError> {
        self.etcd().delete(&self.volume_key(volume))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn displays_a_directory_as_parsed() {
        for text in ["etcd://a:2379/x", "etcd://10.0.0.1:2379,[::1]:2380,host-3:1/My_cluster.2-b"] {
            assert!(Directory::has_scheme(text));
            assert_eq!(text.parse::<Directory>().unwrap().to_string(), text);
        }
        let long = format!("etcd://a:1/{}", "x".repeat(CLUSTER_CHARS_MAX + 1));
        let wrong = [
            "a:2379/x",
            "etcd://a:2379",
            "etcd://a/x",
            "etcd://a:2379/",
            "etcd://a:2379/x/y",
            "etcd://a:2379,/x",
            "etcd://a:99999/x",
            "etcd://:2379/x",
            "etcd://u@a:2379/x",
            "etcd://a:1 /x",
            &long,
        ];
        for text in wrong {
            let error = text.parse::<Directory>().unwrap_err().to_string();
            assert!(error.contains("etcd://HOST:PORT,.../CLUSTER"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn rejects_text_or_displays_it_as_parsed(text in "(etcd://)?[a-z0-9.:,/@\\[\\] -]{0,30}") {
            if let Ok(directory) = text.parse::<Directory>() {
                prop_assert_eq!(directory.to_string(), text);
            }
        }
    }
}
