//! Queue pairs with a single peer.

use farcall_verbs::{Error, QpAttr, QpType, RawCq, SendFlags, SendWr, Sge};

use crate::bootstrap::QpInfo;
use crate::queue_pair::{PSN_MASK, QpSizes, QueuePair, is_queue_pair};
use crate::{
    AddressId, LocalSlice, Nic, PostRefused, Remote, RemoteRegion, SharedReceives, Ticket, Transport,
};

/// A queue pair with a single peer. Over RC and UC it is connected to the peer; over UD all its datagrams go to the
/// peer, and [`Connection::send_datagram`] is the only operation.
pub struct Connection(QueuePair);

/// The only destination of a queue pair over UD.
const PEER: AddressId = AddressId(0);

impl Connection {
    /// Creates a queue pair whose send and receive completions go to `cq`. Receives can be posted.
    ///
    /// # Errors
    /// Returns the errors of creating and initialising a queue pair.
    pub fn new(
        nic: &Nic,
        transport: Transport,
        cq: &dyn RawCq,
        config: QpSizes,
        shared: Option<&SharedReceives>,
    ) -> Result<Self, Error> {
        QueuePair::new(nic, transport.qp_type(), cq, config, shared).map(Self)
    }

    /// Connects the queue pair: INIT → RTR → RTS.
    ///
    /// # Errors
    /// If the peer cannot be reached, or its numbers are out of range.
    pub fn connect(&mut self, nic: &Nic, peer: &QpInfo) -> Result<(), Error> {
        if peer.qp_num > PSN_MASK || peer.psn > PSN_MASK {
            return Err(Error::invalid("connect", "a queue pair or packet number of more than 24 bits"));
        }
        if self.0.qp_type() == QpType::Ud {
            self.0.start_datagrams()?;
            let peer = self.0.add_peer(nic, peer)?;
            debug_assert_eq!(peer, PEER);
            return Ok(());
        }
        let (path, mtu) = (nic.path_to(peer.gid(), peer.lid), nic.path_mtu().min(peer.mtu()));
        if self.0.qp_type() == QpType::Uc {
            let rtr = QpAttr::rtr_unreliable(peer.qp_num, peer.psn, path, mtu);
            return self.0.modify([rtr, QpAttr::rts_unreliable(self.0.psn())]);
        }
        let reads = |usual: Option<u8>| usual.map(|reads| reads.min(nic.attr().max_qp_rd_atom));
        let rtr = QpAttr::rtr(peer.qp_num, peer.psn, path, mtu);
        let rts = QpAttr::rts(self.0.psn());
        self.0.modify([
            QpAttr { max_dest_rd_atomic: reads(rtr.max_dest_rd_atomic), ..rtr },
            QpAttr { max_rd_atomic: reads(rts.max_rd_atomic), ..rts },
        ])
    }

    /// WRITEs from a local buffer. A short buffer is sent inline and may be reused at once: its ticket is
    /// [`Ticket::NONE`].
    ///
    /// # Errors
    /// If the queue is full, the target is outside the grant, or the provider refuses.
    #[inline]
    pub fn write(&mut self, from: LocalSlice, to: Remote<'_>) -> Result<Ticket, PostRefused> {
        let sges = [self.0.regions.sge(from)];
        let addr = self.0.target(to, from.len_bytes as u64)?;
        self.0.post_rarely_signalled(SendWr::write(0, &sges, addr, to.grant.rkey))
    }

    /// WRITEs bytes of private memory inline; they are copied before the function returns.
    ///
    /// # Errors
    /// If the queue is full, the target is outside the grant, or the provider refuses.
    ///
    /// # Panics
    /// If `bytes` is longer than [`crate::QueuePair::inline_max_bytes`].
    #[inline]
    pub fn write_bytes(&mut self, bytes: &[u8], to: Remote<'_>) -> Result<(), PostRefused> {
        assert!(bytes.len() as u64 <= u64::from(self.0.inline_max_bytes()), "more bytes than go inline");
        let addr = bytes.as_ptr().expose_provenance() as u64;
        let sges = [Sge { addr, length: bytes.len() as u32, lkey: 0 }];
        let addr = self.0.target(to, bytes.len() as u64)?;
        self.0.post_rarely_signalled(SendWr::write(0, &sges, addr, to.grant.rkey)).map(drop)
    }

    /// WRITEs from a local buffer and wakes the peer with `imm`.
    ///
    /// # Errors
    /// Like [`Connection::write`].
    pub fn write_imm(&mut self, from: LocalSlice, to: Remote<'_>, imm: u32) -> Result<Ticket, PostRefused> {
        let sges = [self.0.regions.sge(from)];
        let addr = self.0.target(to, from.len_bytes as u64)?;
        let wr = SendWr::write(0, &sges, addr, to.grant.rkey).with_imm(imm);
        self.0.post_rarely_signalled(wr.with_flags(SendFlags::SOLICITED))
    }

    /// SENDs a local buffer into the peer's next receive. A short buffer is sent inline, as in [`Connection::write`].
    ///
    /// # Errors
    /// If the queue is full or the provider refuses.
    #[inline]
    pub fn send(&mut self, from: LocalSlice) -> Result<Ticket, PostRefused> {
        let sges = [self.0.regions.sge(from)];
        self.0.post_rarely_signalled(SendWr::send(0, &sges).with_flags(SendFlags::SOLICITED))
    }

    /// SENDs a local buffer as a datagram; otherwise like [`Connection::send`].
    ///
    /// # Errors
    /// If the queue is full or the provider refuses.
    ///
    /// # Panics
    /// If it has no peer yet, or has another transport.
    #[inline]
    pub fn send_datagram(&mut self, from: LocalSlice) -> Result<Ticket, PostRefused> {
        self.0.send_to(from, PEER)
    }

    /// Wakes the peer with `imm` and without payload (KICK).
    ///
    /// # Errors
    /// If the queue is full, the target is outside the grant, or the provider refuses.
    pub fn kick(&mut self, grant: &RemoteRegion, imm: u32) -> Result<Ticket, PostRefused> {
        let wr = SendWr::write(0, &[], grant.addr, grant.rkey).with_imm(imm);
        self.0.post_rarely_signalled(wr.with_flags(SendFlags::SOLICITED))
    }

    /// READs into a local buffer. The request is always signalled, and its completion carries `tag`.
    ///
    /// # Errors
    /// If the queue is full, the target is outside the grant, or the provider refuses.
    #[inline]
    pub fn read(&mut self, into: LocalSlice, from: Remote<'_>, tag: u32) -> Result<Ticket, PostRefused> {
        let sges = [self.0.regions.sge(into)];
        let addr = self.0.target(from, into.len_bytes as u64)?;
        let wr = SendWr::read(0, &sges, addr, from.grant.rkey).with_flags(SendFlags::SIGNALED);
        self.0.post_one(wr, tag)
    }
}

is_queue_pair!(Connection);
