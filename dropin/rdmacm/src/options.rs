//! Options of endpoints.

use std::ffi::{c_int, c_void};

use farcall_layout::rdmacm::{CmId, option};
use farcall_wire::cm::Ece;

use crate::errno::{Errno, invalid, refused, to_return_value};
use crate::id;
use crate::id_state::CmIdState;
use crate::symbols::export;

/// # Safety
/// `value` must point to `len_bytes` bytes.
unsafe fn read<T: Copy>(value: *const c_void, len_bytes: usize) -> Result<T, Errno> {
    if value.is_null() || len_bytes != size_of::<T>() {
        let size = size_of::<T>();
        return Err(invalid(format_args!("{len_bytes} bytes at {value:p}: the option has {size}")));
    }
    // SAFETY: contract of this function: `value` has `len_bytes` bytes, which is the size of `T` (checked above). `T`
    // is an integer type.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// # Safety
/// The same as for [`read`].
unsafe fn set(
    id_state: &mut CmIdState,
    name: c_int,
    value: *const c_void,
    len_bytes: usize,
) -> Result<(), Errno> {
    let is_bound = !id_state.is_new();
    // SAFETY: contract of this function, which is that of `read`.
    unsafe {
        match name {
            option::TOS => id_state.options.tos = read(value, len_bytes)?,
            option::ACK_TIMEOUT => {
                let timeout: u8 = read(value, len_bytes)?;
                if timeout > 31 {
                    return Err(invalid(format_args!("ACK timeout {timeout}: at most 31")));
                }
                id_state.options.ack_timeout = timeout;
            }
            option::REUSEADDR | option::AFONLY if is_bound => {
                return Err(invalid("the option is set before the identifier has an address"));
            }
            option::REUSEADDR => id_state.options.is_shared = read::<c_int>(value, len_bytes)? != 0,
            option::AFONLY => id_state.options.is_v6_only = read::<c_int>(value, len_bytes)? != 0,
            _ => return Err(refused(libc::ENOSYS, format_args!("no option {name}"))),
        }
    }
    Ok(())
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_set_option`. Routes cannot be set, because there is only one.
        fn rdma_set_option(
            id: *mut CmId, level: c_int, optname: c_int, value: *mut c_void, len_bytes: usize,
        ) -> c_int {
            if level != option::LEVEL_ID {
                return to_return_value(Err(refused(libc::ENOSYS, format_args!("options of level {level} are not offered"))));
            }
            // SAFETY: contract of `rdma_set_option` (man page): `id` is a live identifier, and `value` has `len_bytes`
            // bytes.
            to_return_value(unsafe { set(&mut id::object(id).lock_state(), optname, value, len_bytes) })
        }
    }
    "RDMACM_1.3" {
        /// `man rdma_set_local_ece`.
        fn rdma_set_local_ece(id: *mut CmId, ece: *mut [u32; 3]) -> c_int {
            if id.is_null() || ece.is_null() {
                return to_return_value(Err(invalid("no identifier, or no structure")));
            }
            // SAFETY: contract of `rdma_set_local_ece` (man page): `id` is live and `ece` is valid; both are not null.
            unsafe {
                let [vendor_id, options, ..] = *ece;
                id::object(id).lock_state().options.local_ece = Ece { vendor_id, options };
            }
            0
        }

        /// `man rdma_get_remote_ece`.
        fn rdma_get_remote_ece(id: *mut CmId, ece: *mut [u32; 3]) -> c_int {
            if id.is_null() || ece.is_null() {
                return to_return_value(Err(invalid("no identifier, or no structure")));
            }
            // SAFETY: contract of `rdma_get_remote_ece` (man page): `id` is live and `ece` is valid; both are not
            // null.
            unsafe {
                let Ece { vendor_id, options } = id::object(id).lock_state().remote_ece();
                *ece = [vendor_id, options, 0];
            }
            0
        }
    }
}
