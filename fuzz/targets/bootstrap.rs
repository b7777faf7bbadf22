//! The program of the fuzz target `bootstrap`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(bootstrap);
