//! The functions of the extended completion queue: one completion at a time, field by field (`man
//! ibv_create_cq_ex`).

use std::ffi::{c_int, c_uint};

use farcall_trace::now_ns;
use farcall_verbs::Wc;

use crate::cq::{self, CqObject};
use crate::errno;
use farcall_layout::{ABSENT, Cq, CqEx};

/// Returns a queue with its functions.
pub fn table(base: Cq) -> CqEx {
    CqEx {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll,
        next_poll,
        end_poll,
        read_opcode,
        read_vendor_err,
        read_byte_len,
        read_imm_data,
        read_qp_num,
        read_src_qp,
        read_wc_flags,
        read_slid,
        read_sl,
        read_dlid_path_bits,
        read_completion_ts,
        read_cvlan: ABSENT,
        read_flow_tag: ABSENT,
        read_tm_info: ABSENT,
        read_completion_wallclock_ns,
    }
}

/// Polls the next completion; returns `ENOENT` if there is none.
///
/// # Safety
/// `cq` must be a live queue of [`CqObject::create`] that no other thread polls concurrently, as the interface requires.
unsafe fn advance(cq: *mut CqEx) -> c_int {
    let address = cq.cast::<CqObject>();
    let mut one = [Wc::default()];
    // SAFETY: contract of this function: `cq` is live.
    let polled = unsafe { cq::object(address) }.lock().poll(&mut one);
    match polled {
        Ok(0) => libc::ENOENT,
        Ok(_) => {
            // SAFETY: contract of this function: no other thread polls the queue, and only the polling thread accesses
            // these fields.
            unsafe {
                (*address).current = one[0];
                (*address).current_ns = now_ns();
                (*cq).status = one[0].status.0;
                (*cq).wr_id = one[0].wr_id;
            }
            0
        }
        Err(error) => errno::number(&error),
    }
}

pub unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *mut c_uint) -> c_int {
    // SAFETY: contract of `ibv_start_poll` (man page): `attr` is null or valid.
    if !attr.is_null() && unsafe { *attr } != 0 {
        return errno::refused(libc::EINVAL, format_args!("attributes of a poll: there are none"));
    }
    // SAFETY: contract of `ibv_start_poll` (man page): `cq` is live, and no other thread polls it.
    unsafe { advance(cq) }
}

pub unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    // SAFETY: contract of `ibv_next_poll` (man page): `cq` is live, and no other thread polls it.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(_cq: *mut CqEx) {}

/// Defines functions that read the current completion.
macro_rules! readers {
    ($($name:ident -> $ret:ty { $of:ident => $value:expr })*) => {
        $(unsafe extern "C" fn $name(cq: *mut CqEx) -> $ret {
            // SAFETY: contract of `ibv_wc_read_*` (man page): `cq` is live, and only the polling thread calls these
            // functions.
            let $of = unsafe { &*cq.cast::<CqObject>() };
            $value
        })*
    };
}

readers! {
    read_opcode -> u32 { of => of.current.opcode.0 }
    read_vendor_err -> u32 { of => of.current.vendor_err }
    read_byte_len -> u32 { of => of.current.byte_len }
    read_imm_data -> u32 { of => of.current.imm_data_be }
    read_qp_num -> u32 { of => of.current.qp_num }
    read_src_qp -> u32 { of => of.current.src_qp }
    read_wc_flags -> c_uint { of => of.current.wc_flags.bits() }
    read_slid -> u32 { of => of.current.slid.into() }
    read_sl -> u8 { of => of.current.sl }
    read_dlid_path_bits -> u8 { of => of.current.dlid_path_bits }
    read_completion_ts -> u64 { of => of.current_ns }
    read_completion_wallclock_ns -> u64 { of => of.current_ns.wrapping_add(wall_offset_ns()) }
}

/// Returns the offset from the monotonic clock to the time of day.
fn wall_offset_ns() -> u64 {
    let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64).wrapping_sub(now_ns())
}
