//! The nodes of the world: their addresses, and which of them have crashed.

use farcall_verbs::Gid;

use crate::packet::Node;

struct NodeState {
    is_alive: bool,
    gid: Gid,
}

/// All nodes, by number.
#[derive(Default)]
pub(crate) struct Nodes(Vec<NodeState>);

impl Nodes {
    pub(crate) fn add(&mut self) -> Node {
        let number = self.0.len() as Node;
        let [_, b, c, d] = (number + 1).to_be_bytes();
        self.0.push(NodeState { is_alive: true, gid: Gid::from_ipv4([10, b, c, d].into()) });
        number
    }

    pub(crate) fn gid(&self, node: Node) -> Gid {
        self.0[node as usize].gid
    }

    pub(crate) fn of(&self, gid: Gid) -> Option<Node> {
        self.0.iter().position(|node| node.gid == gid).map(|number| number as Node)
    }

    /// Returns whether the node exists and has not crashed.
    pub(crate) fn is_alive(&self, node: Node) -> bool {
        self.0.get(node as usize).is_some_and(|node| node.is_alive)
    }

    pub(crate) fn set_alive(&mut self, node: Node, is_alive: bool) {
        self.0[node as usize].is_alive = is_alive;
    }
}
