//! A file system over memory nodes, mounted by FUSE.
//!
//! * [`Tree`]: the metadata, without I/O: operations in, what to load and to store out.
//! * [`Volume`]: a tree together with the [`Memory`] that its bytes are in, usually a
//!   [`RemoteMemory`](farcall_memory::RemoteMemory).
//! * [`Mount`]: a volume at a directory.
//! * [`Supervisor`]: a volume at a directory, served by a process that is replaced when it dies; [`Worker`] is its end.
//! * [`serve_by_workers`]: such processes, one after another, for who mounts something else.
//! * [`Lineage`]: what the processes of a mount hand on of their claims of a volume.
//! * [`Journal`]: what a process after this one needs to go on with a volume; [`Log`]: what a mount on another machine
//!   needs.
//! * [`mount_one_file`], [`serve_one_file`]: one file over such a memory, by two processes; what is paged goes there.
//! * [`save`], [`restore`]: a volume to a file, and back.

#![forbid(unsafe_code)]

mod fuse;
mod journal;
mod lineage;
mod log;
mod mounts;
mod snapshot;
mod supervisor;
mod tree;
mod volume;

pub use fuse::{
    Mount, MountEnd, MountError, MountOptions, ONE_FILE_NAME, Transfer, ask_again, mount_one_file,
    serve_one_file, unmount_at,
};
pub use journal::Journal;
pub use lineage::Lineage;
pub use log::{Log, Notes};
pub use mounts::{Mounted, farcall_mounted_at, mounts};
pub use snapshot::{SnapshotError, restore, restore_from, save};
pub use supervisor::{Present, State, Supervisor, SupervisorError, Worker, serve_by_workers};
pub use tree::{
    Attributes, BLOCK_BYTES, BadImage, Blocks, Caller, Changes, DIRECTORY, Entry, Exchange, FILE_BYTES_MAX,
    KIND_BITS, Load, NAME_BYTES_MAX, REGULAR, ROOT, Result, SYMLINK, SetXattr, Store, Time, Tree, Usage,
    WritePlan,
};
pub use volume::{Memory, Volume};
