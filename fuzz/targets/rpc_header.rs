//! The program of the fuzz target `rpc_header`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(rpc_header);
