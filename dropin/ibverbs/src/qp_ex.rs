//! The functions of the extended queue pair, which build a batch of requests (`man ibv_wr_post`).

use std::cell::RefMut;
use std::ffi::{c_int, c_void};

use farcall_verbs::{AtomicTarget, Sge, UdTarget, WrOpcode};

use crate::batch::{Batch, Kind};
use crate::{address, qp};
use farcall_layout::{ABSENT, Ah, DataBuf, Qp, QpEx};

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
    unsafe { building(qp) }.set_target(UdTarget { ah, remote_qpn, remote_qkey });
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
