//! Programs that write and read byte streams, and record both.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use farcall_link::Nic;
use farcall_sim::{Host, Listener, NodeId, Pipe, Stream as Random};
use farcall_stream::{BootstrapChannel, Counters, NegotiatedStream, Stream, StreamConfig, StreamError};
use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet};

pub const PORT: u16 = 4_712;

/// A pipe as the channel of a stream's handshake.
pub struct Channel(Pipe);

impl BootstrapChannel for Channel {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map(|()| bytes.len())
    }

    fn fd(&self) -> RawFd {
        self.0.fd()
    }
}

/// Lengths of the streams that ended, by (client, whether it is the server's end).
pub type Ends = Rc<RefCell<BTreeMap<(u64, bool), u64>>>;

/// How a direction of a stream ended for its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All of it was read.
    Whole,
    /// It broke.
    Broken(StreamError),
}

/// Returns the byte of a stream at a position; each stream has different contents.
fn byte_at(client: u64, is_servers: bool, position: u64) -> u8 {
    if !is_servers && position < 8 {
        // The client's number.
        return client.to_le_bytes()[position as usize];
    }
    let mixed = (position / 8 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(client * 2 + u64::from(is_servers));
    (mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> (8 * (position % 8))) as u8
}

/// One end of one stream: the bytes that it writes and has read.
pub struct End {
    host: Host,
    negotiated: Option<NegotiatedStream<Channel>>,
    is_server: bool,
    client: Option<u64>,
    random: Random,
    /// Number of bytes to write, and written.
    to_write: u64,
    written: u64,
    read: u64,
    first: Vec<u8>,
    next_at: Nanos,
    ends: Ends,
    /// How the direction that it reads has ended, and the direction that it writes.
    pub ended: Option<Ended>,
    pub wrote: Option<Ended>,
    pub counters: Counters,
}

const LENGTHS: [u64; 7] = [0, 1, 5_000, 40_000, 100_000, 300_000, 1_000_000];

impl End {
    fn new(
        host: &Host,
        negotiated: NegotiatedStream<Channel>,
        client: Option<u64>,
        mut random: Random,
        ends: Ends,
    ) -> Self {
        let least = if client.is_some() { 8 } else { 0 };
        let most = LENGTHS[random.below(7) as usize];
        let to_write = random.below(most + 1) + least;
        Self {
            host: host.clone(),
            negotiated: Some(negotiated),
            is_server: client.is_none(),
            client,
            random,
            to_write,
            written: 0,
            read: 0,
            first: Vec::new(),
            next_at: Nanos(0),
            ends,
            ended: None,
            wrote: None,
            counters: Counters::default(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.negotiated.is_none()
    }

    pub fn describe(&self) -> String {
        let counters = self.counters;
        format!(
            "client {:?}, is server {}: {} of {} written {:?}, {} read {:?}, {counters:?}",
            self.client, self.is_server, self.written, self.to_write, self.wrote, self.read, self.ended
        )
    }

    /// Checks the bytes read.
    fn check(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.client.is_none() {
                self.first.push(*byte);
                self.client = self.first[..].try_into().ok().map(u64::from_le_bytes);
            } else if let Some(client) = self.client {
                let expected = byte_at(client, !self.is_server, self.read);
                assert_eq!(*byte, expected, "byte {} for {client}, server {}", self.read, self.is_server);
            }
            self.read += 1;
        }
    }

    fn read_some(&mut self, stream: &mut Stream) -> std::result::Result<bool, StreamError> {
        let most = [1, 7, 300, 5_000, 70_000][self.random.below(5) as usize];
        if self.random.chance_ppm(300_000) {
            let lent = stream.fill(most.min(9_000))?.to_vec();
            let used = lent.len().min(most);
            self.check(&lent[..used]);
            stream.consume(used);
            return Ok(used > 0);
        }
        let mut bytes = vec![0; most];
        let got = stream.read(&mut bytes)?;
        self.check(&bytes[..got]);
        Ok(got > 0)
    }

    fn write_some(&mut self, stream: &mut Stream) -> std::result::Result<(), StreamError> {
        let most = [1, 64, 700, 9_000, 80_000][self.random.below(5) as usize];
        let Some(client) = self.client else { return Err(StreamError::WouldBlock) };
        let from = self.written;
        let count = (self.to_write - from).min(most);
        let is_servers = self.is_server;
        let bytes: Vec<u8> =
            (from..from + count).map(|position| byte_at(client, is_servers, position)).collect();
        self.written += if self.random.chance_ppm(300_000) {
            stream.write_with(bytes.len(), |space| _ = space.put(&bytes))? as u64
        } else {
            stream.write(&bytes)? as u64
        };
        Ok(())
    }

    /// Reads and writes as far as possible. Returns whether any bytes were transferred.
    fn transfer(&mut self, stream: &mut Stream) -> bool {
        let mut any = false;
        for _ in 0..self.random.between(1, 4) {
            if self.ended.is_none() && self.random.chance_ppm(800_000) {
                match self.read_some(stream) {
                    Ok(true) => any = true,
                    Ok(false) => {
                        let end =
                            self.ends.borrow().get(&(self.client.unwrap_or(0), !self.is_server)).copied();
                        assert_eq!(end, Some(self.read), "the end of a stream of {:?}", self.client);
                        self.ended = Some(Ended::Whole);
                        any = true;
                    }
                    Err(StreamError::WouldBlock) => {}
                    Err(error) => self.ended = Some(Ended::Broken(error)),
                }
            }
            if self.wrote.is_none() && self.client.is_some() {
                if self.written == self.to_write {
                    let stream_of = (self.client.unwrap_or(0), self.is_server);
                    self.ends.borrow_mut().insert(stream_of, self.written);
                    stream.finish();
                    self.wrote = Some(Ended::Whole);
                    any = true;
                    continue;
                }
                match self.write_some(stream) {
                    Ok(()) => any = true,
                    Err(StreamError::WouldBlock) => {}
                    Err(error) => self.wrote = Some(Ended::Broken(error)),
                }
            }
        }
        any
    }
}

impl Endpoint for End {
    fn progress(&mut self, now: Nanos) -> Progress {
        let Some(mut negotiated) = self.negotiated.take() else { return Progress::IDLE };
        let next = negotiated.progress(now);
        if let Some(failure) = negotiated.take_failure() {
            let _why = failure.to_string();
            self.ended = Some(Ended::Broken(StreamError::BrokenPipe));
            self.wrote = self.ended.clone();
            return Progress::Again;
        }
        let wait = if now < self.next_at { Some(self.next_at) } else { None };
        let mut any = false;
        if let (Some(stream), None) = (negotiated.stream(), wait) {
            any = self.transfer(stream);
            // Bytes that remain unread raise no further wake-up.
            any |= self.ended.is_none() && stream.is_readable();
            any |= self.wrote.is_none() && self.client.is_some() && stream.is_writable();
            self.counters = stream.counters();
            if self.random.chance_ppm(50_000) {
                // The program does other work, or is stopped.
                let pause = Duration::from_nanos(self.random.between(100, 3_000_000));
                match self.random.chance_ppm(500_000) {
                    true => self.next_at = now + pause,
                    false => self.host.compute(pause),
                }
            }
        }
        let broke = |ended: &Option<Ended>| matches!(ended, Some(Ended::Broken(_)));
        let is_over = self.ended.is_some() && (negotiated.may_close() || broke(&self.wrote));
        if is_over || broke(&self.ended) {
            // The channel is closed with the stream.
            drop(negotiated);
            return Progress::Again;
        }
        self.negotiated = Some(negotiated);
        if any {
            return Progress::Again;
        }
        next.merge(Progress::Idle { until: wait })
    }

    fn arm(&mut self) -> Result<()> {
        self.negotiated.as_mut().map_or(Ok(()), NegotiatedStream::arm)
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.negotiated.iter().for_each(|negotiated| negotiated.wait_set(set));
    }
}

/// Returns a client of one stream.
pub fn client(
    host: &Host,
    nic: &Nic,
    server: NodeId,
    number: u64,
    config: StreamConfig,
    random: Random,
    ends: &Ends,
) -> End {
    let channel = Channel(host.dial(server, PORT));
    let negotiated = NegotiatedStream::open(nic, config, channel).expect("a device with room");
    End::new(host, negotiated, Some(number), random, ends.clone())
}

/// Accepts streams.
pub struct Server {
    host: Host,
    nic: Nic,
    listener: Listener,
    random: Random,
    ends: Ends,
    pub sessions: Vec<End>,
}

impl Server {
    pub fn new(host: &Host, nic: Nic, random: Random, ends: &Ends) -> Self {
        let listener = host.listen(PORT).expect("one server a node");
        Self { host: host.clone(), nic, listener, random, ends: ends.clone(), sessions: Vec::new() }
    }

    fn accept(&mut self) -> bool {
        let mut any = false;
        while let Some(pipe) = self.listener.accept() {
            let config = config(&mut self.random);
            let negotiated = NegotiatedStream::accept(&self.nic, config, Channel(pipe));
            let random = Random::new(self.random.next_u64(), farcall_sim::Purpose::Program(0));
            self.sessions.push(End::new(&self.host, negotiated, None, random, self.ends.clone()));
            any = true;
        }
        any
    }
}

impl Endpoint for Server {
    fn progress(&mut self, now: Nanos) -> Progress {
        let any = self.accept();
        let idle = if any { Progress::Again } else { Progress::IDLE };
        self.sessions.iter_mut().fold(idle, |next, session| next.merge(session.progress(now)))
    }

    fn arm(&mut self) -> Result<()> {
        self.sessions.iter_mut().try_for_each(Endpoint::arm)
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.listener.fd());
        self.sessions.iter().for_each(|session| session.wait_set(set));
    }
}

/// Returns the configuration of an end for a seed.
pub fn config(random: &mut Random) -> StreamConfig {
    let ring_bytes = [4 << 10, 12 << 10, 32 << 10, 256 << 10][random.below(4) as usize];
    let most = [4 << 10, 64 << 10, 1 << 20][random.below(3) as usize];
    StreamConfig::default().ring_bytes(ring_bytes).ring_bytes_max(most).may_poll(random.chance_ppm(700_000))
}
