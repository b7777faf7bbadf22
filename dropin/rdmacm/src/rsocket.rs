//! Sockets over RDMA (man `rsocket`), which are not supported. The functions exist so that programs linked with them
//! start; they fail with `EOPNOTSUPP`.

use crate::symbols::unsupported;

unsupported! {
    "RDMACM_1.0" {
        MinusOne: rsocket rbind rlisten raccept rconnect rshutdown rclose rrecv rrecvfrom rrecvmsg rsend rsendto
            rsendmsg rread rreadv rwrite rwritev rpoll rselect rgetpeername rgetsockname rsetsockopt rgetsockopt rfcntl riomap
            riounmap riowrite;
    }
    "RDMACM_1.5" { MinusOne: repoll_create repoll_ctl repoll_wait; }
}
