//! What the original librdmacm asks for: attributes as the kernel's connection manager writes them. Programs on the
//! original librdmacm find no kernel manager to ask and fail there, with its own words; here the names are enough.

use crate::symbols::not_offered;

not_offered! {
    "IBVERBS_1.0" { Nothing: ibv_copy_qp_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern; }
    "IBVERBS_1.1" { Nothing: ibv_copy_ah_attr_from_kern; }
}
