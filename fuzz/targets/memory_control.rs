//! The program of the fuzz target `memory_control`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(memory_control);
