//! Sockets over RDMA (man `rsocket`): not offered. The names are here so that programs that link them start; they say
//! `EOPNOTSUPP`.

use crate::{errno, traced};

/// Refuses a call, and shows it.
fn refuse(name: &'static str) -> isize {
    let call = if traced::is_on() { farcall_trace::Call::begin(name) } else { None };
    errno::set(libc::EOPNOTSUPP);
    if let Some(mut call) = call {
        // SAFETY: a number.
        unsafe { call.returned(-1_i32) };
        call.end();
    }
    -1
}

/// Functions that return -1 in whatever integer they return.
macro_rules! refusals {
    ($node:literal: $($name:ident)*) => {
        $(
            /// Not offered.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> isize {
                refuse(stringify!($name))
            }
            std::arch::global_asm!(concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@", $node));
        )*
    };
}

refusals! {
    "RDMACM_1.0": rsocket rbind rlisten raccept rconnect rshutdown rclose rrecv rrecvfrom rrecvmsg rsend rsendto rsendmsg
    rread rreadv rwrite rwritev rpoll rselect rgetpeername rgetsockname rsetsockopt rgetsockopt rfcntl riomap riounmap riowrite
}

refusals! {
    "RDMACM_1.5": repoll_create repoll_ctl repoll_wait
}
