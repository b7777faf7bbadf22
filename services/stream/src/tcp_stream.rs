//! A stream over the TCP connection of its handshake.
//!
//! The connection carries the application's bytes and nothing else. TCP has all properties that a stream needs except
//! one: when a process is killed, the kernel closes its connections as if the process had. Until this end has ended
//! its stream, closing the connection therefore *resets* it (SO_LINGER with a time of zero), so that the peer can
//! distinguish a process exit from an orderly end.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use std::{io, mem};

use farcall_verbs::{Endpoint, Nanos, Progress, Result as VerbsResult, WaitSet};
use rustix::event::{Timespec, epoll};
use rustix::net::{RecvFlags, recv, sockopt};

use crate::backoff_sleep::BackoffSleep;
use crate::config::StreamConfig;
use crate::error::{Broken, StreamError};
use crate::receive_buffer::ReceiveBuffer;
use crate::stream::Counters;
use crate::write_buffer::WriteBuffer;

/// The methods are documented at [`crate::Stream`].
pub(crate) struct TcpEnd {
    /// `None` after a reset.
    socket: Option<TcpStream>,
    /// Edge-triggered epoll descriptor: readable when the state of the connection has changed since the last query.
    events: OwnedFd,
    /// Cached readiness; cleared when a call returns `WouldBlock`.
    can_read: bool,
    can_write: bool,
    /// Composed bytes, and the range of them that was not sent yet.
    composed: Vec<u8>,
    unsent: Range<usize>,
    /// Bytes received but not yet read by the application.
    receive_buffer: ReceiveBuffer,
    lent_bytes_max: usize,
    is_finished: bool,
    end_sent: bool,
    /// `true` once all bytes and the end are known to have arrived.
    is_delivered: bool,
    /// `true` once the peer's end has been received.
    is_at_end: bool,
    /// `true` once the peer no longer reads what this end writes.
    is_unread: bool,
    broken: Option<Broken>,
    written: u64,
    read: u64,
    stalls: u64,
    backoff: BackoffSleep,
}

/// Length of the composition buffer in bytes.
const COMPOSED_BYTES: usize = 64 << 10;
/// Number of bytes that [`TcpEnd::fill`] requests from the kernel at once.
const FILL_BYTES: usize = 64 << 10;
/// Weight of a driver iteration in polls of memory: it is a system call.
const POLL_WEIGHT: u32 = 16;
/// Maximum interval between checks whether the peer's kernel has acknowledged all bytes.
const BACKOFF_MAX: Duration = Duration::from_millis(100);
/// TCP keepalive: idle time before the first probe, number of probes, interval between probes.
const KEEPALIVE: (Duration, u32, Duration) = (Duration::from_secs(30), 3, Duration::from_secs(10));
/// TCP_USER_TIMEOUT: time after which unacknowledged bytes end the connection.
const UNACKNOWLEDGED: Duration = Duration::from_mins(1);

impl TcpEnd {
    /// Takes ownership of a non-blocking connection, with the bytes that must still be sent over it.
    ///
    /// # Errors
    /// Returns an error if no descriptor can be created or a socket option cannot be set.
    pub fn new(socket: TcpStream, config: &StreamConfig, unsent: Vec<u8>) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&events, &socket, epoll::EventData::new_u64(0), edges)?;
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        let (idle, count, interval) = KEEPALIVE;
        sockopt::set_tcp_keepidle(&socket, idle)?;
        sockopt::set_tcp_keepcnt(&socket, count)?;
        sockopt::set_tcp_keepintvl(&socket, interval)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED.as_millis() as u32)?;
        Ok(Self {
            socket: Some(socket),
            events,
            can_read: true,
            can_write: true,
            unsent: 0..unsent.len(),
            composed: unsent,
            receive_buffer: ReceiveBuffer::default(),
            lent_bytes_max: config.lent_bytes_max,
            is_finished: false,
            end_sent: false,
            is_delivered: false,
            is_at_end: false,
            is_unread: false,
            broken: None,
            written: 0,
            read: 0,
            stalls: 0,
            backoff: BackoffSleep::default(),
        })
    }

    /// Adds bytes that were received together with the last ones of the handshake.
    pub fn received(&mut self, bytes: &[u8]) {
        self.read += bytes.len() as u64;
        self.receive_buffer.appended().extend_from_slice(bytes);
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        self.check_writable()?;
        if bytes.is_empty() {
            return Ok(0);
        }
        match if self.flush()? { self.send(bytes)? } else { 0 } {
            0 => self.stalled(),
            sent => {
                self.written += sent as u64;
                Ok(sent)
            }
        }
    }

    pub fn write_with(
        &mut self,
        most: usize,
        compose: impl FnOnce(&mut WriteBuffer<'_>),
    ) -> Result<usize, StreamError> {
        self.check_writable()?;
        if !self.flush()? || !self.can_write {
            return self.stalled();
        }
        if self.composed.len() < COMPOSED_BYTES {
            self.composed.resize(COMPOSED_BYTES, 0);
        }
        let room = most.min(self.composed.len());
        let mut buffer = WriteBuffer::in_private(&mut self.composed[..room]);
        compose(&mut buffer);
        let len_bytes = buffer.len_bytes;
        self.unsent = 0..len_bytes;
        self.written += len_bytes as u64;
        self.flush()?;
        Ok(len_bytes)
    }

    #[cold]
    fn stalled(&mut self) -> Result<usize, StreamError> {
        self.stalls += 1;
        Err(StreamError::WouldBlock)
    }

    pub fn is_writable(&self) -> bool {
        self.check_writable().is_err() || self.can_write
    }

    fn check_writable(&self) -> Result<(), StreamError> {
        match &self.broken {
            Some(Broken::Reset) => Err(StreamError::Reset(Broken::Reset)),
            Some(_) => Err(StreamError::BrokenPipe),
            None if self.is_finished || self.is_unread => Err(StreamError::BrokenPipe),
            None => Ok(()),
        }
    }

    /// Sends composed bytes. Returns whether none are left.
    fn flush(&mut self) -> Result<bool, StreamError> {
        while !self.unsent.is_empty() {
            let composed = mem::take(&mut self.composed);
            let sent = self.send(&composed[self.unsent.clone()]);
            self.composed = composed;
            match sent? {
                0 => return Ok(false),
                sent => self.unsent.start += sent,
            }
        }
        Ok(true)
    }

    /// Sends as many of `bytes` as the kernel accepts now. Returns their number.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        let Some(socket) = &mut self.socket else { return Err(StreamError::BrokenPipe) };
        while self.can_write {
            match socket.write(bytes) {
                Ok(sent) => return Ok(sent),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_write = false,
                Err(error) => {
                    // The kernel reports a reset only once, so it is recorded for the reader here. A peer that had
                    // ended its stream before it exited causes `EPIPE`, and its stream can still be read to the end.
                    if error.kind() == ErrorKind::BrokenPipe {
                        self.is_unread = true;
                    } else {
                        self.mark_broken(lost(&error));
                    }
                    return Err(StreamError::BrokenPipe);
                }
            }
        }
        Ok(0)
    }

    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, StreamError> {
        self.check_readable()?;
        if !self.receive_buffer.rest().is_empty() {
            return Ok(self.receive_buffer.take(out));
        }
        if out.is_empty() { Ok(0) } else { self.receive(|mut socket| socket.read(out)) }
    }

    fn check_readable(&self) -> Result<(), StreamError> {
        match &self.broken {
            Some(Broken::Reset) => Err(StreamError::Reset(Broken::Reset)),
            _ => Ok(()),
        }
    }

    /// Calls `receive` until it returns bytes. Returns their number; 0 at the end of the stream.
    fn receive(
        &mut self,
        mut receive: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Result<usize, StreamError> {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.is_at_end) else { return Ok(0) };
        while self.can_read {
            match receive(socket) {
                Ok(0) if self.broken.is_none() => {
                    self.is_at_end = true;
                    return Ok(0);
                }
                Ok(0) => break,
                Ok(got) => {
                    self.read += got as u64;
                    return Ok(got);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_read = false,
                Err(error) => {
                    self.mark_broken(lost(&error));
                    break;
                }
            }
        }
        Err(self.broken.clone().map_or(StreamError::WouldBlock, StreamError::Reset))
    }

    pub fn fill(&mut self, at_least: usize) -> Result<&[u8], StreamError> {
        self.check_readable()?;
        let max = self.lent_bytes_max;
        assert!(at_least <= max, "{at_least} bytes at once exceed the bound of {max}");
        while self.receive_buffer.rest().len() < at_least.max(1) {
            let mut receive_buffer = mem::take(&mut self.receive_buffer);
            let bytes = receive_buffer.appended();
            let more = FILL_BYTES.max(at_least.saturating_sub(bytes.len())).min(max - bytes.len());
            bytes.reserve_exact(more);
            let got = self.receive(|socket| {
                let room = rustix::buffer::spare_capacity(bytes);
                Ok(recv(socket, room, RecvFlags::empty())?.0)
            });
            self.receive_buffer = receive_buffer;
            if got? == 0 {
                break;
            }
        }
        Ok(self.receive_buffer.rest())
    }

    pub fn consume(&mut self, len_bytes: usize) {
        self.receive_buffer.consume(len_bytes);
    }

    pub fn is_readable(&self) -> bool {
        !self.receive_buffer.rest().is_empty() || self.has_work() || self.is_at_end || self.broken.is_some()
    }

    pub const fn has_work(&self) -> bool {
        self.can_read
    }

    pub fn finish(&mut self) {
        self.is_finished = true;
        self.send_end();
    }

    /// Sends the remaining bytes, and the end after them.
    fn send_end(&mut self) {
        if !self.is_finished || self.end_sent || !matches!(self.flush(), Ok(true)) {
            return;
        }
        self.end_sent = true;
        if let Some(socket) = &self.socket {
            // From here on the kernel delivers the written bytes even if this process exits. Errors are ignored: the
            // connection was lost before.
            let _ = sockopt::set_socket_linger(socket, None);
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
    }

    /// Returns whether delivery of all bytes and the end has just been detected. It must be polled because no event
    /// reports it.
    fn poll_delivery(&mut self) -> bool {
        if !self.end_sent || self.is_delivered {
            return false;
        }
        self.is_delivered = self.socket.as_ref().is_none_or(|socket| unacknowledged_bytes(socket) == 0);
        self.is_delivered
    }

    pub fn ended(&mut self) -> Option<u64> {
        self.poll_delivery();
        self.is_delivered.then_some(self.written)
    }

    pub fn reset(&mut self) {
        self.mark_broken(Broken::Reset);
        if let Some(socket) = self.socket.take() {
            // Closing the socket with this option resets the connection.
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
    }

    fn mark_broken(&mut self, why: Broken) {
        self.unsent = 0..0;
        self.broken.get_or_insert(why);
    }

    pub const fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    pub fn counters(&self) -> Counters {
        Counters { stalls: self.stalls, ..Counters::default() }
    }

    pub fn totals(&self) -> (u64, u64) {
        (self.written, self.read - self.receive_buffer.rest().len() as u64)
    }

    /// Consumes the events of the connection. Returns whether there were any.
    fn take_events(&mut self) -> bool {
        let mut room = [mem::MaybeUninit::uninit(); 1];
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(([event], _)) = epoll::wait(&self.events, &mut room, Some(&no_time)) else { return false };
        let flags = event.flags;
        let is_lost = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        self.can_write |= is_lost || flags.contains(epoll::EventFlags::OUT);
        self.can_read |= is_lost || flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP);
        // The peer will not acknowledge the rest any more.
        if flags.contains(epoll::EventFlags::ERR) && self.end_sent && !self.is_delivered {
            self.mark_broken(Broken::HungUp);
        }
        true
    }
}

impl Endpoint for TcpEnd {
    fn progress(&mut self, now: Nanos) -> Progress {
        let mut any = self.take_events();
        // Errors are reported by the next write.
        let _ = self.flush();
        self.send_end();
        let is_late = now >= self.backoff.until;
        any |= is_late && self.poll_delivery();
        if any {
            self.backoff = BackoffSleep::default();
            return Progress::Again;
        }
        if self.end_sent && !self.is_delivered && self.broken.is_none() {
            if is_late {
                self.backoff.begin(now, BACKOFF_MAX);
            }
            return Progress::Idle { until: Some(self.backoff.until) };
        }
        Progress::IDLE
    }

    fn arm(&mut self) -> VerbsResult<()> {
        Ok(())
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.events.as_raw_fd());
    }

    fn poll_weight(&self) -> u32 {
        POLL_WEIGHT
    }
}

fn lost(error: &io::Error) -> Broken {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Broken::HungUp,
        _ => Broken::Connection(error.to_string()),
    }
}

/// Returns the number of bytes sent that the peer's kernel has not acknowledged; an end counts as one byte.
fn unacknowledged_bytes(socket: &TcpStream) -> i32 {
    const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: the opcode and its output type must match, as `Getter::new` requires: tcp(7) specifies that SIOCOUTQ
    // writes one int.
    let asked =
        unsafe { rustix::ioctl::ioctl(socket.as_fd(), rustix::ioctl::Getter::<SIOCOUTQ, i32>::new()) };
    asked.unwrap_or(0)
}
