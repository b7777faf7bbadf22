//! A file system over memory nodes, mounted by FUSE.
//!
//! * [`Tree`]: the metadata, without I/O: operations return the loads and stores to execute.
//! * [`Volume`]: a tree together with the [`Memory`] that contains its blocks, usually a
//!   [`RemoteMemory`](farcall_memory::RemoteMemory).
//! * [`Mount`]: a volume mounted at a directory.
//! * [`Supervisor`]: a volume mounted at a directory, served by a worker process that is replaced after a crash;
//!   [`Worker`] is the worker's end.
//! * [`serve_by_workers`]: runs such processes one after another, for programs that mount another file system.
//! * [`Lineage`]: record of the claims of a volume, passed between the processes of a mount.
//! * [`Journal`]: state from which the next process of this mount resumes; [`Log`]: state from which a mount on
//!   another machine resumes.
//! * [`mount_one_file`], [`serve_one_file`]: a file system of one file over such a memory, mounted and served by two
//!   processes; the target of paging.
//! * [`save`], [`restore`]: copy a volume to a file, and back.

#![forbid(unsafe_code)]

mod fuse;
mod journal;
mod lineage;
mod log;
mod memory_error;
mod mounts;
mod record;
mod snapshot;
mod supervisor;
mod tree;
mod volume;

pub use fuse::{
    Mount, MountEnd, MountError, MountOptions, ONE_FILE_NAME, Transfer, mount_one_file, request_resend,
    serve_one_file, unmount_at,
};
pub use journal::Journal;
pub use lineage::Lineage;
pub use log::{Log, LogStorage};
pub use mounts::{Mounted, farcall_mounted_at, mounts};
pub use snapshot::{SnapshotError, restore, restore_from, save};
pub use supervisor::{CurrentWorker, State, Supervisor, SupervisorError, Worker, serve_by_workers};
pub use tree::{
    Attributes, BLOCK_BYTES, BadImage, Blocks, Caller, Changes, DIRECTORY, Entry, Exchange, FILE_BYTES_MAX,
    KIND_BITS, Load, NAME_BYTES_MAX, REGULAR, ROOT, Result, SYMLINK, SetXattr, Store, Time, Tree, Usage,
    WritePlan,
};
pub use volume::{Memory, Volume};
