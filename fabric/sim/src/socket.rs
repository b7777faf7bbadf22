//! The programs' handles of pipes and listeners, for bootstrap.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::channel::Descriptor;
use crate::fabric::Fabric;
use crate::packet::{Node, NodeId};
use crate::state::State;

/// One end of a pipe, owned by a program. Dropping it closes the pipe.
pub struct Pipe {
    fabric: Arc<Fabric>,
    id: u32,
}

farcall_verbs::opaque_debug!(Pipe);

impl Pipe {
    pub(crate) fn dial(fabric: &Arc<Fabric>, node: Node, to: Node, port: u16) -> Self {
        let State { devices, pipes, .. } = &mut *fabric.call();
        let id = pipes.dial(devices, node, to, port);
        Self { fabric: fabric.clone(), id }
    }

    /// Reads available bytes. Returns 0 if the other side closed the pipe.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no bytes are available, and `ConnectionReset` or `ConnectionRefused` if the pipe was
    /// reset or never established.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(self.fabric.call().pipes.read(self.id, bytes)?)
    }

    /// Sends all bytes.
    ///
    /// # Errors
    /// Returns `BrokenPipe` if the pipe has ended or was never established.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let State { devices, pipes, .. } = &mut *self.fabric.call();
        Ok(pipes.write(devices, self.id, bytes)?)
    }

    /// Returns the descriptor to wait on: it is ready when bytes are available or the pipe has ended.
    pub fn fd(&self) -> RawFd {
        Descriptor::Pipe(self.id).fd()
    }

    /// Returns the node at the other end.
    pub fn peer(&self) -> NodeId {
        NodeId(self.fabric.lock().pipes.peer_node(self.id).unwrap_or(u32::MAX))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let State { devices, pipes, .. } = &mut *self.fabric.call();
        pipes.drop_end(devices, self.id);
    }
}

/// A listening port of a node. Dropping it closes the port.
pub struct Listener {
    fabric: Arc<Fabric>,
    id: u32,
}

farcall_verbs::opaque_debug!(Listener);

impl Listener {
    pub(crate) fn open(fabric: &Arc<Fabric>, node: Node, port: u16) -> Option<Self> {
        let id = fabric.call().pipes.listen(node, port)?;
        Some(Self { fabric: fabric.clone(), id })
    }

    /// Returns the next pipe opened to this port.
    pub fn accept(&mut self) -> Option<Pipe> {
        let id = self.fabric.call().pipes.accept(self.id)?;
        Some(Pipe { fabric: self.fabric.clone(), id })
    }

    /// Returns the descriptor to wait on: it is ready when there is a pipe to accept.
    pub fn fd(&self) -> RawFd {
        Descriptor::Listener(self.id).fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let State { devices, pipes, .. } = &mut *self.fabric.call();
        pipes.drop_listener(devices, self.id);
    }
}
