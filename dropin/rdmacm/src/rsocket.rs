//! Sockets over RDMA (man `rsocket`): not offered. The names are here so that programs that link them start; they say
//! `EOPNOTSUPP`.

use crate::symbols::not_offered;

not_offered! {
    "RDMACM_1.0" {
        MinusOne: rsocket rbind rlisten raccept rconnect rshutdown rclose rrecv rrecvfrom rrecvmsg rsend rsendto
            rsendmsg rread rreadv rwrite rwritev rpoll rselect rgetpeername rgetsockname rsetsockopt rgetsockopt rfcntl riomap
            riounmap riowrite;
    }
    "RDMACM_1.5" { MinusOne: repoll_create repoll_ctl repoll_wait; }
}
