//! Attacks on serving programs. Each was seen to succeed against a version without its remedy:
//! `FARCALL_TEST_BINARY=OLD cargo test --test hostile` repeats that.
//!
//! Attacks by another user of the machine need root to become that user; they are ignored here and run by
//! `bash .ci/run hostile_users`. What runs long is ignored, too, and stands in `long`.

mod doors;
mod garbage;
mod limits;
mod long;
mod memory;
mod protocol;
mod rendezvous;
mod server;
mod statistics;
mod strangers;
