//! Attacks on serving programs. Each succeeded against a version without its remedy: `FARCALL_TEST_BINARY=OLD cargo
//! test --test hostile` repeats that.
//!
//! Attacks by another user of the machine need root to become that user. They are ignored here, and are run by `bash
//! .ci/run hostile_users`. Long tests are ignored as well, and are in `long`.

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
