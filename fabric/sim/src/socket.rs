//! The programs' handles of pipes and listeners, for bootstrap.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::channel::Descriptor;
use crate::fabric::Fabric;
use crate::packet::{Node, NodeId};
use crate::pipe::{End, Item, Listening, PipeState};
use crate::queue::Event;

/// One end of a pipe, owned by a program. Dropping it closes the pipe.
pub struct Pipe {
    fabric: Arc<Fabric>,
    id: u32,
}

farcall_verbs::opaque_debug!(Pipe);

impl Pipe {
    pub(crate) fn dial(fabric: &Arc<Fabric>, node: Node, to: Node, port: u16) -> Self {
        let mut state = fabric.call();
        let id = state.ends.insert(End::dialling(node, to, port));
        let at_ns = state.effect_ns() + state.pipe_delay_ns();
        state.at(at_ns, Event::Dial { end: id, attempt: 0 });
        drop(state);
        Self { fabric: fabric.clone(), id }
    }

    /// Reads available bytes. Returns 0 if the other side closed the pipe.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no bytes are available, and `ConnectionReset` or `ConnectionRefused` if the pipe was
    /// reset or never established.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.fabric.call();
        let end = state.ends.get_mut(self.id).ok_or(ErrorKind::ConnectionReset)?;
        if end.state == PipeState::Reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let got = end.inbox.len().min(bytes.len());
        for (to, from) in bytes.iter_mut().zip(end.inbox.drain(..got)) {
            *to = from;
        }
        match end.state {
            _ if got > 0 => Ok(got),
            PipeState::Closed => Ok(0),
            PipeState::Refused => Err(ErrorKind::ConnectionRefused.into()),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Sends all bytes.
    ///
    /// # Errors
    /// Returns `BrokenPipe` if the pipe has ended or was never established.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.fabric.call();
        let end = state.ends.get_mut(self.id).ok_or(ErrorKind::BrokenPipe)?;
        match (end.state, end.peer) {
            (PipeState::Dialling, _) => end.unsent.extend_from_slice(bytes),
            (PipeState::Open, Some(peer)) => {
                if state.ends.get(peer).is_some() {
                    state.send_bytes(peer, bytes);
                } else {
                    // The other side no longer exists, and its kernel sends a reset.
                    state.send_item(self.id, Item::Reset);
                }
            }
            _ => return Err(ErrorKind::BrokenPipe.into()),
        }
        Ok(())
    }

    /// Returns the descriptor to wait on: it is ready when bytes are available or the pipe has ended.
    pub fn fd(&self) -> RawFd {
        Descriptor::Pipe(self.id).fd()
    }

    /// Returns the node at the other end.
    pub fn peer(&self) -> NodeId {
        let state = self.fabric.lock();
        NodeId(state.ends.get(self.id).map_or(u32::MAX, |end| end.peer_node))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.fabric.call().drop_end(self.id);
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
        let mut state = fabric.call();
        if state.nodes[node as usize].listeners.contains_key(&port) {
            return None;
        }
        let id = state.listeners.insert(Listening { node, port, backlog: VecDeque::new() });
        state.nodes[node as usize].listeners.insert(port, id);
        drop(state);
        Some(Self { fabric: fabric.clone(), id })
    }

    /// Returns the next pipe opened to this port.
    pub fn accept(&mut self) -> Option<Pipe> {
        let mut state = self.fabric.call();
        let id = state.listeners.get_mut(self.id)?.backlog.pop_front()?;
        drop(state);
        Some(Pipe { fabric: self.fabric.clone(), id })
    }

    /// Returns the descriptor to wait on: it is ready when there is a pipe to accept.
    pub fn fd(&self) -> RawFd {
        Descriptor::Listener(self.id).fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.fabric.call();
        let Some(listening) = state.listeners.remove(self.id) else { return };
        let listeners = &mut state.nodes[listening.node as usize].listeners;
        if listeners.get(&listening.port) == Some(&self.id) {
            listeners.remove(&listening.port);
        }
        for end in listening.backlog {
            state.drop_end(end);
        }
    }
}
