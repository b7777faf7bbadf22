//! Queue pairs that own the buffers of their requests.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_drive::sleep_on;
use farcall_link::bootstrap::QpInfo;
use farcall_link::{
    Completed, Connection, Datagrams, LocalSlice, Nic, PostRefused, QpSizes, Receive, ReceiveChain, RegionId,
    Remote, RemoteRegion, Transport, is_receive,
};
use farcall_verbs::{Access, CompChannel, CqInitAttr, Error, Notify, RawCq, Result, Wc, WcStatus};

use super::buffer::{Buffer, Buffers, Pool};

/// Format version of an [`Address`].
const VERSION: u8 = 1;
const OP: &str = "wait for a completion";

/// Address of a queue pair, which its peer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(QpInfo);

impl Address {
    /// Length of an address in bytes.
    pub const LEN_BYTES: usize = 28;

    /// Returns the address as bytes, to be sent to the peer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN_BYTES] {
        let QpInfo { qp_num, psn, gid, lid, mtu_log2 } = self.0;
        let mut bytes = [0; Self::LEN_BYTES];
        (bytes[0], bytes[1]) = (VERSION, mtu_log2);
        bytes[2..4].copy_from_slice(&lid.to_be_bytes());
        bytes[4..8].copy_from_slice(&qp_num.to_be_bytes());
        bytes[8..12].copy_from_slice(&psn.to_be_bytes());
        bytes[12..].copy_from_slice(&gid);
        bytes
    }

    /// Decodes the address that a peer sent. Only connecting determines whether it is reachable.
    ///
    /// # Errors
    /// If its format version is unknown.
    pub fn from_bytes(bytes: &[u8; Self::LEN_BYTES]) -> Result<Self> {
        let [version, mtu_log2, l0, l1, n0, n1, n2, n3, p0, p1, p2, p3, gid @ ..] = *bytes;
        if version != VERSION {
            let what = format!("an address of format {version}; {VERSION} is known");
            return Err(Error::invalid("read the address of a queue pair", what));
        }
        let qp_num = u32::from_be_bytes([n0, n1, n2, n3]);
        let psn = u32::from_be_bytes([p0, p1, p2, p3]);
        Ok(Self(QpInfo { qp_num, psn, gid, lid: u16::from_be_bytes([l0, l1]), mtu_log2 }))
    }
}

/// Completion of a request, which returns its buffer.
#[derive(Debug)]
#[must_use = "it holds a buffer"]
pub enum Completion {
    /// A SEND or a WRITE completed successfully; or a READ, and the buffer contains the data.
    Done(Buffer),
    /// A message was received.
    Received {
        /// The buffer that contains it.
        buffer: Buffer,
        /// Range of the message in the buffer: after the header for a datagram.
        payload: Range<usize>,
        /// Immediate data of the message.
        imm: Option<u32>,
    },
    /// The queue pair failed or was closed before the request completed.
    Ended {
        /// The buffer; after a receive or a READ, it may have been written in part.
        buffer: Buffer,
        /// Status of the failure; `None` if the queue pair was closed.
        failure: Option<WcStatus>,
    },
}

/// A request that was not posted, with its buffer.
#[derive(Debug)]
pub struct Refused {
    /// The buffer.
    pub buffer: Buffer,
    /// The reason.
    pub source: PostRefused,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request was not posted")
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// A queue pair with one peer, over RC, UC or UD, and its completion queue. Every request is signalled. Sends complete
/// in their order, and so do receives.
pub struct Pair {
    qp: Connection,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    nic: Nic,
    pool: Arc<Pool>,
    region: RegionId,
    /// One receive for each buffer, indexed by slot.
    all_receives: ReceiveChain,
    is_datagrams: bool,
    sends: VecDeque<Buffer>,
    receives: VecDeque<Buffer>,
    /// Buffers of failed requests, returned when no peer can access them any more.
    ended: VecDeque<Buffer>,
}

farcall_verbs::opaque_debug!(Pair);

impl Pair {
    /// Creates a queue pair for these buffers. Receives can be posted, and all buffers may be in flight at once.
    ///
    /// # Errors
    /// If the device refuses, for lack of a resource or of support for the transport.
    pub fn new(nic: &Nic, transport: Transport, buffers: &Buffers) -> Result<Self> {
        let pool = buffers.0.clone();
        let channel = nic.context().create_comp_channel()?;
        // Capacity for both queues, and for the marker request that ends draining.
        let cqe = pool.count.saturating_mul(2).saturating_add(2);
        let cq = nic.context().create_cq(&CqInitAttr { cqe, channel: Some(&*channel) })?;
        let config = QpSizes {
            send_depth: pool.count.saturating_add(1),
            recv_depth: pool.count,
            sges_max: 1,
            signal_every: 1,
            inline_max_bytes: 0,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE,
        };
        let mut qp = Connection::new(nic, transport, &*cq, config, None)?;
        let region = qp.attach(pool.region.clone());
        let pieces: Vec<LocalSlice> = (0..pool.count)
            .map(|slot| LocalSlice { region, offset: pool.offset(slot), len_bytes: pool.len_bytes })
            .collect();
        let receives: Vec<Receive<'_>> =
            pieces.iter().map(|piece| Receive { local: std::slice::from_ref(piece), tag: 0 }).collect();
        let all_receives = qp.receive_chain(&receives);
        let is_datagrams = transport == Transport::Ud;
        let (sends, receives, ended) = Default::default();
        let nic = nic.clone();
        Ok(Self { qp, cq, channel, nic, pool, region, all_receives, is_datagrams, sends, receives, ended })
    }

    /// Returns the address that the peer needs to connect.
    #[must_use]
    pub fn address(&self) -> Address {
        Address(self.qp.info(&self.nic))
    }

    /// Connects to a peer. Over UD, later sends go to this peer.
    ///
    /// # Errors
    /// If there is no queue pair at the address, or it is not reachable.
    pub fn connect(&mut self, peer: &Address) -> Result<()> {
        self.qp.connect(&self.nic, &peer.0)
    }

    fn piece(&self, buffer: &Buffer, len_bytes: usize) -> LocalSlice {
        assert!(len_bytes <= buffer.len_bytes(), "{len_bytes} bytes of a buffer of {}", buffer.len_bytes());
        LocalSlice { region: self.region, offset: self.pool.offset(buffer.slot), len_bytes }
    }

    /// Posts the request that `post` creates for a buffer, and keeps the buffer.
    fn post(
        &mut self,
        buffer: Buffer,
        len_bytes: usize,
        post: impl FnOnce(&mut Connection, LocalSlice) -> Result<(), PostRefused>,
    ) -> Result<(), Refused> {
        if !Arc::ptr_eq(&buffer.pool, &self.pool) {
            return Err(Refused { buffer, source: PostRefused::NotAttached { qp_num: self.qp.qp_num() } });
        }
        let piece = self.piece(&buffer, len_bytes);
        match post(&mut self.qp, piece) {
            Ok(()) => {
                self.sends.push_back(buffer);
                Ok(())
            }
            Err(source) => Err(Refused { buffer, source }),
        }
    }

    /// SENDs the first `len_bytes` of a buffer.
    ///
    /// # Errors
    /// If the buffer does not belong to this queue pair, or the queue pair is not connected.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn send(&mut self, buffer: Buffer, len_bytes: usize) -> Result<(), Refused> {
        let is_datagrams = self.is_datagrams;
        self.post(buffer, len_bytes, |qp, from| {
            if is_datagrams { qp.send_datagram(from) } else { qp.send(from) }.map(drop)
        })
    }

    /// WRITEs the first `len_bytes` of a buffer to `offset` in the peer's grant. Over RC and UC.
    ///
    /// # Errors
    /// Like [`Pair::send`]; also if the target is outside the grant.
    ///
    /// # Panics
    /// If the buffer is shorter, or the transport is UD.
    pub fn write(
        &mut self,
        buffer: Buffer,
        len_bytes: usize,
        grant: &RemoteRegion,
        offset: usize,
    ) -> Result<(), Refused> {
        assert!(!self.is_datagrams, "WRITE over UD");
        self.post(buffer, len_bytes, |qp, from| qp.write(from, Remote { grant, offset }).map(drop))
    }

    /// READs `len_bytes` from `offset` in the peer's grant into a buffer. Over RC.
    ///
    /// # Errors
    /// Like [`Pair::write`].
    ///
    /// # Panics
    /// Like [`Pair::write`].
    pub fn read(
        &mut self,
        buffer: Buffer,
        len_bytes: usize,
        grant: &RemoteRegion,
        offset: usize,
    ) -> Result<(), Refused> {
        assert!(!self.is_datagrams, "READ over UD");
        self.post(buffer, len_bytes, |qp, into| qp.read(into, Remote { grant, offset }, 0).map(drop))
    }

    /// Posts a buffer for a message. Over UD it must be 40 bytes longer than the message.
    ///
    /// # Errors
    /// If the buffer does not belong to this queue pair, or the queue pair has failed.
    pub fn post_receive(&mut self, buffer: Buffer) -> Result<(), Refused> {
        if !Arc::ptr_eq(&buffer.pool, &self.pool) {
            return Err(Refused { buffer, source: PostRefused::NotAttached { qp_num: self.qp.qp_num() } });
        }
        let at = buffer.slot as usize;
        match self.qp.post_receives(&self.all_receives, at..at + 1) {
            Ok(()) => {
                self.receives.push_back(buffer);
                Ok(())
            }
            Err(source) => Err(Refused { buffer, source }),
        }
    }

    /// Returns the next completion, if there is one, without waiting.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn poll(&mut self) -> Result<Option<Completion>> {
        let mut wc = [Wc::default()];
        while self.cq.poll(&mut wc)? > 0 {
            let completed = self.qp.complete(&wc[0]);
            let queue = if is_receive(&wc[0]) { &mut self.receives } else { &mut self.sends };
            // The marker request that ends draining has no buffer.
            let Some(buffer) = queue.pop_front() else { continue };
            match completed {
                Completed::Send { .. } => return Ok(Some(Completion::Done(buffer))),
                Completed::Received { len_bytes, imm, .. } => {
                    let start = if self.is_datagrams { Datagrams::HEADER_BYTES } else { 0 };
                    let payload = start..(len_bytes as usize).clamp(start, buffer.len_bytes());
                    return Ok(Some(Completion::Received { buffer, payload, imm }));
                }
                Completed::Failed(_) | Completed::Flushed => self.ended.push_back(buffer),
            }
        }
        if !self.ended.is_empty() && self.qp.is_quiesced() {
            let failure = self.qp.failure();
            return Ok(self.ended.pop_front().map(|buffer| Completion::Ended { buffer, failure }));
        }
        Ok(None)
    }

    /// Requests an event: the descriptor ([`AsFd`]) becomes readable after the next completion. The caller must call
    /// [`Pair::poll`] once more before it sleeps on the descriptor.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn arm(&mut self) -> Result<()> {
        while self.channel.poll_cq_event()?.is_some() {}
        self.cq.req_notify(Notify::Any)
    }

    /// Sleeps until there is a completion. Returns `None` after the timeout; without a timeout it waits indefinitely.
    ///
    /// # Errors
    /// If the device has failed, or the system cannot wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Completion>> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            self.arm()?;
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            let mut left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            if !self.ended.is_empty() {
                // The end of a peer's last access generates no event.
                left = Some(left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY)));
            }
            sleep_on(&[self.channel.fd()], left)
                .map_err(|error| Error::os(OP, "poll its descriptor", error))?;
        }
    }

    /// Closes the queue pair. Requests in flight return as [`Completion::Ended`].
    pub fn close(&mut self) {
        self.qp.close();
    }

    /// Returns the status of the failure, if the queue pair has failed.
    #[must_use]
    pub fn failure(&self) -> Option<WcStatus> {
        self.qp.failure()
    }

    /// Returns whether buffers wait for a peer that is stopped inside an access.
    #[cfg(feature = "tokio")]
    pub(super) fn waits_for_a_peer(&self) -> bool {
        !self.ended.is_empty()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn channel(&self) -> Arc<dyn CompChannel> {
        self.channel.clone()
    }
}

/// Interval at which the accesses of a stopped peer are checked.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

impl AsRawFd for Pair {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.fd()
    }
}

impl AsFd for Pair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `self` owns the channel, which keeps the descriptor open for the lifetime of the borrow.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }
}

impl Drop for Pair {
    /// Makes buffers in flight available, except those that a peer may still access, which are never reused.
    fn drop(&mut self) {
        self.qp.close();
        while let Ok(Some(completion)) = self.poll() {
            drop(completion);
        }
        if !self.qp.is_quiesced() {
            let under_way = self.sends.drain(..).chain(self.receives.drain(..)).chain(self.ended.drain(..));
            under_way.for_each(Buffer::lose);
        }
    }
}
