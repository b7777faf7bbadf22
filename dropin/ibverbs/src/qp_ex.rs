//! The extended queue pair: requests built call by call (`man ibv_wr_post`).

use std::cell::RefMut;
use std::ffi::{c_int, c_void};
use std::ops::Range;

use farcall_verbs::{AtomicTarget, QpType, SendFlags, SendWr, Sge, UdTarget, WrOpcode};

use crate::posting::Posting;
use crate::{address, errno, qp, region_names};
use farcall_layout::{ABSENT, Ah, Context, DataBuf, Qp, QpEx, QpInitAttr, QpInitAttrEx};

/// Operation of a request and its target; its elements or inline bytes are in the batch.
#[derive(Clone)]
enum Kind {
    Send,
    Write { remote_addr: u64, rkey: u32 },
    Read { remote_addr: u64, rkey: u32 },
    Atomic { opcode: WrOpcode, target: AtomicTarget },
}

#[derive(Clone)]
struct Pending {
    wr_id: u64,
    flags: SendFlags,
    imm_be: Option<u32>,
    kind: Kind,
    to: Option<UdTarget>,
    sges: Range<usize>,
    /// Range of the inline bytes in the batch.
    inline_at: Option<Range<usize>>,
}

/// The requests between `ibv_wr_start` and `ibv_wr_complete`. Its memory is reused.
#[derive(Default)]
pub struct Batch {
    pending: Vec<Pending>,
    sges: Vec<Sge>,
    inline_bytes: Vec<u8>,
    /// All requests, while they are posted.
    chain: Vec<SendWr<'static>>,
    error: Option<c_int>,
    /// `true` if the batch was begun and not ended.
    is_open: bool,
}

impl Batch {
    /// Begins a batch. If one is already open, both fail, and none is posted.
    pub fn start(&mut self) {
        self.pending.clear();
        self.sges.clear();
        self.inline_bytes.clear();
        self.error = std::mem::replace(&mut self.is_open, true).then_some(libc::EINVAL);
    }

    fn abandon(&mut self) {
        self.is_open = false;
    }

    fn begin(&mut self, wr_id: u64, flags: u32, kind: Kind, imm_be: Option<u32>) {
        let Some(flags) = SendFlags::from_bits(flags) else {
            self.error = Some(libc::EOPNOTSUPP);
            return;
        };
        let sges = self.sges.len()..self.sges.len();
        // The function that sets the data determines whether a request is inline.
        let flags = flags - SendFlags::INLINE;
        self.pending.push(Pending { wr_id, flags, imm_be, kind, to: None, sges, inline_at: None });
    }

    /// Returns the requests as they will be posted, for a trace.
    pub fn requests(&mut self) -> impl Iterator<Item = SendWr<'_>> {
        self.place_inline();
        self.pending.iter().map(|pending| pending.request(&self.sges))
    }

    fn last(&mut self) -> Option<&mut Pending> {
        if self.pending.is_empty() {
            self.error = Some(libc::EINVAL);
        }
        self.pending.last_mut()
    }

    fn set_sges(&mut self, sges: &[Sge]) {
        let from = self.sges.len();
        self.sges.extend_from_slice(sges);
        if region_names::are_any() {
            region_names::translate(&mut self.sges[from..]);
        }
        let range = from..self.sges.len();
        if let Some(last) = self.last() {
            last.sges = range;
        }
    }

    /// # Safety
    /// The buffers must be valid for reads.
    unsafe fn set_inline(&mut self, buffers: &[DataBuf]) {
        let from = self.inline_bytes.len();
        for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
            // SAFETY: contract of this function: the buffer is valid for reads.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length) };
            self.inline_bytes.extend_from_slice(bytes);
        }
        let range = from..self.inline_bytes.len();
        if let Some(last) = self.last() {
            last.flags |= SendFlags::INLINE;
            last.inline_at = Some(range);
        }
    }

    /// Creates the element of each inline request, after the buffer of inline bytes has stopped growing.
    fn place_inline(&mut self) {
        for pending in &mut self.pending {
            if let Some(bytes) = pending.inline_at.take() {
                let addr = self.inline_bytes[bytes.clone()].as_ptr().expose_provenance() as u64;
                let at = self.sges.len();
                self.sges.push(Sge { addr, length: bytes.len() as u32, lkey: 0 });
                pending.sges = at..at + 1;
            }
        }
    }
}

impl Pending {
    fn request<'a>(&self, sges: &'a [Sge]) -> SendWr<'a> {
        let sges = &sges[self.sges.clone()];
        let request = match (&self.kind, self.to) {
            (Kind::Send, Some(to)) => SendWr::send_to(self.wr_id, sges, to),
            (Kind::Send, None) => SendWr::send(self.wr_id, sges),
            (Kind::Write { remote_addr, rkey }, _) => SendWr::write(self.wr_id, sges, *remote_addr, *rkey),
            (Kind::Read { remote_addr, rkey }, _) => SendWr::read(self.wr_id, sges, *remote_addr, *rkey),
            (Kind::Atomic { opcode, target }, _) => SendWr::atomic(*opcode, self.wr_id, sges, *target),
        };
        let mut request = request.with_flags(self.flags);
        if let Some(imm_be) = self.imm_be {
            request = request.with_imm(0);
            request.imm_data_be = imm_be;
        }
        request
    }
}

impl Posting {
    /// Posts the batch. Returns an error number, and posts nothing, if one request is refused.
    pub fn complete(&mut self) -> c_int {
        if !std::mem::take(&mut self.batch.is_open) {
            return errno::refused(libc::EINVAL, format_args!("no batch was begun"));
        }
        if let Some(number) = self.batch.error {
            return errno::refused(number, format_args!("a request of the batch was malformed"));
        }
        self.batch.place_inline();
        let Self { provider, batch } = self;
        let posted = match &batch.pending[..] {
            [] => Ok(()),
            // SAFETY: contract of `ibv_wr_complete` (man page): the memory of the request stays valid until its
            // completion. Inline bytes are in the batch until this function returns.
            [alone] => unsafe { provider.post_send(&[alone.request(&batch.sges)]) },
            all => {
                batch.chain.clear();
                batch.chain.extend(all.iter().map(|pending| {
                    let request = pending.request(&batch.sges);
                    // SAFETY: extends only the lifetime. The copy is read only in this function, and the elements in
                    // `batch.sges` are not changed before `start` clears them.
                    unsafe { std::mem::transmute::<SendWr<'_>, SendWr<'static>>(request) }
                }));
                // SAFETY: contract of `ibv_wr_complete` (man page): the memory of the requests stays valid until their
                // completions. Inline bytes are in the batch until this function returns.
                unsafe { provider.check_sends(&batch.chain).and_then(|()| provider.post_send(&batch.chain)) }
            }
        };
        posted.map_or_else(|error| errno::number(&error.source), |()| 0)
    }
}

/// `IBV_QP_INIT_ATTR_PD`, `..._CREATE_FLAGS`, `..._SEND_OPS_FLAGS`.
const MASK_PD: u32 = 1;
const MASK_CREATE_FLAGS: u32 = 1 << 2;
const MASK_SEND_OPS_FLAGS: u32 = 1 << 6;

/// Returns the operations of `enum ibv_qp_create_send_ops_flags` that a transport supports (`man ibv_wr_post`).
fn operations(qp_type: u32) -> u64 {
    const WRITES: u64 = 0b11;
    const SENDS: u64 = 0b1100;
    const READ_AND_ATOMICS: u64 = 0b111_0000;
    match QpType::Rc as u32 {
        rc if qp_type == rc => WRITES | SENDS | READ_AND_ATOMICS,
        _ if qp_type == QpType::Uc as u32 => WRITES | SENDS,
        _ => SENDS,
    }
}

/// See `man ibv_create_qp_ex`.
pub unsafe extern "C" fn create(_context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp {
    // SAFETY: contract of `ibv_create_qp_ex` (man page): `attr` is valid.
    let init = unsafe { &*attr };
    let known = MASK_PD | MASK_CREATE_FLAGS | MASK_SEND_OPS_FLAGS;
    let has = |bit: u32| init.comp_mask & bit != 0;
    if init.comp_mask & !known != 0
        || (has(MASK_CREATE_FLAGS) && init.create_flags != 0)
        || (has(MASK_SEND_OPS_FLAGS) && init.send_ops_flags & !operations(init.qp_type) != 0)
    {
        let (mask, flags, operations) = (init.comp_mask, init.create_flags, init.send_ops_flags);
        return errno::null(errno::refused(
            libc::EOPNOTSUPP,
            format_args!(
                "comp_mask {mask:#x}, create_flags {flags:#x} or send_ops_flags {operations:#x}: not offered"
            ),
        ));
    }
    let pd = if has(MASK_PD) { init.pd } else { std::ptr::null_mut() };
    // SAFETY: contract of `ibv_create_qp_ex` (man page): the objects in `attr` are valid. The structure begins with
    // the fields of the plain one.
    unsafe { qp::create(pd, &mut *attr.cast::<QpInitAttr>(), true) }
}

/// Returns a queue pair with its functions.
pub fn table(qp_base: Qp) -> QpEx {
    QpEx {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp,
        wr_atomic_fetch_add,
        wr_bind_mw: ABSENT,
        wr_local_inv: ABSENT,
        wr_rdma_read,
        wr_rdma_write,
        wr_rdma_write_imm,
        wr_send,
        wr_send_imm,
        wr_send_inv: ABSENT,
        wr_send_tso: ABSENT,
        wr_set_ud_addr,
        wr_set_xrc_srqn: ABSENT,
        wr_set_inline_data,
        wr_set_inline_data_list,
        wr_set_sge,
        wr_set_sge_list,
        wr_start,
        wr_complete,
        wr_abort,
        wr_atomic_write: ABSENT,
        wr_flush: ABSENT,
    }
}

/// Returns the batch that the calling thread builds.
///
/// # Safety
/// The calling thread must be between `wr_start` and `wr_complete` or `wr_abort` of `qp`, so that it holds the lock.
pub unsafe fn building<'a>(qp: *mut QpEx) -> RefMut<'a, Batch> {
    // SAFETY: contract of this function: `qp` is live, and this thread has begun a batch.
    RefMut::map(unsafe { qp::object(qp.cast()).posting.building() }, |posting| &mut posting.batch)
}

/// # Safety
/// The same as for [`building`].
unsafe fn begin(qp: *mut QpEx, kind: Kind, imm_be: Option<u32>) {
    // SAFETY: contract of this function: this thread has begun a batch of `qp`, and only this thread sets the two
    // fields.
    unsafe { building(qp).begin((*qp).wr_id, (*qp).wr_flags, kind, imm_be) }
}

unsafe extern "C" fn wr_start(qp: *mut QpEx) {
    // SAFETY: contract of `ibv_wr_start` (man page): `qp` is live.
    unsafe { qp::object(qp.cast()) }.posting.begin_batch();
}

pub unsafe extern "C" fn wr_complete(qp: *mut QpEx) -> c_int {
    // SAFETY: contract of `ibv_wr_complete` (man page): `qp` is live.
    let of = unsafe { qp::object(qp.cast()) };
    // SAFETY: contract of `ibv_wr_complete` (man page): this thread has called `ibv_wr_start`.
    let number = unsafe { of.posting.building() }.complete();
    // SAFETY: contract of `ibv_wr_complete` (man page): this thread has called `ibv_wr_start`, and the batch has not
    // ended.
    unsafe { of.posting.end_batch() };
    number
}

pub unsafe extern "C" fn wr_abort(qp: *mut QpEx) {
    // SAFETY: contract of `ibv_wr_abort` (man page): `qp` is live, and this thread has called `ibv_wr_start`.
    unsafe {
        building(qp).abandon();
        qp::object(qp.cast()).posting.end_batch();
    }
}

unsafe extern "C" fn wr_send(qp: *mut QpEx) {
    // SAFETY: contract of `ibv_wr_send` (man page): this thread has called `ibv_wr_start`.
    unsafe { begin(qp, Kind::Send, None) }
}

unsafe extern "C" fn wr_send_imm(qp: *mut QpEx, imm_be: u32) {
    // SAFETY: contract of `ibv_wr_send_imm` (man page): this thread has called `ibv_wr_start`.
    unsafe { begin(qp, Kind::Send, Some(imm_be)) }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    // SAFETY: contract of `ibv_wr_rdma_write` (man page): this thread has called `ibv_wr_start`.
    unsafe { begin(qp, Kind::Write { remote_addr, rkey }, None) }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut QpEx, rkey: u32, remote_addr: u64, imm_be: u32) {
    // SAFETY: contract of `ibv_wr_rdma_write_imm` (man page): this thread has called `ibv_wr_start`.
    unsafe { begin(qp, Kind::Write { remote_addr, rkey }, Some(imm_be)) }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    // SAFETY: contract of `ibv_wr_rdma_read` (man page): this thread has called `ibv_wr_start`.
    unsafe { begin(qp, Kind::Read { remote_addr, rkey }, None) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut QpEx, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
    let target = AtomicTarget { remote_addr, compare_add: compare, swap, rkey };
    // SAFETY: contract of `ibv_wr_atomic_cmp_swp` (man page): this thread has called `ibv_wr_start`.
    unsafe { begin(qp, Kind::Atomic { opcode: WrOpcode::ATOMIC_CMP_AND_SWP, target }, None) }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut QpEx, rkey: u32, remote_addr: u64, add: u64) {
    let target = AtomicTarget { remote_addr, compare_add: add, swap: 0, rkey };
    // SAFETY: contract of `ibv_wr_atomic_fetch_add` (man page): this thread has called `ibv_wr_start`.
    unsafe { begin(qp, Kind::Atomic { opcode: WrOpcode::ATOMIC_FETCH_AND_ADD, target }, None) }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut QpEx, ah: *mut Ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: contract of `ibv_wr_set_ud_addr` (man page): `ah` is live.
    let ah = unsafe { address::raw(ah.cast_const().cast()) };
    // SAFETY: contract of `ibv_wr_set_ud_addr` (man page): this thread has called `ibv_wr_start`.
    if let Some(last) = unsafe { building(qp) }.last() {
        last.to = Some(UdTarget { ah, remote_qpn, remote_qkey });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: contract of `ibv_wr_set_sge` (man page): this thread has called `ibv_wr_start`.
    unsafe { building(qp) }.set_sges(&[Sge { addr, length, lkey }]);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut QpEx, num_sge: usize, sges: *const Sge) {
    // SAFETY: contract of `ibv_wr_set_sge_list` (man page): `sges` has `num_sge` elements.
    let sges = if num_sge == 0 { &[] } else { unsafe { std::slice::from_raw_parts(sges, num_sge) } };
    // SAFETY: contract of `ibv_wr_set_sge_list` (man page): this thread has called `ibv_wr_start`.
    unsafe { building(qp) }.set_sges(sges);
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut QpEx, addr: *mut c_void, length: usize) {
    // SAFETY: contract of `ibv_wr_set_inline_data` (man page): this thread has called `ibv_wr_start`, and `addr` has
    // `length` bytes.
    unsafe { building(qp).set_inline(&[DataBuf { addr, length }]) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut QpEx, num_buf: usize, buffers: *const DataBuf) {
    // SAFETY: contract of `ibv_wr_set_inline_data_list` (man page): `buffers` has `num_buf` elements.
    let buffers = if num_buf == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buffers, num_buf) } };
    // SAFETY: contract of `ibv_wr_set_inline_data_list` (man page): this thread has called `ibv_wr_start`, and the
    // buffers are valid for reads.
    unsafe { building(qp).set_inline(buffers) };
}
