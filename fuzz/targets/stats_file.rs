//! The program of the fuzz target `stats_file`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(stats_file);
