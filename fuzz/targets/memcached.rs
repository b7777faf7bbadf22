//! The program of the fuzz target `memcached`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(memcached);
