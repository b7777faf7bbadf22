//! Peers, bootstrap handshake and registered pools for Farcall.
