//! Work requests, laid out as libibverbs' `ibv_sge`, `ibv_send_wr` and `ibv_recv_wr`.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;

use crate::{OpCaps, SendFlags, WcOpcode};

/// A gather/scatter element: a range of registered memory (`ibv_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Sge {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region that holds it; ignored for inline sends.
    pub lkey: u32,
}

/// Operation of a send work request (`ibv_wr_opcode`). A newtype, because C code may pass any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WrOpcode(pub u32);

impl WrOpcode {
    /// RDMA WRITE.
    pub const WRITE: Self = Self(0);
    /// RDMA WRITE that also consumes a receive at the target and delivers 32 bits.
    pub const WRITE_WITH_IMM: Self = Self(1);
    /// SEND into the target's next posted receive.
    pub const SEND: Self = Self(2);
    /// SEND that also delivers 32 bits.
    pub const SEND_WITH_IMM: Self = Self(3);
    /// RDMA READ.
    pub const READ: Self = Self(4);
    /// 64-bit compare and swap.
    pub const ATOMIC_CMP_AND_SWP: Self = Self(5);
    /// 64-bit fetch and add.
    pub const ATOMIC_FETCH_AND_ADD: Self = Self(6);

    /// Returns the operation that a transport must support for this opcode; `None` for unknown numbers.
    pub const fn caps(self) -> Option<OpCaps> {
        Some(match self {
            Self::SEND => OpCaps::SEND,
            Self::SEND_WITH_IMM => OpCaps::SEND_IMM,
            Self::WRITE => OpCaps::WRITE,
            Self::WRITE_WITH_IMM => OpCaps::WRITE_IMM,
            Self::READ => OpCaps::READ,
            Self::ATOMIC_CMP_AND_SWP | Self::ATOMIC_FETCH_AND_ADD => OpCaps::ATOMIC,
            _ => return None,
        })
    }

    /// Returns the opcode of the completion at the initiator; `None` for unknown numbers.
    #[inline]
    pub const fn wc_opcode(self) -> Option<WcOpcode> {
        Some(match self {
            Self::SEND | Self::SEND_WITH_IMM => WcOpcode::SEND,
            Self::WRITE | Self::WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
            Self::READ => WcOpcode::RDMA_READ,
            Self::ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
            Self::ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
            _ => return None,
        })
    }

    /// Returns whether the request carries immediate data.
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::SEND_WITH_IMM | Self::WRITE_WITH_IMM)
    }

    /// Returns whether the request is an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::ATOMIC_CMP_AND_SWP | Self::ATOMIC_FETCH_AND_ADD)
    }

    /// Returns whether the request addresses memory of the target.
    pub const fn is_one_sided(self) -> bool {
        matches!(self, Self::WRITE | Self::WRITE_WITH_IMM) || self.returns_data()
    }

    /// Returns whether the request consumes a receive work request at the target.
    pub const fn consumes_receive(self) -> bool {
        matches!(self, Self::SEND | Self::SEND_WITH_IMM | Self::WRITE_WITH_IMM)
    }

    /// Returns whether the request returns data (READ and atomics).
    pub const fn returns_data(self) -> bool {
        matches!(self, Self::READ) || self.is_atomic()
    }
}

/// Remote memory of a WRITE or READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RdmaTarget {
    /// Virtual address in the target's process.
    pub remote_addr: u64,
    /// Remote key of the region that holds it.
    pub rkey: u32,
}

/// Remote memory and operands of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AtomicTarget {
    /// Virtual address of the 8 bytes, aligned to 8.
    pub remote_addr: u64,
    /// Value to compare with (CAS) or to add (FAA).
    pub compare_add: u64,
    /// Value to store if the comparison succeeds (CAS).
    pub swap: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UdTarget {
    /// A provider's address handle, as returned by [`crate::AddressHandle::as_raw`].
    pub ah: *const (),
    /// Queue pair number at the target.
    pub remote_qpn: u32,
    /// Q_Key the target expects.
    pub remote_qkey: u32,
}

// SAFETY: this type only copies the pointer value `ah`. Only the provider that created the handle dereferences it, and
// `AddressHandle` is `Send + Sync`.
unsafe impl Send for UdTarget {}

/// The part of a send work request that depends on its opcode and transport.
#[derive(Clone, Copy)]
#[repr(C)]
pub union WrTarget {
    /// WRITE, READ.
    pub rdma: RdmaTarget,
    /// CAS, FAA.
    pub atomic: AtomicTarget,
    /// Datagram SENDs.
    pub ud: UdTarget,
}

impl WrTarget {
    /// Returns the remote memory of a WRITE or READ; meaningless for other opcodes.
    #[inline]
    pub fn rdma(&self) -> RdmaTarget {
        // SAFETY: every arm of the union is plain data and all constructors initialise all bytes this arm covers.
        unsafe { self.rdma }
    }

    /// Returns the operands of an atomic; meaningless for other opcodes.
    #[inline]
    pub fn atomic(&self) -> AtomicTarget {
        // SAFETY: every arm of the union is plain data, and all constructors initialise all bytes of the largest arm,
        // which is this one.
        unsafe { self.atomic }
    }
}

impl Default for WrTarget {
    fn default() -> Self {
        // `atomic` is the largest arm: initialising it makes every arm readable later.
        Self { atomic: AtomicTarget { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } }
    }
}

/// A send work request (`ibv_send_wr`, 128 bytes). `'sg` is the lifetime of its gather list. The caller of
/// [`crate::RawQp::post_send`] guarantees that the memory of the list's elements stays valid.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SendWr<'sg> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// libibverbs' chain. Posting a slice ignores it; a provider over the system's library links a copy.
    pub next: *const SendWr<'sg>,
    sg_list: *const Sge,
    num_sge: i32,
    /// The operation.
    pub opcode: WrOpcode,
    /// Execution flags.
    pub send_flags: SendFlags,
    /// Immediate data in network byte order; see [`SendWr::with_imm`].
    pub imm_data_be: u32,
    target: WrTarget,
    xrc_remote_srqn: u32,
    // libibverbs' union of memory-window binding and TSO fields; reserved.
    reserved: [u64; 6],
    life: PhantomData<&'sg [Sge]>,
}

impl fmt::Debug for SendWr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendWr")
            .field("wr_id", &self.wr_id)
            .field("opcode", &self.opcode)
            .field("send_flags", &self.send_flags)
            .field("sges", &self.sges())
            .finish_non_exhaustive()
    }
}

const _: () =
    assert!(size_of::<Sge>() == 16 && size_of::<SendWr<'_>>() == 128 && size_of::<RecvWr<'_>>() == 32);

// SAFETY: `SendWr` itself dereferences only `sg_list`, which is a shared `&'sg [Sge]`, and `Sge` is `Sync`. The memory
// that elements and `next` refer to is accessed only by a provider, under the contract of `RawQp::post_send`.
unsafe impl Send for SendWr<'_> {}

impl<'sg> SendWr<'sg> {
    #[inline]
    fn new(opcode: WrOpcode, wr_id: u64, sges: &'sg [Sge], target: WrTarget) -> Self {
        Self {
            wr_id,
            next: ptr::null(),
            sg_list: sges.as_ptr(),
            num_sge: i32::try_from(sges.len()).unwrap_or(i32::MAX),
            opcode,
            send_flags: SendFlags::empty(),
            imm_data_be: 0,
            target,
            xrc_remote_srqn: 0,
            reserved: [0; 6],
            life: PhantomData,
        }
    }

    #[inline]
    fn rdma_target(remote_addr: u64, rkey: u32) -> WrTarget {
        let mut target = WrTarget::default();
        target.rdma = RdmaTarget { remote_addr, rkey };
        target
    }

    /// Creates a SEND over a connection.
    #[inline]
    pub fn send(wr_id: u64, sges: &'sg [Sge]) -> Self {
        Self::new(WrOpcode::SEND, wr_id, sges, Self::rdma_target(0, 0))
    }

    /// Creates a datagram SEND.
    #[inline]
    pub fn send_to(wr_id: u64, sges: &'sg [Sge], to: UdTarget) -> Self {
        let mut wr = Self::send(wr_id, sges);
        wr.target.ud = to;
        wr
    }

    /// Creates an RDMA WRITE to `remote_addr`.
    #[inline]
    pub fn write(wr_id: u64, sges: &'sg [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(WrOpcode::WRITE, wr_id, sges, Self::rdma_target(remote_addr, rkey))
    }

    /// Creates an RDMA READ from `remote_addr`.
    #[inline]
    pub fn read(wr_id: u64, sges: &'sg [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(WrOpcode::READ, wr_id, sges, Self::rdma_target(remote_addr, rkey))
    }

    /// Creates a 64-bit atomic; `opcode` is [`WrOpcode::ATOMIC_CMP_AND_SWP`] or [`WrOpcode::ATOMIC_FETCH_AND_ADD`].
    #[inline]
    pub fn atomic(opcode: WrOpcode, wr_id: u64, sges: &'sg [Sge], atomic: AtomicTarget) -> Self {
        Self::new(opcode, wr_id, sges, WrTarget { atomic })
    }

    /// Adds immediate data; SEND and WRITE become their `_WITH_IMM` form.
    #[must_use]
    #[inline]
    pub fn with_imm(mut self, imm: u32) -> Self {
        self.imm_data_be = imm.to_be();
        self.opcode = match self.opcode {
            WrOpcode::WRITE => WrOpcode::WRITE_WITH_IMM,
            WrOpcode::SEND => WrOpcode::SEND_WITH_IMM,
            other => other,
        };
        self
    }

    /// Adds flags.
    #[must_use]
    #[inline]
    pub fn with_flags(mut self, flags: SendFlags) -> Self {
        self.send_flags |= flags;
        self
    }

    /// Returns the gather list (READ: scatter list).
    #[inline]
    pub fn sges(&self) -> &'sg [Sge] {
        // SAFETY: `new` and `with_sges` set both fields from a slice of lifetime `'sg`. A request that C code passed
        // has the same layout; the C interface that casts it to `SendWr` requires of its caller that the list is valid
        // during the call.
        unsafe { sge_slice(self.sg_list, self.num_sge) }
    }

    /// Returns the same request with another gather list.
    #[must_use]
    pub fn with_sges<'other>(self, sges: &'other [Sge]) -> SendWr<'other>
    where
        'sg: 'other,
    {
        let mut wr: SendWr<'other> = self;
        wr.sg_list = sges.as_ptr();
        wr.num_sge = i32::try_from(sges.len()).unwrap_or(i32::MAX);
        wr
    }

    /// Returns the payload length in bytes over all elements.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.sges().iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// Returns the remote memory of a WRITE or READ; meaningless for other opcodes.
    #[inline]
    pub fn rdma(&self) -> RdmaTarget {
        self.target.rdma()
    }

    /// Returns the operands of an atomic; meaningless for other opcodes.
    #[inline]
    pub fn atomic_target(&self) -> AtomicTarget {
        self.target.atomic()
    }

    /// Returns the part that depends on the opcode, for any opcode.
    #[inline]
    pub fn target(&self) -> &WrTarget {
        &self.target
    }

    /// Returns the destination of a datagram; meaningless on connected transports.
    #[inline]
    pub fn ud(&self) -> UdTarget {
        // SAFETY: every arm of the union is plain data and all constructors initialise all bytes this arm covers.
        unsafe { self.target.ud }
    }
}

/// A receive work request (`ibv_recv_wr`).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RecvWr<'sg> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// libibverbs' chain; see [`SendWr::next`].
    pub next: *const RecvWr<'sg>,
    sg_list: *const Sge,
    num_sge: i32,
    life: PhantomData<&'sg [Sge]>,
}

impl fmt::Debug for RecvWr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvWr")
            .field("wr_id", &self.wr_id)
            .field("sges", &self.sges())
            .finish_non_exhaustive()
    }
}

// SAFETY: `RecvWr` itself dereferences only `sg_list`, which is a shared `&'sg [Sge]`, and `Sge` is `Sync`. The memory
// that elements and `next` refer to is accessed only by a provider, under the contract of `RawQp::post_recv`.
unsafe impl Send for RecvWr<'_> {}

impl<'sg> RecvWr<'sg> {
    /// Creates a receive into `sges`; an empty list receives immediate data only.
    #[inline]
    pub fn new(wr_id: u64, sges: &'sg [Sge]) -> Self {
        let num_sge = i32::try_from(sges.len()).unwrap_or(i32::MAX);
        Self { wr_id, next: ptr::null(), sg_list: sges.as_ptr(), num_sge, life: PhantomData }
    }

    /// Returns the scatter list.
    #[inline]
    pub fn sges(&self) -> &'sg [Sge] {
        // SAFETY: `new` sets both fields from a slice of lifetime `'sg`. A request that C code passed has the same
        // layout; the C interface that casts it to `RecvWr` requires of its caller that the list is valid during the
        // call.
        unsafe { sge_slice(self.sg_list, self.num_sge) }
    }
}

/// # Safety
/// `list` must point to `num` elements that stay valid for `'sg`, or `list` must be null, or `num` must not be
/// positive.
#[inline]
unsafe fn sge_slice<'sg>(list: *const Sge, num: i32) -> &'sg [Sge] {
    match usize::try_from(num) {
        Ok(num) if num > 0 && !list.is_null() => {
            // SAFETY: `num` is positive and `list` is not null, so `list` points to `num` elements that are valid for
            // `'sg` by the `# Safety` section of this function.
            unsafe { std::slice::from_raw_parts(list, num) }
        }
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Offsets of `struct ibv_send_wr` and `ibv_recv_wr` in rdma-core's `infiniband/verbs.h` on 64-bit machines.
    #[test]
    fn layout_is_that_of_libibverbs() {
        assert_eq!(offset_of!(SendWr<'_>, next), 8);
        assert_eq!(offset_of!(SendWr<'_>, sg_list), 16);
        assert_eq!(offset_of!(SendWr<'_>, num_sge), 24);
        assert_eq!(offset_of!(SendWr<'_>, opcode), 28);
        assert_eq!(offset_of!(SendWr<'_>, send_flags), 32);
        assert_eq!(offset_of!(SendWr<'_>, imm_data_be), 36);
        assert_eq!(offset_of!(SendWr<'_>, target), 40);
        assert_eq!(offset_of!(SendWr<'_>, xrc_remote_srqn), 72);
        assert_eq!(offset_of!(SendWr<'_>, reserved), 80);
        assert_eq!(offset_of!(AtomicTarget, rkey), 24);
        assert_eq!(offset_of!(RecvWr<'_>, num_sge), 24);
    }

    #[test]
    fn builders_set_what_they_say() {
        let sges = [Sge { addr: 1, length: 10, lkey: 3 }, Sge { addr: 2, length: 22, lkey: 3 }];
        let wr = SendWr::write(7, &sges, 0xdead, 0x11).with_imm(0x0102_0304).with_flags(SendFlags::SIGNALED);
        assert_eq!(wr.opcode, WrOpcode::WRITE_WITH_IMM);
        assert_eq!((wr.rdma().remote_addr, wr.rdma().rkey, wr.len_bytes()), (0xdead, 0x11, 32));
        assert_eq!(wr.imm_data_be.to_ne_bytes(), [1, 2, 3, 4]);
        assert!(wr.opcode.consumes_receive() && !wr.opcode.returns_data());
        assert!(SendWr::send(0, &[]).sges().is_empty());
    }
}
