//! Creation of a stream: the parameters that each end sends in the handshake and the other one validates.

use std::sync::Arc;

use farcall_link::bootstrap::{Refusal, RefusalKind, StreamEnd};
use farcall_link::{Connection, Nic, QpSizes, Region, Transport};
use farcall_verbs::{
    Access, CompChannel, CqInitAttr, Error, Nanos, ProtectionDomain, RawCq, Wc, with_sources,
};

use super::{COMPLETIONS_AT_ONCE, RingStream};
use crate::backoff_sleep::BackoffSleep;
use crate::config::{RING_BYTES_MAX, RING_BYTES_MIN, StreamConfig};
use crate::error::OpenError;
use crate::probe::StreamProbe;
use crate::receive_buffer::ReceiveBuffer;
use crate::receive_ring::ReceiveRing;
use crate::recv_half::RecvHalf;
use crate::send_half::{COMPOSED_BYTES, SEND_DEPTH, SendHalf, inline_bytes};
use crate::stream::{Counters, Stream};
use crate::waking::{RECEIVES, WakeReceiver, WakeSender};
use crate::words::{WAKE_REQUEST, WORDS_BYTES, WakeRequest};

/// An end that is created but not connected.
pub struct UnconnectedStream {
    nic: Nic,
    config: StreamConfig,
    connection: Connection,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    words: Arc<Region>,
    bytes: Arc<Region>,
}

/// Allocates the local region for sending into a peer's ring of `theirs` bytes: slots for control words, and a send
/// ring half as long as the peer's ring.
pub(super) fn allocate_send_ring(
    pd: &dyn ProtectionDomain,
    config: &StreamConfig,
    theirs: u64,
) -> Result<Arc<Region>, Error> {
    // Bounded by the local maximum, so that a peer cannot make this process allocate more than one of its own rings
    // may have.
    let half = theirs.min(config.ring_bytes_max as u64) as usize / 2;
    let bytes = COMPOSED_BYTES + half.max(RING_BYTES_MIN);
    Ok(Arc::new(Region::alloc(pd, bytes, Access::LOCAL_WRITE)?))
}

impl UnconnectedStream {
    /// Creates the resources of an end: queue pair, completion queue, channel, receive ring.
    ///
    /// # Errors
    /// Returns an error if the device cannot create one of them.
    pub fn new(nic: &Nic, config: StreamConfig) -> Result<Self, Error> {
        let channel = nic.context().create_comp_channel()?;
        let cqe = SEND_DEPTH + RECEIVES + 8;
        let cq = nic.context().create_cq(&CqInitAttr { cqe, channel: Some(&*channel) })?;
        let pair = QpSizes {
            send_depth: SEND_DEPTH,
            recv_depth: RECEIVES,
            sges_max: 1,
            signal_every: 16,
            inline_max_bytes: inline_bytes(nic.attr().max_inline_data),
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let mut connection = Connection::new(nic, Transport::Rc, &*cq, pair, None)?;
        connection.post_empty_receives(RECEIVES)?;
        let ring_bytes = config.ring_bytes.clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let [words, bytes] =
            Region::alloc_two(&**nic.pd(), 0, [WORDS_BYTES, ring_bytes], access)?.map(Arc::new);
        Ok(Self { nic: nic.clone(), config, connection, cq, channel, words, bytes })
    }

    /// Returns the parameters to send to the other end.
    pub fn end(&self) -> StreamEnd {
        StreamEnd {
            provider: self.nic.provider().to_owned(),
            qp: self.connection.info(&self.nic),
            words: self.words.remote(),
            ring: self.bytes.remote(),
            is_in_order: self.connection.places_in_order(&self.bytes),
            may_use_channel: self.config.may_use_tcp,
        }
    }

    /// Performs the client's last step: connects to the end that replied.
    ///
    /// # Errors
    /// Returns an error if the parameters of the other end are invalid, or if the device does not reach it.
    pub fn connect(self, theirs: &StreamEnd) -> Result<Stream, OpenError> {
        check(&self.nic, theirs)?;
        let mut stream = self.connect_to(theirs, true)?;
        // The server sends nothing before this control word has arrived.
        let sent =
            stream.send_half.write_word(&mut stream.connection, WAKE_REQUEST, WakeRequest::FIRST.encode());
        sent.map_err(|error| Error::invalid("open stream", with_sources(&error)))?;
        Ok(Stream::through_rings(stream))
    }

    fn connect_to(mut self, theirs: &StreamEnd, is_ready: bool) -> Result<RingStream, Error> {
        self.connection.connect(&self.nic, &theirs.qp)?;
        let ours = self.end();
        let local = allocate_send_ring(&**self.nic.pd(), &self.config, theirs.ring.len_bytes)?;
        let local_id = self.connection.attach(Arc::clone(&local));
        let max_bytes = self.config.ring_bytes_max.min(RING_BYTES_MAX);
        let ring = ReceiveRing::new(self.bytes, max_bytes);
        let wake_sender = WakeSender::new(!theirs.is_in_order);
        let wake_receiver = WakeReceiver::new(self.config.may_poll && ours.is_in_order);
        let probe = ours.is_in_order.then(|| Arc::new(StreamProbe::new(Arc::clone(&self.words))));
        Ok(RingStream {
            recv_half: RecvHalf::new(self.words, ring, ours.is_in_order, wake_receiver),
            pd: Arc::clone(self.nic.pd()),
            send_half: SendHalf::new(local, local_id, theirs.words, theirs.ring, wake_sender, is_ready),
            connection: self.connection,
            cq: self.cq,
            channel: self.channel,
            config: self.config,
            broken: None,
            is_unread: false,
            receive_buffer: ReceiveBuffer::default(),
            wcs: [Wc::default(); COMPLETIONS_AT_ONCE],
            turns_to_poll: 0,
            is_armed: false,
            is_delegated: false,
            probe,
            backoff: BackoffSleep::default(),
            now: Nanos(0),
            moved_at: (0, Nanos(0)),
            counters: Counters::default(),
        })
    }
}

impl RingStream {
    /// Performs the server's step: creates an end for a client that requests a stream. All parameters of the client
    /// are validated first; no resources are allocated before that.
    ///
    /// # Errors
    /// Returns the refusal to send to the client.
    pub fn accept(nic: &Nic, config: StreamConfig, theirs: &StreamEnd) -> Result<(Self, StreamEnd), Refusal> {
        check(nic, theirs)?;
        let no_resources = |error: Error| RefusalKind::Resources.because(with_sources(&error));
        let unconnected = UnconnectedStream::new(nic, config).map_err(no_resources)?;
        let ours = unconnected.end();
        Ok((unconnected.connect_to(theirs, false).map_err(no_resources)?, ours))
    }
}

/// Validates the parameters of the other end.
fn check(nic: &Nic, theirs: &StreamEnd) -> Result<(), Refusal> {
    if theirs.provider != nic.provider() {
        let why = format!("one end is on {}, the other on {}", theirs.provider, nic.provider());
        return Err(RefusalKind::Provider.because(why));
    }
    if !theirs.words.holds(0, WORDS_BYTES as u64) {
        let why = format!("{} bytes for words that take {WORDS_BYTES}", theirs.words.len_bytes);
        return Err(RefusalKind::OutOfRange.because(why));
    }
    let (ring, most) = (theirs.ring.len_bytes, RING_BYTES_MAX as u64);
    if !is_ring(ring) {
        let why = format!("a ring of {ring} bytes, not of {RING_BYTES_MIN} to {most}");
        return Err(RefusalKind::OutOfRange.because(why));
    }
    let owner = nic.context().check_owner(theirs.qp.gid(), theirs.qp.qp_num);
    owner.map_err(|error| RefusalKind::Resources.because(format!("peer: {}", with_sources(&error))))
}

/// Returns whether `len_bytes` is a valid length of a ring.
pub(super) const fn is_ring(len_bytes: u64) -> bool {
    len_bytes >= RING_BYTES_MIN as u64 && len_bytes <= RING_BYTES_MAX as u64
}
