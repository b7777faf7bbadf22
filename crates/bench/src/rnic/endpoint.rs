//! One end of a reliable connection between two processes, with a region each for what comes in and what goes out.

use super::{RnicError, RnicTask};
use farcall_verbs::{
    Access, CqInitAttr, Gid, PortChoice, ProtectionDomain, Provider, QpAttr, QpCap, QpInitAttr, QpType,
    RawCq, RawMr, RawQp, RecvWr, SendFlags, SendWr, Sge, Wc,
};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// What the region holds before anything is written, so that a READ can be checked.
pub(super) const FILL: u8 = 0xa5;
/// Of unsignalled requests, every so many one is signalled and waited for, to free the send queue.
const SIGNAL_EVERY: u32 = 64;
/// A handshake line longer than this is not ours.
const LINE_LEN_BYTES_MAX: u64 = 4096;
/// READs under way, where the device can.
const READS_MAX: u8 = 16;
/// Requests a queue holds.
const QUEUE_DEPTH: u32 = 1024;

/// What one end must know of the other.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Address {
    gid: [u8; 16],
    lid: u16,
    qp_num: u32,
    psn: u32,
    pub(super) addr: u64,
    pub(super) rkey: u32,
    len_bytes: usize,
}

/// One end. The fields are dropped in order: the queue pair before the memory it uses.
pub(super) struct RnicEnd {
    pub(super) qp: Box<dyn RawQp>,
    cq: Box<dyn RawCq>,
    region: Box<dyn RawMr>,
    _pd: Arc<dyn ProtectionDomain>,
    pub(super) remote: Address,
    pub(super) len_bytes: usize,
    unsignalled: u32,
    /// Receives that completed while a send was waited for.
    received: usize,
    wcs: [Wc; 64],
}

impl RnicEnd {
    /// Opens the provider's first device and connects to the process behind `control`, which does the same.
    pub(super) fn connect(
        provider: &dyn Provider,
        control: &UnixStream,
        task: RnicTask,
    ) -> Result<Self, RnicError> {
        let devices = provider.devices()?;
        let device = devices
            .first()
            .ok_or_else(|| RnicError::Handshake(format!("provider {} has no device", provider.name())))?;
        let context = device.open()?;
        let port = PortChoice::automatic(&*context)?;
        let limits = context.query_device()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(&CqInitAttr { cqe: 2 * QUEUE_DEPTH, channel: None })?;
        // Incoming and outgoing halves, each a whole number of lines.
        let half_len_bytes = task.len_bytes.next_multiple_of(4096);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.alloc_mr(2 * half_len_bytes, access)?;
        let cap = QpCap {
            max_send_wr: QUEUE_DEPTH,
            max_recv_wr: QUEUE_DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: limits.max_inline_data.min(256),
        };
        let mut qp = pd.create_qp(&QpInitAttr {
            send_cq: &*cq,
            recv_cq: &*cq,
            srq: None,
            cap,
            qp_type: QpType::Rc,
            sq_sig_all: false,
        })?;
        qp.modify(&port.init(access))?;
        let psn = qp.qp_num() & 0x00ff_ffff;
        let mine = Address {
            gid: port.own_gid().0,
            lid: port.attr.lid,
            qp_num: qp.qp_num(),
            psn,
            addr: region.addr() as u64,
            rkey: region.rkey(),
            len_bytes: region.len_bytes(),
        };
        let remote = exchange(control, &mine)?;
        let path = port.path_to(Gid(remote.gid), remote.lid);
        let reads = Some(limits.max_qp_rd_atom.min(READS_MAX));
        let rtr = QpAttr::rtr(remote.qp_num, remote.psn, path, port.attr.active_mtu);
        qp.modify(&QpAttr { max_dest_rd_atomic: reads, ..rtr })?;
        qp.modify(&QpAttr { max_rd_atomic: reads, ..QpAttr::rts(psn) })?;
        let end = Self {
            qp,
            cq,
            region,
            _pd: pd,
            remote,
            len_bytes: task.len_bytes,
            unsignalled: 0,
            received: 0,
            wcs: [Wc::default(); 64],
        };
        end.fill_incoming(half_len_bytes);
        // Neither end starts before the other can receive.
        exchange(control, &mine)?;
        Ok(end)
    }

    fn fill_incoming(&self, len_bytes: usize) {
        // SAFETY: the region is at least this long, and the peer starts only after the second exchange.
        unsafe { self.region.addr().write_bytes(FILL, len_bytes) };
    }

    /// Where the outgoing half starts.
    fn outgoing(&self) -> *mut u8 {
        // SAFETY: the region was made of two halves of this length.
        unsafe { self.region.addr().add(self.region.len_bytes() / 2) }
    }

    /// Whether messages are small enough to be copied while posting.
    pub(super) fn is_inline(&self) -> bool {
        self.len_bytes <= self.qp.cap().max_inline_data as usize
    }

    /// The flags of a request that carries one message.
    pub(super) fn flags(&self, is_signalled: bool) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::INLINE, self.is_inline());
        flags.set(SendFlags::SIGNALED, is_signalled);
        flags
    }

    /// The outgoing message.
    pub(super) fn outgoing_sge(&self) -> [Sge; 1] {
        [self.sge(self.outgoing())]
    }

    /// The place of incoming messages.
    pub(super) fn incoming_sge(&self) -> [Sge; 1] {
        [self.sge(self.region.addr())]
    }

    fn sge(&self, start: *mut u8) -> Sge {
        Sge { addr: start as u64, length: self.len_bytes as u32, lkey: self.region.lkey() }
    }

    /// Sets the last byte of the outgoing message, whatever its length.
    pub(super) fn mark_outgoing(&self, mark: u8) {
        // SAFETY: inside the outgoing half, which no peer writes.
        unsafe { self.outgoing().add(self.len_bytes - 1).write(mark) };
    }

    /// The last byte of the outgoing half's message, which is the destination of READs.
    pub(super) fn last_outgoing(&self) -> u8 {
        // SAFETY: inside the outgoing half.
        unsafe { self.outgoing().add(self.len_bytes - 1).read_volatile() }
    }

    /// The last byte of the incoming message, as an atomic, because the peer writes it.
    #[inline]
    pub(super) fn last_incoming(&self) -> u8 {
        // SAFETY: inside the region, which lives as long as `self`; this end touches the byte only as an atomic while
        // the peer may write it.
        let last = unsafe { AtomicU8::from_ptr(self.region.addr().add(self.len_bytes - 1)) };
        last.load(Ordering::Acquire)
    }

    /// Posts one request that carries the outgoing message, made by `make` from its gather list. Inlined ones are
    /// signalled now and then and waited for then; others always.
    #[inline]
    pub(super) fn post(
        &mut self,
        make: impl for<'a> FnOnce(&'a [Sge], Address) -> SendWr<'a>,
    ) -> Result<(), RnicError> {
        self.unsignalled += 1;
        let is_signalled = !self.is_inline() || self.unsignalled >= SIGNAL_EVERY;
        let sges = self.outgoing_sge();
        let wr = make(&sges, self.remote).with_flags(self.flags(is_signalled));
        // SAFETY: an inlined message is copied by the call; another is left alone until its completion, just below.
        unsafe { self.qp.post_send(&[wr])? };
        if is_signalled {
            self.unsignalled = 0;
            self.wait_for_sends(1)?;
        }
        Ok(())
    }

    /// Polls once; returns how many sends and how many receives completed.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<(usize, usize), RnicError> {
        let count = self.cq.poll(&mut self.wcs)?;
        let mut receives = 0;
        for wc in &self.wcs[..count] {
            if !wc.status.is_success() {
                return Err(RnicError::Completion(wc.status));
            }
            receives += usize::from(wc.opcode.is_receive());
        }
        Ok((count - receives, receives))
    }

    /// Polls until `count` sends completed; receives that complete meanwhile are kept for [`Self::take_receive`].
    #[inline]
    pub(super) fn wait_for_sends(&mut self, count: usize) -> Result<(), RnicError> {
        let mut completed = 0;
        while completed < count {
            let (sends, receives) = self.poll()?;
            completed += sends;
            self.received += receives;
        }
        Ok(())
    }

    /// Polls until a receive completed. No signalled send is outstanding then, so none can be lost.
    #[inline]
    pub(super) fn take_receive(&mut self) -> Result<(), RnicError> {
        while self.received == 0 {
            self.received += self.poll()?.1;
        }
        self.received -= 1;
        Ok(())
    }

    /// Reads the peer's incoming half into our outgoing half, and waits.
    #[inline]
    pub(super) fn read_once(&mut self) -> Result<(), RnicError> {
        let sges = self.outgoing_sge();
        let wr = SendWr::read(0, &sges, self.remote.addr, self.remote.rkey).with_flags(SendFlags::SIGNALED);
        // SAFETY: the destination is left alone until the completion, just below.
        unsafe { self.qp.post_send(&[wr])? };
        self.wait_for_sends(1)
    }

    /// Posts `count` receives into the incoming half, as one chain of at most 64.
    pub(super) fn post_receives(&mut self, count: usize) -> Result<(), RnicError> {
        let sges = self.incoming_sge();
        let wrs = [RecvWr::new(0, &sges); 64];
        let mut left = count;
        while left > 0 {
            let now = left.min(wrs.len());
            // SAFETY: the incoming half lives until the queue pair is gone, and nobody relies on what it holds.
            unsafe { self.qp.post_recv(&wrs[..now])? };
            left -= now;
        }
        Ok(())
    }
}

/// Sends a line and receives one.
fn exchange(control: &UnixStream, mine: &Address) -> Result<Address, RnicError> {
    let handshake = |error: &dyn std::fmt::Display| RnicError::Handshake(error.to_string());
    let mut line = serde_json::to_string(mine).map_err(|error| handshake(&error))?;
    line.push('\n');
    let mut stream = control;
    stream.write_all(line.as_bytes()).map_err(|error| handshake(&error))?;
    let mut answer = String::new();
    // One byte at a time: whatever follows the line must stay in the socket.
    BufReader::with_capacity(1, control)
        .take(LINE_LEN_BYTES_MAX)
        .read_line(&mut answer)
        .map_err(|error| handshake(&error))?;
    let address: Address = serde_json::from_str(&answer).map_err(|error| handshake(&error))?;
    if address.len_bytes < mine.len_bytes {
        return Err(RnicError::Handshake("the other end has less memory".to_owned()));
    }
    Ok(address)
}

/// Sleeps until the other end closes its control socket.
pub(super) fn wait_for_the_end(control: &UnixStream) -> Result<(), RnicError> {
    let mut byte = [0];
    let mut stream = control;
    // Either outcome means that there is nobody to serve any more.
    let _ = stream.read(&mut byte);
    Ok(())
}
