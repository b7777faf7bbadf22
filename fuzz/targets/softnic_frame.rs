//! The program of the fuzz target `softnic_frame`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(softnic_frame);
