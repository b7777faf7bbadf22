//! Bootstrap pipes: ordered bytes between nodes, with delay, close and reset, like a TCP connection of a non-blocking
//! program.

use std::collections::VecDeque;

use crate::channel::Descriptor;
use crate::packet::Node;
use crate::queue::Event;
use crate::state::State;
use crate::trace::RecordKind;

/// An item in flight to an end.
pub(crate) enum Item {
    Opened,
    Bytes(Vec<u8>),
    Closed,
    Reset,
    Refused,
}

/// The state of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipeState {
    Dialling,
    Open,
    /// The other side closed; bytes that arrived earlier can still be read.
    Closed,
    Reset,
    Refused,
}

/// One end of a pipe.
pub(crate) struct End {
    pub(crate) node: Node,
    pub(crate) peer_node: Node,
    pub(crate) port: u16,
    pub(crate) peer: Option<u32>,
    pub(crate) state: PipeState,
    pub(crate) in_flight: VecDeque<(u64, Item)>,
    pub(crate) inbox: VecDeque<u8>,
    /// Bytes written before the pipe was open.
    pub(crate) unsent: Vec<u8>,
    /// Number of attempts to send the next item.
    pub(crate) attempts: u32,
}

impl End {
    /// Creates the end of a pipe that is not open yet.
    pub(crate) fn dialling(node: Node, peer_node: Node, port: u16) -> Self {
        let (peer, in_flight, inbox, unsent, attempts) = Default::default();
        Self { node, peer_node, port, peer, state: PipeState::Dialling, in_flight, inbox, unsent, attempts }
    }
}

/// A listening port.
pub(crate) struct Listening {
    pub(crate) node: Node,
    pub(crate) port: u16,
    pub(crate) backlog: VecDeque<u32>,
}

impl State {
    pub(crate) fn pipe_delay_ns(&mut self) -> u64 {
        let faults = self.network.faults;
        // The delay of the kernel's network stack on both sides, in addition to the network's.
        20_000 + self.pipes_rng.between(faults.delay_min_ns, 10 * faults.delay_max_ns)
    }

    fn is_apart(&self, a: Node, b: Node) -> bool {
        self.network.is_cut(a, b)
            || self.network.is_cut(b, a)
            || !self.nodes[a as usize].is_alive
            || !self.nodes[b as usize].is_alive
    }

    /// Sends an item to an end, after the items sent before.
    pub(crate) fn send_item(&mut self, to: u32, item: Item) {
        let at_ns = self.effect_ns() + self.pipe_delay_ns();
        let Some(end) = self.ends.get_mut(to) else { return };
        let after = end.in_flight.back().map_or(0, |(at_ns, _)| at_ns + 1);
        let at_ns = at_ns.max(after);
        end.in_flight.push_back((at_ns, item));
        self.at(at_ns, Event::Pipe { end: to });
    }

    /// Handles a connection request that arrives, or is lost and retried.
    pub(crate) fn dial_event(&mut self, id: u32, attempt: u32) {
        let Some(end) = self.ends.get(id) else { return };
        let (from, to, port) = (end.node, end.peer_node, end.port);
        if self.is_apart(from, to) {
            if attempt < self.params.pipe_attempts {
                let at_ns = self.now_ns + self.params.pipe_retry_ns;
                self.at(at_ns, Event::Dial { end: id, attempt: attempt + 1 });
            } else {
                self.end_pipe(id, PipeState::Refused);
            }
            return;
        }
        let Some(listener) = self.nodes[to as usize].listeners.get(&port).copied() else {
            self.send_item(id, Item::Refused);
            return;
        };
        let mut end = End::dialling(to, from, port);
        (end.peer, end.state) = (Some(id), PipeState::Open);
        let accepted = self.ends.insert(end);
        if let Some(end) = self.ends.get_mut(id) {
            end.peer = Some(accepted);
        }
        self.note(RecordKind::PipeOpen, [u64::from(id), u64::from(accepted), u64::from(port), 0]);
        if let Some(listening) = self.listeners.get_mut(listener) {
            listening.backlog.push_back(accepted);
        }
        self.ready(to, Descriptor::Listener(listener).fd());
        self.send_item(id, Item::Opened);
    }

    /// Delivers the items that are due at an end.
    pub(crate) fn pipe_event(&mut self, id: u32) {
        loop {
            let Some(end) = self.ends.get(id) else { return };
            let Some((at_ns, _)) = end.in_flight.front() else { return };
            if *at_ns > self.now_ns {
                return;
            }
            if self.is_apart(end.node, end.peer_node) {
                self.retry_item(id);
                return;
            }
            let item = self.ends.get_mut(id).and_then(|end| {
                end.attempts = 0;
                end.in_flight.pop_front()
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
            for (at, item) in end.in_flight.iter_mut().enumerate() {
                item.0 = item.0.max(at_ns + at as u64);
            }
            let all: Vec<u64> = end.in_flight.iter().map(|(at_ns, _)| *at_ns).collect();
            all.into_iter().for_each(|at_ns| self.at(at_ns, Event::Pipe { end: id }));
            return;
        }
        let peer = end.peer;
        self.end_pipe(id, PipeState::Reset);
        if let Some(peer) = peer {
            self.end_pipe(peer, PipeState::Reset);
        }
    }

    fn deliver(&mut self, id: u32, item: Item) {
        let Some(end) = self.ends.get_mut(id) else { return };
        match item {
            Item::Opened => {
                end.state = PipeState::Open;
                let (unsent, peer) = (std::mem::take(&mut end.unsent), end.peer);
                if let Some(peer) = peer.filter(|_| !unsent.is_empty()) {
                    self.send_bytes(peer, &unsent);
                }
            }
            Item::Bytes(bytes) => {
                let len = bytes.len() as u64;
                end.inbox.extend(bytes);
                self.note(RecordKind::PipeBytes, [u64::from(id), len, 0, 0]);
                self.pipe_ready(id);
            }
            Item::Closed => self.end_pipe(id, PipeState::Closed),
            Item::Reset => self.end_pipe(id, PipeState::Reset),
            Item::Refused => self.end_pipe(id, PipeState::Refused),
        }
    }

    fn end_pipe(&mut self, id: u32, state: PipeState) {
        let Some(end) = self.ends.get_mut(id) else { return };
        if matches!(end.state, PipeState::Dialling | PipeState::Open) {
            end.state = state;
        }
        self.note(RecordKind::PipeEnd, [u64::from(id), state as u64, 0, 0]);
        self.pipe_ready(id);
    }

    fn pipe_ready(&mut self, id: u32) {
        if let Some(end) = self.ends.get(id) {
            let node = end.node;
            self.ready(node, Descriptor::Pipe(id).fd());
        }
    }

    /// Sends bytes in segments of random lengths.
    pub(crate) fn send_bytes(&mut self, to: u32, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let take = self.pipes_rng.between(1, rest.len() as u64) as usize;
            let (now, later) = rest.split_at(take);
            self.send_item(to, Item::Bytes(now.to_vec()));
            rest = later;
        }
    }

    /// Drops an end on behalf of its owner.
    pub(crate) fn drop_end(&mut self, id: u32) {
        let Some(end) = self.ends.remove(id) else { return };
        if let Some(peer) = end.peer {
            self.send_item(peer, Item::Closed);
        }
    }

    pub(crate) fn is_pipe_readable(&self, id: u32) -> bool {
        self.ends.get(id).is_some_and(|end| {
            !end.inbox.is_empty() || !matches!(end.state, PipeState::Dialling | PipeState::Open)
        })
    }

    pub(crate) fn has_backlog(&self, id: u32) -> bool {
        self.listeners.get(id).is_some_and(|listening| !listening.backlog.is_empty())
    }
}
