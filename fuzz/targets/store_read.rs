//! The program of the fuzz target `store_read`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(store_read);
