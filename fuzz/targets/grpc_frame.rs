//! The program of the fuzz target `grpc_frame`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(grpc_frame);
