//! The program of the fuzz target `measurement_control`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(measurement_control);
