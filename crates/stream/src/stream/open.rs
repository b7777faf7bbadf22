//! How a stream begins: what one end says of itself, checked by the other.

use std::sync::Arc;

use farcall_link::bootstrap::{Refusal, RefusalKind, StreamEnd};
use farcall_link::{Connection, Nic, PairConfig, Region, Transport};
use farcall_verbs::{Access, CompChannel, CqInitAttr, Error, Nanos, RawCq, Wc};

use super::turn::Nap;
use super::{COMPLETIONS_AT_ONCE, Counters, Stream};
use crate::config::{RING_BYTES_MAX, RING_BYTES_MIN, StreamConfig};
use crate::error::OpenError;
use crate::inlet::Inlet;
use crate::outlet::{Outlet, SEND_DEPTH, WORD_PLACES_BYTES};
use crate::waking::{RECEIVES, Waker, Woken};
use crate::words::{WISH, WORDS_BYTES, Wish};

/// An end that is made and not connected.
pub struct Opening {
    nic: Nic,
    config: StreamConfig,
    connection: Connection,
    cq: Box<dyn RawCq>,
    channel: Arc<dyn CompChannel>,
    words: Arc<Region>,
    bytes: Arc<Region>,
}

/// How long a send ring is for a peer's receive ring.
fn send_ring_bytes(theirs: u64) -> usize {
    (theirs as usize / 2).max(RING_BYTES_MIN)
}

impl Opening {
    /// Makes what an end needs: queue pair, completion queue, channel, receive ring.
    ///
    /// # Errors
    /// If the device has no room for it.
    pub fn new(nic: &Nic, config: StreamConfig) -> Result<Self, Error> {
        let channel = nic.context.create_comp_channel()?;
        let cqe = SEND_DEPTH + RECEIVES + 8;
        let cq = nic.context.create_cq(&CqInitAttr { cqe, channel: Some(&*channel) })?;
        let pair = PairConfig {
            send_depth: SEND_DEPTH,
            recv_depth: RECEIVES,
            sges_max: 1,
            signal_every: 16,
            inline_max_bytes: 256,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let mut connection = Connection::new(nic, Transport::Rc, &*cq, pair, None)?;
        connection.post_empty_receives(RECEIVES)?;
        let ring_bytes = config.ring_bytes.clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let [words, bytes] = Region::alloc_two(&*nic.pd, [WORDS_BYTES, ring_bytes], access)?.map(Arc::new);
        Ok(Self { nic: nic.clone(), config, connection, cq, channel, words, bytes })
    }

    /// What the other end is to be told.
    pub fn end(&self) -> StreamEnd {
        StreamEnd {
            provider: self.nic.provider.to_owned(),
            qp: self.connection.info(&self.nic),
            words: self.words.remote(),
            ring: self.bytes.remote(),
            is_in_order: self.connection.places_in_order(&self.bytes),
        }
    }

    /// The client's last step: connects to the end that answered.
    ///
    /// # Errors
    /// If what it says of itself cannot be, or the device does not reach it.
    pub fn connect(self, theirs: &StreamEnd) -> Result<Stream, OpenError> {
        check(&self.nic, theirs)?;
        let mut stream = self.connect_to(theirs, true)?;
        // The server sends nothing before this has come.
        let said = stream.outlet.say(&mut stream.connection, WISH, Wish::FIRST.encode());
        said.map_err(|error| Error::invalid("open stream", error.to_string()))?;
        Ok(stream)
    }

    fn connect_to(mut self, theirs: &StreamEnd, is_ready: bool) -> Result<Stream, Error> {
        self.connection.connect(&self.nic, &theirs.qp)?;
        let ours = self.end();
        let local_bytes = WORD_PLACES_BYTES + send_ring_bytes(theirs.ring.len_bytes);
        let local = Arc::new(Region::alloc(&*self.nic.pd, local_bytes, Access::LOCAL_WRITE)?);
        let local_id = self.connection.attach(Arc::clone(&local));
        let waker = Waker::new(!theirs.is_in_order);
        let woken = Woken::new(self.config.may_poll && ours.is_in_order);
        Ok(Stream {
            inlet: Inlet::new(self.words, self.bytes, ours.is_in_order, woken),
            outlet: Outlet::new(local, local_id, theirs.words, theirs.ring, waker, is_ready),
            connection: self.connection,
            cq: self.cq,
            channel: self.channel,
            config: self.config,
            broken: None,
            is_unread: false,
            lent: Vec::new(),
            lent_read: 0,
            wcs: [Wc::default(); COMPLETIONS_AT_ONCE],
            turns_to_poll: 0,
            is_armed: false,
            nap: Nap::default(),
            now: Nanos(0),
            counters: Counters::default(),
        })
    }
}

impl Stream {
    /// The server's step: makes an end for a client that asks for a stream. Nothing the client says is believed before
    /// it is checked, nothing is made before.
    ///
    /// # Errors
    /// What to tell the client.
    pub fn accept(nic: &Nic, config: StreamConfig, theirs: &StreamEnd) -> Result<(Self, StreamEnd), Refusal> {
        check(nic, theirs)?;
        let no_resources = |error: Error| RefusalKind::Resources.because(error.to_string());
        let opening = Opening::new(nic, config).map_err(no_resources)?;
        let ours = opening.end();
        Ok((opening.connect_to(theirs, false).map_err(no_resources)?, ours))
    }
}

/// Checks what the other end says of itself.
fn check(nic: &Nic, theirs: &StreamEnd) -> Result<(), Refusal> {
    if theirs.provider != nic.provider {
        let why = format!("one end is on {}, the other on {}", theirs.provider, nic.provider);
        return Err(RefusalKind::Provider.because(why));
    }
    if !theirs.words.holds(0, WORDS_BYTES as u64) {
        let why = format!("{} bytes for words that take {WORDS_BYTES}", theirs.words.len_bytes);
        return Err(RefusalKind::OutOfRange.because(why));
    }
    let (ring, most) = (theirs.ring.len_bytes, RING_BYTES_MAX as u64);
    if ring < RING_BYTES_MIN as u64 || ring > most {
        let why = format!("a ring of {ring} bytes, not of {RING_BYTES_MIN} to {most}");
        return Err(RefusalKind::OutOfRange.because(why));
    }
    let owner = nic.context.check_owner(theirs.qp.gid(), theirs.qp.qp_num);
    owner.map_err(|error| RefusalKind::Resources.because(format!("peer: {error}")))
}
