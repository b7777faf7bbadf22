//! The program of the fuzz target `capture_part`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(capture_part);
