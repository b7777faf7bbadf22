//! A listening socket and the handshakes in progress on it, as an endpoint.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall_drive::{AcceptBackoff, deepen_backlog};
use farcall_link::Nic;
use farcall_stats::Block;
use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet, with_sources};

use super::StreamOptions;
use crate::negotiated::NegotiatedStream;
use crate::stream::StreamPath;

/// Maximum number of concurrent handshakes; a new client displaces the oldest one. Until its first message is
/// complete, each costs no more than a TCP connection.
const PENDING_MAX: usize = 256;
/// Maximum number of open streams that wait for [`StreamAcceptor::take`]; further clients wait in the kernel's backlog.
const ARRIVED_MAX: usize = 64;
/// Interval between retries while `accept` fails, for example for lack of descriptors.
const REST: Duration = Duration::from_millis(100);

/// Outcomes of the stream requests received by a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcceptCounts {
    /// Streams through rings.
    pub through_rings: u64,
    /// Streams over TCP.
    pub over_tcp: u64,
    /// Refused, or disconnected before the reply.
    pub refused: u64,
    /// Handshakes that did not complete in time.
    pub late: u64,
    /// Incomplete handshakes displaced by newer clients.
    pub displaced: u64,
}

farcall_stats::counters! {
    /// Outcomes at one listener, in the process's statistics. The thread that drives the listener is the only writer.
    struct Counters {
        /// See [`AcceptCounts`].
        through_rings,
        /// See [`AcceptCounts`].
        over_tcp,
        /// See [`AcceptCounts`].
        refused,
        /// See [`AcceptCounts`].
        late,
        /// See [`AcceptCounts`].
        displaced,
    }
}

/// Returns a name for the counters of another listener of this process.
fn next_label() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("stream listener {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Accepts streams.
pub(super) struct StreamAcceptor {
    listener: TcpListener,
    nic: Nic,
    pub options: StreamOptions,
    pending: VecDeque<(NegotiatedStream<TcpStream>, SocketAddr, Nanos)>,
    arrived: VecDeque<(NegotiatedStream<TcpStream>, SocketAddr)>,
    backoff: AcceptBackoff,
    counters: Block<Counters>,
}

impl StreamAcceptor {
    pub fn bind(nic: &Nic, address: impl ToSocketAddrs, options: StreamOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        deepen_backlog(&listener)?;
        let backoff = AcceptBackoff::new(format!("streams at {}", listener.local_addr()?));
        let (pending, arrived) = (VecDeque::new(), VecDeque::new());
        let counters = Block::new(&next_label(), 0);
        Ok(Self { listener, nic: nic.clone(), options, pending, arrived, backoff, counters })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn accept_counts(&self) -> AcceptCounts {
        let [through_rings, over_tcp, refused, late, displaced] = self.counters.values();
        AcceptCounts { through_rings, over_tcp, refused, late, displaced }
    }

    /// Returns an open stream, if there is one.
    pub fn take(&mut self) -> Option<(NegotiatedStream<TcpStream>, SocketAddr)> {
        self.arrived.pop_front()
    }

    #[cfg(feature = "tokio")]
    pub fn has_any(&self) -> bool {
        !self.arrived.is_empty()
    }

    fn accept(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while self.arrived.len() < ARRIVED_MAX
            && (self.backoff.remaining().is_none() || self.backoff.take_expired())
        {
            match self.listener.accept() {
                Ok((socket, from)) => {
                    any = true;
                    if socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).is_err() {
                        continue;
                    }
                    if self.pending.len() >= PENDING_MAX {
                        self.pending.pop_front();
                        self.counters.displaced.increment();
                    }
                    let negotiated = NegotiatedStream::accept(&self.nic, self.options.config, socket);
                    self.pending.push_back((negotiated, from, now + self.options.connect_timeout));
                }
                Err(error) if self.backoff.should_retry(&error) => {}
                Err(_) => break,
            }
        }
        any
    }
}

impl Endpoint for StreamAcceptor {
    fn progress(&mut self, now: Nanos) -> Progress {
        let mut any = self.accept(now);
        let mut until = self.backoff.remaining().map(|left| now + left.min(REST));
        for _ in 0..self.pending.len() {
            let Some((mut negotiated, from, late_at)) = self.pending.pop_front() else { break };
            any |= negotiated.progress(now) == Progress::Again;
            let failure = negotiated.take_failure();
            // A stream that has opened is returned even after its deadline, because its client has already been
            // notified.
            if failure.is_none() && negotiated.is_settled() {
                any = true;
                tracing::debug!(%from, path = %negotiated.path(), "a stream is open");
                match negotiated.path() {
                    StreamPath::Verbs => self.counters.through_rings.increment(),
                    StreamPath::Tcp => self.counters.over_tcp.increment(),
                }
                self.arrived.push_back((negotiated, from));
            } else if failure.is_some() || now >= late_at {
                any = true;
                match failure {
                    Some(why) => {
                        self.counters.refused.increment();
                        tracing::info!(%from, "refused a stream: {}", with_sources(&why));
                    }
                    None => {
                        self.counters.late.increment();
                        tracing::info!(%from, "refused a stream: its handshake took too long");
                    }
                }
            } else {
                until = Nanos::earlier(until, Some(late_at));
                self.pending.push_back((negotiated, from, late_at));
            }
        }
        if any { Progress::Again } else { Progress::Idle { until } }
    }

    fn arm(&mut self) -> Result<()> {
        Ok(())
    }

    fn wait_set(&self, set: &mut WaitSet) {
        if self.arrived.len() < ARRIVED_MAX && self.backoff.remaining().is_none() {
            set.insert(self.listener.as_raw_fd());
        }
        self.pending.iter().for_each(|(negotiated, ..)| negotiated.wait_set(set));
    }
}
