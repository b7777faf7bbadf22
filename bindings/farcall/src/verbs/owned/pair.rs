//! Queue pairs that hold what they are working on.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_drive::sleep_on;
use farcall_link::bootstrap::QpInfo;
use farcall_link::{
    Completed, Connection, Datagrams, Nic, PairConfig, Piece, PostRefused, Receive, ReceiveChain, RegionId,
    Remote, RemoteRegion, Transport, is_receive,
};
use farcall_verbs::{Access, CompChannel, CqInitAttr, Error, Notify, RawCq, Result, Wc, WcStatus};

use super::buffer::{Buffer, Buffers, Pool};

/// The format of an [`Address`].
const VERSION: u8 = 1;
const OP: &str = "wait for a completion";

/// How a queue pair is reached: what its peer must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(QpInfo);

impl Address {
    /// Bytes of an address.
    pub const LEN_BYTES: usize = 28;

    /// The address as bytes, to be sent to the peer.
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

    /// The address that a peer has sent. Whether anybody is there, connecting tells.
    ///
    /// # Errors
    /// If it is of a format that this version does not know.
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

/// What became of a buffer that was posted.
#[derive(Debug)]
#[must_use = "it holds a buffer"]
pub enum Completion {
    /// A SEND or a WRITE has ended well; or a READ, and the buffer holds what was read.
    Done(Buffer),
    /// A message came.
    Received {
        /// The buffer that it is in.
        buffer: Buffer,
        /// Where it is in there: behind the header of a datagram.
        payload: Range<usize>,
        /// Its immediate data, if it has any.
        imm: Option<u32>,
    },
    /// The pair has failed, or was closed, before the request ended.
    Ended {
        /// The buffer; of a receive or a READ, a part may have been written.
        buffer: Buffer,
        /// Why the pair failed; `None` if it was closed.
        failure: Option<WcStatus>,
    },
}

/// Something that was not posted, with its buffer.
#[derive(Debug)]
pub struct Refused {
    /// The buffer.
    pub buffer: Buffer,
    /// Why.
    pub source: PostRefused,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// A queue pair with one peer, over RC, UC or UD, and its completion queue. Every request is signalled; those of one
/// kind complete in their order.
pub struct Pair {
    qp: Connection,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    nic: Nic,
    pool: Arc<Pool>,
    region: RegionId,
    /// A receive for each buffer, by slot.
    all_receives: ReceiveChain,
    is_datagrams: bool,
    sends: VecDeque<Buffer>,
    receives: VecDeque<Buffer>,
    /// Of requests that failed: handed back when no peer can be inside them any more.
    ended: VecDeque<Buffer>,
}

impl Pair {
    /// Makes a queue pair for these buffers; receives can be posted. All of them may be under way at once.
    ///
    /// # Errors
    /// If the device refuses: a limit, a descriptor, a transport that it does not have.
    pub fn new(nic: &Nic, transport: Transport, buffers: &Buffers) -> Result<Self> {
        let pool = buffers.0.clone();
        let channel = nic.context.create_comp_channel()?;
        // Both queues full, and the mark that ends draining.
        let cqe = pool.count.saturating_mul(2).saturating_add(2);
        let cq = nic.context.create_cq(&CqInitAttr { cqe, channel: Some(&*channel) })?;
        let config = PairConfig {
            send_depth: pool.count.saturating_add(1),
            recv_depth: pool.count,
            sges_max: 1,
            signal_every: 1,
            inline_max_bytes: 0,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE,
        };
        let mut qp = Connection::new(nic, transport, &*cq, config, None)?;
        let region = qp.attach(pool.region.clone());
        let pieces: Vec<Piece> = (0..pool.count)
            .map(|slot| Piece { region, offset: pool.offset(slot), len_bytes: pool.len_bytes })
            .collect();
        let receives: Vec<Receive<'_>> =
            pieces.iter().map(|piece| Receive { local: std::slice::from_ref(piece), tag: 0 }).collect();
        let all_receives = qp.receive_chain(&receives);
        let is_datagrams = transport == Transport::Ud;
        let (sends, receives, ended) = Default::default();
        let nic = nic.clone();
        Ok(Self { qp, cq, channel, nic, pool, region, all_receives, is_datagrams, sends, receives, ended })
    }

    /// What the peer needs to connect.
    #[must_use]
    pub fn address(&self) -> Address {
        Address(self.qp.info(&self.nic))
    }

    /// Connects to a peer; over UD, sends go to it from now on.
    ///
    /// # Errors
    /// If there is nobody at the address, or he is not reached from here.
    pub fn connect(&mut self, peer: &Address) -> Result<()> {
        self.qp.connect(&self.nic, &peer.0)
    }

    fn piece(&self, buffer: &Buffer, len_bytes: usize) -> Piece {
        assert!(len_bytes <= buffer.len_bytes(), "{len_bytes} bytes of a buffer of {}", buffer.len_bytes());
        Piece { region: self.region, offset: self.pool.offset(buffer.slot), len_bytes }
    }

    /// Posts what `post` makes of a buffer, and holds it.
    fn post(
        &mut self,
        buffer: Buffer,
        len_bytes: usize,
        post: impl FnOnce(&mut Connection, Piece) -> Result<(), PostRefused>,
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
    /// If the buffer is not one of the pair's, or the pair is not connected.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn send(&mut self, buffer: Buffer, len_bytes: usize) -> Result<(), Refused> {
        let is_datagrams = self.is_datagrams;
        self.post(buffer, len_bytes, |qp, from| {
            if is_datagrams { qp.send_datagram(from) } else { qp.send(from) }.map(drop)
        })
    }

    /// WRITEs the first `len_bytes` of a buffer to `offset` of what the peer has granted. Over RC and UC.
    ///
    /// # Errors
    /// As [`Pair::send`], and if it is outside of the grant.
    ///
    /// # Panics
    /// If the buffer is shorter, or the pair is of datagrams.
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

    /// READs `len_bytes` from `offset` of what the peer has granted into a buffer. Over RC.
    ///
    /// # Errors
    /// As [`Pair::write`].
    ///
    /// # Panics
    /// As [`Pair::write`].
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

    /// Posts a buffer for the next message that comes. Over UD it needs 40 bytes more than that.
    ///
    /// # Errors
    /// If the buffer is not one of the pair's, or the pair has failed.
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

    /// The next completion, if there is one. Never waits.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn poll(&mut self) -> Result<Option<Completion>> {
        let mut wc = [Wc::default()];
        while self.cq.poll(&mut wc)? > 0 {
            let completed = self.qp.complete(&wc[0]);
            let queue = if is_receive(&wc[0]) { &mut self.receives } else { &mut self.sends };
            // The mark that ends draining has no buffer.
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

    /// Asks for an event: the descriptor ([`AsFd`]) polls readable after the next completion. Call [`Pair::poll`] once
    /// more before sleeping on it.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn arm(&mut self) -> Result<()> {
        while self.channel.poll_cq_event()?.is_some() {}
        self.cq.req_notify(Notify::Any)
    }

    /// Sleeps until there is a completion. `None` when the time is over; without a limit it waits for ever.
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
                // That a peer has left its last access makes no event.
                left = Some(left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY)));
            }
            sleep_on(&[self.channel.fd()], left)
                .map_err(|error| Error::os(OP, "poll its descriptor", error))?;
        }
    }

    /// Ends the pair: what is under way comes back as [`Completion::Ended`].
    pub fn close(&mut self) {
        self.qp.close();
    }

    /// Why it failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<WcStatus> {
        self.qp.failure()
    }

    /// Whether buffers of it wait for a peer that is stopped inside an access.
    #[cfg(feature = "tokio")]
    pub(super) fn waits_for_a_peer(&self) -> bool {
        !self.ended.is_empty()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn channel(&self) -> Arc<dyn CompChannel> {
        self.channel.clone()
    }
}

/// How often is looked whether a stopped peer has left.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

impl AsRawFd for Pair {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.fd()
    }
}

impl AsFd for Pair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as the pair, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }
}

impl Drop for Pair {
    /// Buffers under way become free, except where a peer may still be inside of them: those are lost.
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
