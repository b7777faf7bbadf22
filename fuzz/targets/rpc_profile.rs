//! The program of the fuzz target `rpc_profile`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(rpc_profile);
