//! What the original librdmacm asks for: attributes as the kernel's connection manager writes them. Programs on the original
//! librdmacm find no kernel manager to ask and fail there, with its own words; here the names are enough.

use crate::symbols::export;

export! {
    "IBVERBS_1.0" {
        /// Not offered.
        fn ibv_copy_qp_attr_from_kern(_to: *mut (), _from: *mut ()) {}

        /// Not offered.
        fn ibv_copy_path_rec_from_kern(_to: *mut (), _from: *mut ()) {}

        /// Not offered.
        fn ibv_copy_path_rec_to_kern(_to: *mut (), _from: *mut ()) {}
    }
    "IBVERBS_1.1" {
        /// Not offered.
        fn ibv_copy_ah_attr_from_kern(_to: *mut (), _from: *mut ()) {}
    }
}
