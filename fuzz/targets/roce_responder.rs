//! The program of the fuzz target `roce_responder`.
#![cfg_attr(fuzzing, no_main)]
farcall_fuzz::target!(roce_responder);
