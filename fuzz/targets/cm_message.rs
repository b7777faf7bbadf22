//! The program of the fuzz target `cm_message`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(cm_message);
