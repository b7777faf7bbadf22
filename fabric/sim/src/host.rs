//! A node as its programs see it: its device, its clock, its sockets.

use std::sync::Arc;
use std::time::Duration;

use farcall_verbs::{Clock, Nanos};

use crate::fabric::Fabric;
use crate::packet::{Node, NodeId};
use crate::socket::{Listener, Pipe};

/// A node: a [`farcall_verbs::Provider`] of one device, a clock, and the sockets that bootstrap goes over.
#[derive(Clone)]
pub struct Host {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) node: Node,
}

impl Host {
    /// Which node it is.
    pub fn id(&self) -> NodeId {
        NodeId(self.node)
    }

    /// The world's clock as a program reads it: virtual time, plus what the present step has cost so far.
    pub fn clock(&self) -> HostClock {
        HostClock { fabric: self.fabric.clone() }
    }

    /// Computes for a while: what the present step does from now on has its effect so much later, and so has the next
    /// step.
    pub fn compute(&self, duration: Duration) {
        self.fabric.lock().charge(duration.as_nanos() as u64);
    }

    /// Listens for pipes; `None` if somebody does already.
    pub fn listen(&self, port: u16) -> Option<Listener> {
        Listener::open(&self.fabric, self.node, port)
    }

    /// Opens a pipe to a port of a node. What is written before it is open waits.
    pub fn dial(&self, to: NodeId, port: u16) -> Pipe {
        Pipe::dial(&self.fabric, self.node, to.0, port)
    }
}

/// See [`Host::clock`].
#[derive(Clone)]
pub struct HostClock {
    fabric: Arc<Fabric>,
}

impl Clock for HostClock {
    fn now(&self) -> Nanos {
        Nanos(self.fabric.lock().effect_ns())
    }
}
