//! The program of the fuzz target `roce_packet`.

farcall_fuzz::target!(roce_packet);
