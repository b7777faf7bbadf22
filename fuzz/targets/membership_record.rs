//! The program of the fuzz target `membership_record`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(membership_record);
