//! `--nodes`: the list of memory nodes.

use crate::commands::kv::resolve;
use crate::failure::{Exit, Failure};
use farcall::memory::RemoteMemory;
use farcall_memory::membership::{Directory, EtcdError, NODES_MAX, NodeDiscovery};
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Value of `--nodes` as displayed in help texts.
pub const VALUE_NAME: &str = "HOST:PORT,...|etcd://HOST:PORT,.../CLUSTER";

/// Memory nodes by address, or all nodes registered in etcd.
#[derive(Clone, Debug)]
pub enum NodeList {
    /// Nodes by their addresses.
    Named(Vec<SocketAddr>),
    /// All nodes registered in a directory, now and later.
    Registered(Directory),
}

impl NodeList {
    /// Parses the value of the option.
    ///
    /// # Errors
    /// Returns an error text for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        if Directory::has_scheme(text) {
            return text.parse().map(Self::Registered).map_err(|error| format!("{error}"));
        }
        text.split(',').map(resolve).collect::<Result<_, _>>().map(Self::Named)
    }

    /// Returns the current nodes. With a volume, the nodes that had it at its last mount are first, because each of
    /// them may have its newest state.
    ///
    /// # Errors
    /// If etcd cannot be queried, or no node is registered.
    pub fn find(&self, volume: Option<&str>) -> Result<Vec<SocketAddr>, Failure> {
        let directory = match self {
            Self::Named(nodes) => return Ok(nodes.clone()),
            Self::Registered(directory) => directory,
        };
        let before = volume.map_or(Ok(Vec::new()), |volume| directory.nodes_of_volume(volume));
        let found = before.and_then(|mut nodes| {
            let known = BTreeSet::from_iter(nodes.iter().copied());
            nodes.extend(directory.nodes()?.into_iter().filter(|node| !known.contains(node)));
            // The directory records at most this many nodes again.
            nodes.truncate(NODES_MAX);
            Ok(nodes)
        });
        let nodes = found.map_err(|error| etcd_failure(directory, &error))?;
        if nodes.is_empty() {
            return Err(Failure::new("no memory node is registered")
                .at(directory)
                .remedy(format!("start some: farcall memory serve --register {directory}"))
                .exit(Exit::Unreachable));
        }
        Ok(nodes)
    }

    /// Checks that each page can have `replicas` replicas on different nodes.
    ///
    /// # Errors
    /// If there are fewer nodes.
    pub fn check_replicas(&self, nodes: &[SocketAddr], replicas: u8) -> Result<(), Failure> {
        if usize::from(replicas) <= nodes.len() {
            return Ok(());
        }
        let (there, remedy) = match self {
            Self::Named(_) => ("--nodes names", "name more nodes, or lower --replicas"),
            Self::Registered(_) => ("nodes registered:", "start more of them, or lower --replicas"),
        };
        Err(Failure::new("cannot store that many replicas")
            .why(format!("--replicas is {replicas}, and {there} {}", nodes.len()))
            .remedy(remedy)
            .exit(Exit::Usage))
    }

    /// Returns the number of nodes for which a client reserves capacity.
    pub const fn nodes_max(&self) -> usize {
        match self {
            Self::Named(_) => 0,
            Self::Registered(_) => NODES_MAX,
        }
    }

    /// Returns the directory, if nodes are found in one.
    pub const fn directory(&self) -> Option<&Directory> {
        match self {
            Self::Named(_) => None,
            Self::Registered(directory) => Some(directory),
        }
    }

    /// Adds nodes that register later; the nodes of a volume are recorded in the directory.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub fn join(
        &self,
        memory: &Arc<RemoteMemory>,
        volume: Option<&str>,
    ) -> Result<Option<NodeDiscovery>, Failure> {
        let discovery = self.directory().cloned().map(|directory| match volume {
            None => NodeDiscovery::start(directory, memory),
            Some(volume) => NodeDiscovery::start_for_volume(directory, memory, volume.to_owned()),
        });
        discovery.transpose().map_err(|error| Failure::because("cannot search for memory nodes", &error))
    }
}

/// Formats the list like the value of the option.
impl fmt::Display for NodeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(nodes) => f.write_str(&joined(nodes)),
            Self::Registered(directory) => directory.fmt(f),
        }
    }
}

/// Formats addresses, separated by commas.
pub fn joined(nodes: &[SocketAddr]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the failure of a query to etcd.
pub fn etcd_failure(directory: &Directory, error: &EtcdError) -> Failure {
    let failure = Failure::because("cannot query etcd for memory nodes", error).at(directory);
    match error {
        EtcdError::Unreachable(_) => {
            failure.remedy("start etcd, or name the nodes by their addresses").exit(Exit::Unreachable)
        }
        _ => failure.remedy("name an etcd that this host may use without a password"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_a_list_as_it_was_given() {
        for text in ["127.0.0.1:1,127.0.0.1:2", "etcd://127.0.0.1:2379/files"] {
            assert_eq!(NodeList::parse(text).unwrap().to_string(), text);
        }
        assert!(NodeList::parse("127.0.0.1:1,").unwrap_err().contains("not a HOST:PORT"));
        assert!(NodeList::parse("etcd://127.0.0.1").unwrap_err().contains("etcd://HOST:PORT,.../CLUSTER"));
    }

    #[test]
    fn requires_a_node_for_each_replica() {
        let named = NodeList::parse("127.0.0.1:1").unwrap();
        let nodes = named.find(None).unwrap();
        assert!(named.check_replicas(&nodes, 1).is_ok());
        assert!(named.check_replicas(&nodes, 2).is_err());
    }
}
