//! Bootstrap pipes: ordered bytes between nodes, with delay, close and reset; what a TCP connection looks like to a
//! program that never blocks.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::channel::Descriptor;
use crate::fabric::Fabric;
use crate::host::NodeId;
use crate::packet::Node;
use crate::queue::Event;
use crate::state::State;
use crate::trace::What;

/// What is under way to an end.
enum Item {
    Opened,
    Bytes(Vec<u8>),
    Closed,
    Reset,
    Refused,
}

/// How an end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Dialling,
    Open,
    /// The other side closed; what came before can still be read.
    Closed,
    Reset,
    Refused,
}

/// One end of a pipe.
pub(crate) struct End {
    node: Node,
    peer_node: Node,
    port: u16,
    peer: Option<u32>,
    stand: Stand,
    coming: VecDeque<(u64, Item)>,
    inbox: VecDeque<u8>,
    /// Written before the pipe was open.
    early: Vec<u8>,
    /// Attempts to get the next item through.
    attempts: u32,
}

/// A listening port.
pub(crate) struct Listening {
    node: Node,
    port: u16,
    backlog: VecDeque<u32>,
}

impl State {
    fn pipe_delay_ns(&mut self) -> u64 {
        let faults = self.network.faults;
        // A kernel's stack on both sides, besides the way.
        20_000 + self.pipes_rng.between(faults.delay_min_ns, 10 * faults.delay_max_ns)
    }

    fn is_apart(&self, a: Node, b: Node) -> bool {
        self.network.is_cut(a, b)
            || self.network.is_cut(b, a)
            || !self.nodes[a as usize].is_alive
            || !self.nodes[b as usize].is_alive
    }

    /// Sends an item to an end; after what was sent there before.
    fn send_item(&mut self, to: u32, item: Item) {
        let at_ns = self.effect_ns() + self.pipe_delay_ns();
        let Some(end) = self.ends.get_mut(to) else { return };
        let after = end.coming.back().map_or(0, |(at_ns, _)| at_ns + 1);
        let at_ns = at_ns.max(after);
        end.coming.push_back((at_ns, item));
        self.at(at_ns, Event::Pipe { end: to });
    }

    /// A connection request arrives, or is lost and tried again.
    pub(crate) fn dial_event(&mut self, id: u32, attempt: u32) {
        let Some(end) = self.ends.get(id) else { return };
        let (from, to, port) = (end.node, end.peer_node, end.port);
        if self.is_apart(from, to) {
            if attempt < self.params.pipe_attempts {
                let at_ns = self.now_ns + self.params.pipe_retry_ns;
                self.at(at_ns, Event::Dial { end: id, attempt: attempt + 1 });
            } else {
                self.end_pipe(id, Stand::Refused);
            }
            return;
        }
        let Some(listener) = self.nodes[to as usize].listeners.get(&port).copied() else {
            self.send_item(id, Item::Refused);
            return;
        };
        let accepted = self.ends.insert(End {
            node: to,
            peer_node: from,
            port,
            peer: Some(id),
            stand: Stand::Open,
            coming: VecDeque::new(),
            inbox: VecDeque::new(),
            early: Vec::new(),
            attempts: 0,
        });
        if let Some(end) = self.ends.get_mut(id) {
            end.peer = Some(accepted);
        }
        self.note(What::PipeOpen, [u64::from(id), u64::from(accepted), u64::from(port), 0]);
        if let Some(listening) = self.listeners.get_mut(listener) {
            listening.backlog.push_back(accepted);
        }
        self.ready(to, Descriptor::Listener(listener).fd());
        self.send_item(id, Item::Opened);
    }

    /// What is due at an end arrives.
    pub(crate) fn pipe_event(&mut self, id: u32) {
        loop {
            let Some(end) = self.ends.get(id) else { return };
            let Some((at_ns, _)) = end.coming.front() else { return };
            if *at_ns > self.now_ns {
                return;
            }
            if self.is_apart(end.node, end.peer_node) {
                self.retry_item(id);
                return;
            }
            let item = self.ends.get_mut(id).and_then(|end| {
                end.attempts = 0;
                end.coming.pop_front()
            });
            match item {
                Some((_, item)) => self.deliver(id, item),
                None => return,
            }
        }
    }

    fn retry_item(&mut self, id: u32) {
        let (retry_ns, attempts_max) = (self.params.pipe_retry_ns, self.params.pipe_attempts);
        let at_ns = self.now_ns + retry_ns;
        let Some(end) = self.ends.get_mut(id) else { return };
        end.attempts += 1;
        if end.attempts < attempts_max {
            for (at, item) in end.coming.iter_mut().enumerate() {
                item.0 = item.0.max(at_ns + at as u64);
            }
            let all: Vec<u64> = end.coming.iter().map(|(at_ns, _)| *at_ns).collect();
            all.into_iter().for_each(|at_ns| self.at(at_ns, Event::Pipe { end: id }));
            return;
        }
        let peer = end.peer;
        self.end_pipe(id, Stand::Reset);
        if let Some(peer) = peer {
            self.end_pipe(peer, Stand::Reset);
        }
    }

    fn deliver(&mut self, id: u32, item: Item) {
        let Some(end) = self.ends.get_mut(id) else { return };
        match item {
            Item::Opened => {
                end.stand = Stand::Open;
                let (early, peer) = (std::mem::take(&mut end.early), end.peer);
                if let Some(peer) = peer.filter(|_| !early.is_empty()) {
                    self.send_bytes(peer, &early);
                }
            }
            Item::Bytes(bytes) => {
                let len = bytes.len() as u64;
                end.inbox.extend(bytes);
                self.note(What::PipeBytes, [u64::from(id), len, 0, 0]);
                self.pipe_ready(id);
            }
            Item::Closed => self.end_pipe(id, Stand::Closed),
            Item::Reset => self.end_pipe(id, Stand::Reset),
            Item::Refused => self.end_pipe(id, Stand::Refused),
        }
    }

    fn end_pipe(&mut self, id: u32, stand: Stand) {
        let Some(end) = self.ends.get_mut(id) else { return };
        if matches!(end.stand, Stand::Dialling | Stand::Open) {
            end.stand = stand;
        }
        self.note(What::PipeEnd, [u64::from(id), stand as u64, 0, 0]);
        self.pipe_ready(id);
    }

    fn pipe_ready(&mut self, id: u32) {
        if let Some(end) = self.ends.get(id) {
            let node = end.node;
            self.ready(node, Descriptor::Pipe(id).fd());
        }
    }

    /// Sends bytes in segments of random lengths.
    fn send_bytes(&mut self, to: u32, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let take = self.pipes_rng.between(1, rest.len() as u64) as usize;
            let (now, later) = rest.split_at(take);
            self.send_item(to, Item::Bytes(now.to_vec()));
            rest = later;
        }
    }

    /// The owner of an end lets go of it.
    fn drop_end(&mut self, id: u32) {
        let Some(end) = self.ends.remove(id) else { return };
        if let Some(peer) = end.peer {
            self.send_item(peer, Item::Closed);
        }
    }

    pub(crate) fn is_pipe_readable(&self, id: u32) -> bool {
        self.ends
            .get(id)
            .is_some_and(|end| !end.inbox.is_empty() || !matches!(end.stand, Stand::Dialling | Stand::Open))
    }

    pub(crate) fn has_backlog(&self, id: u32) -> bool {
        self.listeners.get(id).is_some_and(|listening| !listening.backlog.is_empty())
    }
}

/// One end of a pipe, owned by a program. Dropping it closes it.
pub struct Pipe {
    fabric: Arc<Fabric>,
    id: u32,
}

impl Pipe {
    pub(crate) fn dial(fabric: &Arc<Fabric>, node: Node, to: Node, port: u16) -> Self {
        let mut state = fabric.call();
        let id = state.ends.insert(End {
            node,
            peer_node: to,
            port,
            peer: None,
            stand: Stand::Dialling,
            coming: VecDeque::new(),
            inbox: VecDeque::new(),
            early: Vec::new(),
            attempts: 0,
        });
        let at_ns = state.effect_ns() + state.pipe_delay_ns();
        state.at(at_ns, Event::Dial { end: id, attempt: 0 });
        drop(state);
        Self { fabric: fabric.clone(), id }
    }

    /// Reads what has come. 0: the other side closed.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has come; `ConnectionReset`, `ConnectionRefused` if the pipe is broken or never was.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.fabric.call();
        let end = state.ends.get_mut(self.id).ok_or(ErrorKind::ConnectionReset)?;
        if end.stand == Stand::Reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let got = end.inbox.len().min(bytes.len());
        for (to, from) in bytes.iter_mut().zip(end.inbox.drain(..got)) {
            *to = from;
        }
        match end.stand {
            _ if got > 0 => Ok(got),
            Stand::Closed => Ok(0),
            Stand::Refused => Err(ErrorKind::ConnectionRefused.into()),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Sends bytes; all are taken.
    ///
    /// # Errors
    /// `BrokenPipe` if the pipe has ended, or never was.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.fabric.call();
        let end = state.ends.get_mut(self.id).ok_or(ErrorKind::BrokenPipe)?;
        match (end.stand, end.peer) {
            (Stand::Dialling, _) => end.early.extend_from_slice(bytes),
            (Stand::Open, Some(peer)) => {
                if state.ends.get(peer).is_some() {
                    state.send_bytes(peer, bytes);
                } else {
                    // The other side is gone, and its kernel says so.
                    state.send_item(self.id, Item::Reset);
                }
            }
            _ => return Err(ErrorKind::BrokenPipe.into()),
        }
        Ok(())
    }

    /// The descriptor to wait on: ready when bytes have come or the pipe has ended.
    pub fn fd(&self) -> RawFd {
        Descriptor::Pipe(self.id).fd()
    }

    /// The node at the other end.
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

    /// The next pipe that somebody opened to here.
    pub fn accept(&mut self) -> Option<Pipe> {
        let mut state = self.fabric.call();
        let id = state.listeners.get_mut(self.id)?.backlog.pop_front()?;
        drop(state);
        Some(Pipe { fabric: self.fabric.clone(), id })
    }

    /// The descriptor to wait on: ready when there is a pipe to accept.
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
