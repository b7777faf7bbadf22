//! Bootstrap pipes: ordered bytes between nodes, with delay, close and reset, like a TCP connection of a non-blocking
//! program.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;

use crate::arena::Arena;
use crate::channel::Descriptor;
use crate::devices::Devices;
use crate::packet::Node;
use crate::queue::Event;
use crate::rng::Stream;
use crate::trace::RecordKind;

/// An item in flight to an end.
enum Item {
    Opened,
    Bytes(Vec<u8>),
    Closed,
    Reset,
    Refused,
}

/// The state of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PipeState {
    Dialling,
    Open,
    /// The other side closed; bytes that arrived earlier can still be read.
    Closed,
    Reset,
    Refused,
}

/// One end of a pipe.
struct End {
    node: Node,
    peer_node: Node,
    port: u16,
    peer: Option<u32>,
    state: PipeState,
    in_flight: VecDeque<(u64, Item)>,
    inbox: VecDeque<u8>,
    /// Bytes written before the pipe was open.
    unsent: Vec<u8>,
    /// Number of attempts to send the next item.
    attempts: u32,
}

impl End {
    /// Creates the end of a pipe that is not open yet.
    fn dialling(node: Node, peer_node: Node, port: u16) -> Self {
        let (peer, in_flight, inbox, unsent, attempts) = Default::default();
        Self { node, peer_node, port, peer, state: PipeState::Dialling, in_flight, inbox, unsent, attempts }
    }
}

/// A listening port.
struct Listening {
    node: Node,
    port: u16,
    backlog: VecDeque<u32>,
}

/// The pipes and listening ports of all nodes.
pub(crate) struct Pipes {
    random: Stream,
    ends: Arena<End>,
    listeners: Arena<Listening>,
    by_port: BTreeMap<(Node, u16), u32>,
}

impl Pipes {
    /// Creates the state of a world without pipes.
    pub(crate) fn new(random: Stream) -> Self {
        Self { random, ends: Arena::default(), listeners: Arena::default(), by_port: BTreeMap::new() }
    }

    /// Returns the number of ends.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Opens a pipe to a port of a node; returns its end.
    pub(crate) fn dial(&mut self, devices: &mut Devices, node: Node, to: Node, port: u16) -> u32 {
        let id = self.ends.insert(End::dialling(node, to, port));
        let at_ns = devices.scheduler.time.effect_ns() + self.delay_ns(devices);
        devices.at(at_ns, Event::Dial { end: id, attempt: 0 });
        id
    }

    /// Listens on a port; returns `None` if it has a listener.
    pub(crate) fn listen(&mut self, node: Node, port: u16) -> Option<u32> {
        if self.by_port.contains_key(&(node, port)) {
            return None;
        }
        let id = self.listeners.insert(Listening { node, port, backlog: VecDeque::new() });
        self.by_port.insert((node, port), id);
        Some(id)
    }

    /// Returns the next pipe that was opened to a listener.
    pub(crate) fn accept(&mut self, listener: u32) -> Option<u32> {
        self.listeners.get_mut(listener)?.backlog.pop_front()
    }

    /// Closes a listener, and the pipes that it has not returned.
    pub(crate) fn drop_listener(&mut self, devices: &mut Devices, id: u32) {
        let Some(listening) = self.listeners.remove(id) else { return };
        let port = (listening.node, listening.port);
        if self.by_port.get(&port) == Some(&id) {
            self.by_port.remove(&port);
        }
        for end in listening.backlog {
            self.drop_end(devices, end);
        }
    }

    /// Returns the node at the other side of an end.
    pub(crate) fn peer_node(&self, id: u32) -> Option<Node> {
        self.ends.get(id).map(|end| end.peer_node)
    }

    /// Reads available bytes of an end. Returns 0 if the other side closed the pipe.
    pub(crate) fn read(&mut self, id: u32, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        let end = self.ends.get_mut(id).ok_or(ErrorKind::ConnectionReset)?;
        if end.state == PipeState::Reset {
            return Err(ErrorKind::ConnectionReset);
        }
        let got = end.inbox.len().min(bytes.len());
        for (to, from) in bytes.iter_mut().zip(end.inbox.drain(..got)) {
            *to = from;
        }
        match end.state {
            _ if got > 0 => Ok(got),
            PipeState::Closed => Ok(0),
            PipeState::Refused => Err(ErrorKind::ConnectionRefused),
            _ => Err(ErrorKind::WouldBlock),
        }
    }

    /// Sends bytes from an end, once the pipe is open.
    pub(crate) fn write(&mut self, devices: &mut Devices, id: u32, bytes: &[u8]) -> Result<(), ErrorKind> {
        let end = self.ends.get_mut(id).ok_or(ErrorKind::BrokenPipe)?;
        match (end.state, end.peer) {
            (PipeState::Dialling, _) => end.unsent.extend_from_slice(bytes),
            (PipeState::Open, Some(peer)) => {
                if self.ends.get(peer).is_some() {
                    self.send_bytes(devices, peer, bytes);
                } else {
                    // The other side no longer exists, and its kernel sends a reset.
                    self.send_item(devices, id, Item::Reset);
                }
            }
            _ => return Err(ErrorKind::BrokenPipe),
        }
        Ok(())
    }

    fn delay_ns(&mut self, devices: &Devices) -> u64 {
        let faults = devices.network.faults();
        // The delay of the kernel's network stack on both sides, in addition to the network's.
        20_000 + self.random.between(faults.delay_min_ns, 10 * faults.delay_max_ns)
    }

    /// Sends an item to an end, after the items sent before.
    fn send_item(&mut self, devices: &mut Devices, to: u32, item: Item) {
        let at_ns = devices.scheduler.time.effect_ns() + self.delay_ns(devices);
        let Some(end) = self.ends.get_mut(to) else { return };
        let after = end.in_flight.back().map_or(0, |(at_ns, _)| at_ns + 1);
        let at_ns = at_ns.max(after);
        end.in_flight.push_back((at_ns, item));
        devices.at(at_ns, Event::Pipe { end: to });
    }

    /// Handles a connection request that arrives, or is lost and retried.
    pub(crate) fn dial_event(&mut self, devices: &mut Devices, id: u32, attempt: u32) {
        let Some(end) = self.ends.get(id) else { return };
        let (from, to, port) = (end.node, end.peer_node, end.port);
        if is_apart(devices, from, to) {
            if attempt < devices.params.pipe_attempts {
                let at_ns = devices.now_ns() + devices.params.pipe_retry_ns;
                devices.at(at_ns, Event::Dial { end: id, attempt: attempt + 1 });
            } else {
                self.end_pipe(devices, id, PipeState::Refused);
            }
            return;
        }
        let Some(listener) = self.by_port.get(&(to, port)).copied() else {
            self.send_item(devices, id, Item::Refused);
            return;
        };
        let mut end = End::dialling(to, from, port);
        (end.peer, end.state) = (Some(id), PipeState::Open);
        let accepted = self.ends.insert(end);
        if let Some(end) = self.ends.get_mut(id) {
            end.peer = Some(accepted);
        }
        devices.note(RecordKind::PipeOpen, [u64::from(id), u64::from(accepted), u64::from(port), 0]);
        if let Some(listening) = self.listeners.get_mut(listener) {
            listening.backlog.push_back(accepted);
        }
        devices.scheduler.ready(to, Descriptor::Listener(listener).fd());
        self.send_item(devices, id, Item::Opened);
    }

    /// Delivers the items that are due at an end.
    pub(crate) fn deliver_due(&mut self, devices: &mut Devices, id: u32) {
        loop {
            let Some(end) = self.ends.get(id) else { return };
            let Some((at_ns, _)) = end.in_flight.front() else { return };
            if *at_ns > devices.now_ns() {
                return;
            }
            if is_apart(devices, end.node, end.peer_node) {
                self.retry_item(devices, id);
                return;
            }
            let item = self.ends.get_mut(id).and_then(|end| {
                end.attempts = 0;
                end.in_flight.pop_front()
            });
            match item {
                Some((_, item)) => self.deliver(devices, id, item),
                None => return,
            }
        }
    }

    fn retry_item(&mut self, devices: &mut Devices, id: u32) {
        let (retry_ns, attempts_max) = (devices.params.pipe_retry_ns, devices.params.pipe_attempts);
        let at_ns = devices.now_ns() + retry_ns;
        let Some(end) = self.ends.get_mut(id) else { return };
        end.attempts += 1;
        if end.attempts < attempts_max {
            for (at, item) in end.in_flight.iter_mut().enumerate() {
                item.0 = item.0.max(at_ns + at as u64);
            }
            let all: Vec<u64> = end.in_flight.iter().map(|(at_ns, _)| *at_ns).collect();
            all.into_iter().for_each(|at_ns| devices.at(at_ns, Event::Pipe { end: id }));
            return;
        }
        let peer = end.peer;
        self.end_pipe(devices, id, PipeState::Reset);
        if let Some(peer) = peer {
            self.end_pipe(devices, peer, PipeState::Reset);
        }
    }

    fn deliver(&mut self, devices: &mut Devices, id: u32, item: Item) {
        let Some(end) = self.ends.get_mut(id) else { return };
        match item {
            Item::Opened => {
                end.state = PipeState::Open;
                let (unsent, peer) = (std::mem::take(&mut end.unsent), end.peer);
                if let Some(peer) = peer.filter(|_| !unsent.is_empty()) {
                    self.send_bytes(devices, peer, &unsent);
                }
            }
            Item::Bytes(bytes) => {
                let len = bytes.len() as u64;
                end.inbox.extend(bytes);
                devices.note(RecordKind::PipeBytes, [u64::from(id), len, 0, 0]);
                self.pipe_ready(devices, id);
            }
            Item::Closed => self.end_pipe(devices, id, PipeState::Closed),
            Item::Reset => self.end_pipe(devices, id, PipeState::Reset),
            Item::Refused => self.end_pipe(devices, id, PipeState::Refused),
        }
    }

    fn end_pipe(&mut self, devices: &mut Devices, id: u32, state: PipeState) {
        let Some(end) = self.ends.get_mut(id) else { return };
        if matches!(end.state, PipeState::Dialling | PipeState::Open) {
            end.state = state;
        }
        devices.note(RecordKind::PipeEnd, [u64::from(id), state as u64, 0, 0]);
        self.pipe_ready(devices, id);
    }

    fn pipe_ready(&mut self, devices: &mut Devices, id: u32) {
        if let Some(end) = self.ends.get(id) {
            let node = end.node;
            devices.scheduler.ready(node, Descriptor::Pipe(id).fd());
        }
    }

    /// Sends bytes in segments of random lengths.
    fn send_bytes(&mut self, devices: &mut Devices, to: u32, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let take = self.random.between(1, rest.len() as u64) as usize;
            let (now, later) = rest.split_at(take);
            self.send_item(devices, to, Item::Bytes(now.to_vec()));
            rest = later;
        }
    }

    /// Drops an end on behalf of its owner.
    pub(crate) fn drop_end(&mut self, devices: &mut Devices, id: u32) {
        let Some(end) = self.ends.remove(id) else { return };
        if let Some(peer) = end.peer {
            self.send_item(devices, peer, Item::Closed);
        }
    }

    pub(crate) fn is_readable(&self, id: u32) -> bool {
        self.ends.get(id).is_some_and(|end| {
            !end.inbox.is_empty() || !matches!(end.state, PipeState::Dialling | PipeState::Open)
        })
    }

    pub(crate) fn has_backlog(&self, id: u32) -> bool {
        self.listeners.get(id).is_some_and(|listening| !listening.backlog.is_empty())
    }
}

fn is_apart(devices: &Devices, a: Node, b: Node) -> bool {
    devices.network.is_cut(a, b)
        || devices.network.is_cut(b, a)
        || !devices.nodes.is_alive(a)
        || !devices.nodes.is_alive(b)
}
