//! The program of the fuzz target `region_snapshot`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(region_snapshot);
