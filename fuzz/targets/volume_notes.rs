//! The program of the fuzz target `volume_notes`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(volume_notes);
