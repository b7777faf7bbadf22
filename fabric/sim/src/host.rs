//! A node as its programs use it: its device, its clock, its sockets.

use std::sync::Arc;
use std::time::Duration;

use farcall_verbs::{Clock, Nanos};

use crate::fabric::Fabric;
use crate::packet::{Node, NodeId};
use crate::socket::{Listener, Pipe};

/// A node: a [`farcall_verbs::Provider`] with one device, a clock, and sockets for bootstrap.
#[derive(Clone)]
pub struct Host {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) node: Node,
}

farcall_verbs::opaque_debug!(Host { id });

impl Host {
    /// Returns the node's number.
    pub fn id(&self) -> NodeId {
        NodeId(self.node)
    }

    /// Returns the world's clock as programs read it: virtual time plus the cost of the present step so far.
    pub fn clock(&self) -> HostClock {
        HostClock { fabric: self.fabric.clone() }
    }

    /// Charges a computation of `duration`: later effects of the present step, and the next step, are delayed by it.
    pub fn compute(&self, duration: Duration) {
        self.fabric.lock().devices.scheduler.time.charge(duration.as_nanos() as u64);
    }

    /// Listens for pipes; returns `None` if the port has a listener already.
    pub fn listen(&self, port: u16) -> Option<Listener> {
        Listener::open(&self.fabric, self.node, port)
    }

    /// Opens a pipe to a port of a node. Bytes that are written before it is open are buffered.
    pub fn dial(&self, to: NodeId, port: u16) -> Pipe {
        Pipe::dial(&self.fabric, self.node, to.0, port)
    }
}

/// See [`Host::clock`].
#[derive(Clone)]
pub struct HostClock {
    fabric: Arc<Fabric>,
}

farcall_verbs::opaque_debug!(HostClock);

impl Clock for HostClock {
    fn now(&self) -> Nanos {
        Nanos(self.fabric.lock().devices.scheduler.time.effect_ns())
    }
}
