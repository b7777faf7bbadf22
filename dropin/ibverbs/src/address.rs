//! Address handles.

use std::ffi::c_int;

use farcall_verbs as verbs;
use farcall_verbs::{AddressHandle, Wc, WcFlags};

use crate::symbols::{export, unsupported};
use crate::{attributes, context, errno, live, memory};
use farcall_layout::{Ah, AhAttr, Context, Pd};

#[repr(C)]
struct AhObject {
    ah: Ah,
    provider: Box<dyn AddressHandle>,
}

/// Returns the provider's handle.
///
/// # Safety
/// `ah` must have been created by [`ibv_create_ah`] and be live.
pub unsafe fn raw(ah: *const ()) -> *const () {
    // SAFETY: contract of this function: `ah` is live. The C structure is the first field of its `AhObject`
    // (`repr(C)`).
    unsafe { (*ah.cast::<AhObject>()).provider.as_raw() }
}

/// Returns the path to the sender of a received datagram.
///
/// # Safety
/// `grh` must point to 40 readable bytes if the completion indicates a GRH.
unsafe fn path_back(
    of: &context::ContextObject,
    port_num: u8,
    wc: &Wc,
    grh: *const u8,
) -> Result<AhAttr, c_int> {
    if !wc.wc_flags.contains(WcFlags::GRH) {
        let path = verbs::AhAttr { dlid: wc.slid, sl: wc.sl, port_num, ..verbs::AhAttr::default() };
        return Ok(attributes::path_to_c(&path, false));
    }
    // SAFETY: contract of this function: the completion indicates a GRH, so `grh` has 40 bytes.
    let header = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
    let path = verbs::AhAttr::from_received(wc, &header, port_num).ok_or(libc::EINVAL)?;
    let table = of.provider.query_gid_table(port_num).map_err(|error| errno::number(&error))?;
    let destination = verbs::ReceivedRoute::of(&header).destination;
    let own = table.iter().find(|entry| entry.gid == destination).or(table.first()).ok_or(libc::EINVAL)?;
    let sgid_index = u8::try_from(own.index).map_err(|_| libc::EINVAL)?;
    Ok(attributes::path_to_c(&verbs::AhAttr { sgid_index, ..path }, true))
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_create_ah`.
        fn ibv_create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
            if let Err(number) = live::DOMAINS.check(pd) {
                return errno::null(number);
            }
            // SAFETY: the domain is live (checked above). Contract of `ibv_create_ah` (man page): `attr` is valid.
            let (domain, path) = unsafe { (memory::domain(pd), attributes::path(&*attr)) };
            match domain.provider.create_ah(&path) {
                Ok(provider) => {
                    domain.uses.add();
                    // SAFETY: the domain is live (checked above).
                    let context = unsafe { (*pd).context };
                    let ah = Ah { context, pd, handle: live::new_handle() };
                    let made: *mut Ah = Box::into_raw(Box::new(AhObject { ah, provider })).cast();
                    // SAFETY: `made` was just created.
                    unsafe { live::ADDRESS_HANDLES.insert(made) };
                    made
                }
                Err(error) => errno::null(errno::number(&error)),
            }
        }

        /// `man ibv_create_ah_from_wc`: returns -1 and sets `errno` on failure.
        fn ibv_init_ah_from_wc(
            context: *mut Context, port_num: u8, wc: *mut Wc, grh: *mut u8, attr: *mut AhAttr,
        ) -> c_int {
            // SAFETY: contract of `ibv_init_ah_from_wc` (man page): the objects are valid, and `grh` has 40 bytes if
            // `wc` indicates a GRH.
            errno::to_return_value(unsafe {
                path_back(context::object(context), port_num, &*wc, grh).map(|filled| attr.write(filled))
            })
        }

        /// `man ibv_create_ah_from_wc`.
        fn ibv_create_ah_from_wc(pd: *mut Pd, wc: *mut Wc, grh: *mut u8, port_num: u8) -> *mut Ah {
            // SAFETY: contract of `ibv_create_ah_from_wc` (man page): the objects are valid, and `grh` has 40 bytes if
            // `wc` indicates a GRH.
            match unsafe { path_back(context::object((*pd).context), port_num, &*wc, grh) } {
                // SAFETY: contract of `ibv_create_ah_from_wc` (man page): `pd` is valid. `attr` is a local variable.
                Ok(mut attr) => unsafe { ibv_create_ah(pd, &raw mut attr) },
                Err(number) => errno::null(number),
            }
        }

        /// `man ibv_destroy_ah`.
        fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
            if let Err(number) = live::ADDRESS_HANDLES.remove(ah) {
                return number;
            }
            // SAFETY: `ibv_create_ah` made it with `Box::into_raw`. `remove` succeeds only once, so no other call
            // frees it.
            let object = unsafe { Box::from_raw(ah.cast::<AhObject>()) };
            // SAFETY: `pd` is live, because a domain cannot be destroyed while its use count is positive.
            unsafe { memory::domain(object.ah.pd) }.uses.remove();
            0
        }

        /// Like the original: returns an Ethernet address for a GID. Nothing here is sent over Ethernet.
        fn ibv_resolve_eth_l2_from_gid(
            _context: *mut Context, _attr: *mut AhAttr, mac: *mut [u8; 6], vlan: *mut u16,
        ) -> c_int {
            // SAFETY: each variable is null or valid by the contract of the original function.
            unsafe {
                if !mac.is_null() {
                    mac.write([0; 6]);
                }
                if !vlan.is_null() {
                    vlan.write(0xffff);
                }
            }
            0
        }
    }
}

// Multicast.
unsupported! {
    "IBVERBS_1.1" { Number: ibv_attach_mcast ibv_detach_mcast; }
}
