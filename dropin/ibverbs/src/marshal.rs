//! Functions that the original librdmacm imports: conversion of attributes from the format of the kernel's connection
//! manager. Programs that use the original librdmacm fail earlier, because there is no kernel manager; only the names
//! are needed here.

use crate::symbols::unsupported;

unsupported! {
    "IBVERBS_1.0" { Nothing: ibv_copy_qp_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern; }
    "IBVERBS_1.1" { Nothing: ibv_copy_ah_attr_from_kern; }
}
