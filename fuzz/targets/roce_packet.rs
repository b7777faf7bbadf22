//! The program of the fuzz target `roce_packet`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(roce_packet);
