//! The program of the fuzz target `rpc_batch`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(rpc_batch);
