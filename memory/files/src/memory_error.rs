//! Errors of memory nodes, as programs receive them.

use farcall_memory::IoError;
use rustix::io::Errno;

/// Converts an error for programs, and logs its reason for operators.
pub(crate) fn errno(at: u64, error: IoError) -> Errno {
    tracing::warn!(at, "bytes on memory nodes: {error}");
    match error {
        IoError::NoRoom { .. } => Errno::NOSPC,
        IoError::Fenced => Errno::NOTCONN,
        IoError::ReadOnly => Errno::ROFS,
        _ => Errno::IO,
    }
}
