//! The program of the fuzz target `tree_log`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(tree_log);
