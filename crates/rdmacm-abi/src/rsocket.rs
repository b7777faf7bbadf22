//! Sockets over RDMA (man `rsocket`): not offered. The names are here so that programs that link them start; they say
//! `EOPNOTSUPP`.

use crate::errno;

/// Functions that return -1 in whatever integer they return.
macro_rules! refusals {
    ($node:literal: $($name:ident)*) => {
        $(
            /// Not offered.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> isize {
                errno::set(libc::EOPNOTSUPP);
                -1
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
