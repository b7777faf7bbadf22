//! Nodes and clients as programs of a simulated world. Calls are transferred over pipes, one frame in each direction.
//! Data is transferred as usual.

use std::time::Duration;

use farcall_link::{Entropy, Nic};
use farcall_memory::wire::RefusalKind;
use farcall_memory::{Engine, Node, NodeCallError, NodeConfig, Request};
use farcall_sim::{Host, Listener, NodeId, Pipe};
use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet};

use crate::support::Load;

const PORT: u16 = 900;
/// Timeout of a call.
const CALL_MAX: Duration = Duration::from_millis(40);

pub fn nic(host: &Host, seed: u64) -> Nic {
    Nic::open(host).unwrap().with_entropy(Entropy::seeded(seed))
}

/// A pipe that carries frames: a length, followed by that number of bytes.
struct Frames {
    pipe: Pipe,
    buffer: Vec<u8>,
}

impl Frames {
    fn new(pipe: Pipe) -> Self {
        Self { pipe, buffer: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        let frame = [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
        let _ = self.pipe.write(&frame);
    }

    /// Returns a complete frame; `None` if there is none yet. Fails at the end of the pipe.
    fn receive(&mut self) -> std::result::Result<Option<Vec<u8>>, ()> {
        let mut bytes = [0; 512];
        loop {
            match self.pipe.read(&mut bytes) {
                Ok(0) => return Err(()),
                Ok(got) => self.buffer.extend_from_slice(&bytes[..got]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(()),
            }
        }
        let Some(head) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let end = 4 + u32::from_le_bytes(*head) as usize;
        Ok((self.buffer.len() >= end).then(|| self.buffer.drain(..end).skip(4).collect()))
    }
}

/// A memory node.
pub struct NodeProgram {
    pub node: Node,
    listener: Listener,
    lines: Vec<Frames>,
}

impl NodeProgram {
    pub fn new(host: &Host, config: NodeConfig, seed: u64) -> Self {
        let node = Node::new(nic(host, seed), config, seed);
        Self { node, listener: host.listen(PORT).expect("one node a host"), lines: Vec::new() }
    }
}

impl Endpoint for NodeProgram {
    fn progress(&mut self, now: Nanos) -> Progress {
        while let Some(pipe) = self.listener.accept() {
            self.lines.push(Frames::new(pipe));
        }
        let (node, mut any) = (&mut self.node, false);
        self.lines.retain_mut(|line| {
            loop {
                match line.receive() {
                    Ok(None) => return true,
                    Err(()) => return false,
                    Ok(Some(request)) => {
                        any = true;
                        line.send(&match node.handle(&request, now) {
                            Ok(reply) => [&[0, 0][..], &reply.to_bytes()].concat(),
                            Err(refusal) => {
                                [&(refusal.kind as u16).to_le_bytes()[..], refusal.reason.as_bytes()].concat()
                            }
                        });
                    }
                }
            }
        });
        let until = self.node.tick(now);
        if any { Progress::Again } else { Progress::Idle { until } }
    }

    fn arm(&mut self) -> Result<()> {
        Ok(())
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.listener.fd());
        self.lines.iter().for_each(|line| set.insert(line.pipe.fd()));
    }
}

/// Connection of a client to one node.
struct Line {
    peer: NodeId,
    frames: Option<Frames>,
    /// Deadline of the call in progress.
    until: Option<Nanos>,
}

/// A client with its load.
pub struct ClientProgram {
    host: Host,
    pub engine: Engine,
    pub load: Load,
    lines: Vec<Line>,
    /// Number of requests left to issue; at most `at_once` are in progress.
    pub to_make: u64,
    pub at_once: usize,
    /// Number of metadata writes left to issue, one at a time.
    pub metadata_writes_to_make: u64,
    /// Number of pages left to read one at a time, after all other requests have completed.
    pub to_read: usize,
}

#[allow(dead_code, reason = "each test file uses a part")]
impl ClientProgram {
    pub fn new(host: &Host, engine: Engine, nodes: &[NodeId], load: Load) -> Self {
        let line = |peer: &NodeId| Line { peer: *peer, frames: None, until: None };
        let lines = nodes.iter().map(line).collect();
        Self {
            host: host.clone(),
            engine,
            load,
            lines,
            to_make: 0,
            at_once: 16,
            metadata_writes_to_make: 0,
            to_read: 0,
        }
    }

    /// Issues a write of the test itself.
    pub fn overwrite(&mut self, request: Request, now: Nanos) {
        self.load.adopt(&request);
        self.engine.submit(request, now).unwrap();
    }

    pub fn scrub(&mut self, now: Nanos) {
        let request = self.load.scrub();
        self.engine.submit(request, now).unwrap();
    }

    pub fn is_done(&self) -> bool {
        self.to_make == 0
            && self.metadata_writes_to_make == 0
            && self.to_read == 0
            && self.load.in_progress() == 0
    }

    fn collect(&mut self, at: usize, now: Nanos) -> bool {
        let line = &mut self.lines[at];
        let Some(until) = line.until else { return false };
        let received = line.frames.as_mut().map_or(Err(()), Frames::receive);
        let reply = match received {
            Ok(None) if now < until => return false,
            Ok(Some(bytes)) => {
                let code = u16::from_le_bytes([bytes[0], bytes[1]]);
                match RefusalKind::of_code(code) {
                    None => Ok(bytes[2..].to_vec()),
                    Some(kind) => {
                        Err(NodeCallError::Refused(kind.because(String::from_utf8_lossy(&bytes[2..]))))
                    }
                }
            }
            Ok(None) | Err(()) => {
                line.frames = None;
                Err(NodeCallError::Unreachable("no answer".into()))
            }
        };
        line.until = None;
        self.engine.on_reply(at, reply, now);
        true
    }

    fn make_requests(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while self.metadata_writes_to_make > 0
            && let Some(write) = self.load.write_metadata()
        {
            self.metadata_writes_to_make -= 1;
            self.engine.submit(write, now).unwrap();
            any = true;
        }
        while self.to_make > 0 && self.load.in_progress() < self.at_once {
            let Some(request) = self.load.request() else { break };
            self.to_make -= 1;
            self.engine.submit(request, now).unwrap();
            any = true;
        }
        while self.to_make == 0 && self.to_read > 0 && self.load.in_progress() == 0 {
            self.to_read -= 1;
            let request = self.load.read_page(self.to_read);
            self.engine.submit(request, now).unwrap();
            any = true;
        }
        any
    }
}

impl Endpoint for ClientProgram {
    fn progress(&mut self, now: Nanos) -> Progress {
        let mut any = self.make_requests(now);
        for at in 0..self.lines.len() {
            any |= self.collect(at, now);
        }
        let next = self.engine.progress(now);
        while let Some(ended) = self.engine.next_completed() {
            self.load.ended(ended);
            any = true;
        }
        while let Some((at, bytes)) = self.engine.next_call(now) {
            let line = &mut self.lines[at];
            let (host, peer) = (&self.host, line.peer);
            let frames = line.frames.get_or_insert_with(|| Frames::new(host.dial(peer, PORT)));
            frames.send(&bytes);
            line.until = Some(now + CALL_MAX);
            any = true;
        }
        let until = self.lines.iter().filter_map(|line| line.until).min();
        if any { Progress::Again } else { next.merge(Progress::Idle { until }) }
    }

    fn arm(&mut self) -> Result<()> {
        self.engine.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.engine.wait_set(set);
        self.lines
            .iter()
            .filter_map(|line| line.frames.as_ref())
            .for_each(|frames| set.insert(frames.pipe.fd()));
    }
}
