//! A file system of one file of a fixed length, over a memory. A loop device, and on it a swap area, is created over
//! the file.
//!
//! One process mounts it and another one serves it: the descriptor of /dev/fuse is passed between them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::mount::{MountError, MountOptions, UnattachedMount};
use super::wire::{Body, Opcode, Request, TRANSFER_BYTES_MAX, VALID_MAX};
use crate::tree::{Attributes, BLOCK_BYTES, DIRECTORY, REGULAR, ROOT, Result};
use crate::volume::Memory;

/// Name of the file.
pub const ONE_FILE_NAME: &str = "swap";
const FILE: u64 = ROOT + 1;
/// The file contains memory of programs, so only its owner may access it.
const MODE: u32 = 0o600;

/// A read or a write that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// `true` for a write.
    pub is_write: bool,
    /// Number of bytes.
    pub len_bytes: usize,
    /// Duration of the access to memory.
    pub time: Duration,
    /// `true` if it succeeded.
    pub is_done: bool,
}

/// Mounts the file system at a directory, for the current user only. While a process holds the returned descriptor,
/// requests wait; when none does, they fail.
///
/// # Errors
/// Returns an error if FUSE is not available, the directory cannot be used, or the kernel rejects the mount.
pub fn mount_one_file(dir: &Path) -> Result<OwnedFd, MountError> {
    let options = MountOptions { source: "farcall", is_read_only: false };
    let mount = UnattachedMount::create(dir, options, &["default_permissions"])?;
    mount.attach()?;
    Ok(mount.device()?)
}

/// Serves requests until the file system is unmounted, as one of several threads. Calls `record` after each transfer.
pub fn serve_one_file(
    device: &OwnedFd,
    memory: &dyn Memory,
    size_bytes: u64,
    mut record: impl FnMut(Transfer),
) {
    super::serve(device, |request, reply| (handle(memory, size_bytes, request, reply, &mut record), ()));
}

fn handle(
    memory: &dyn Memory,
    size_bytes: u64,
    request: &Request<'_>,
    reply: &mut Vec<u8>,
    record: &mut impl FnMut(Transfer),
) -> Result<()> {
    let (node, mut body) = (request.node, request.body);
    let Some(opcode) = request.opcode else { return Err(Errno::NOSYS) };
    match opcode {
        Opcode::Lookup if node == ROOT && body.name()? == ONE_FILE_NAME.as_bytes() => {
            reply.put_entry_out(FILE, &attributes(FILE, size_bytes)?, VALID_MAX);
        }
        Opcode::Lookup => return Err(Errno::NOENT),
        Opcode::Getattr => reply.put_attr_out(&attributes(node, size_bytes)?, VALID_MAX),
        Opcode::Open if node == FILE => {
            reply.put_u64(FILE);
            // No flags: the loop device selects direct I/O itself.
            reply.put_u64(0);
        }
        Opcode::Read if node == FILE => {
            body.skip(8)?;
            let (offset, len_bytes) = (body.u64()?, body.u32()? as usize);
            let left = usize::try_from(size_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len_bytes = len_bytes.min(left).min(TRANSFER_BYTES_MAX);
            if len_bytes > 0 {
                timed(false, len_bytes, record, || memory.read(offset, len_bytes, reply))?;
            }
        }
        Opcode::Write if node == FILE => {
            body.skip(8)?;
            let (offset, len_bytes) = (body.u64()?, body.u32()?);
            body.skip(20)?;
            let bytes = body.take(len_bytes as usize)?;
            if offset.checked_add(len_bytes.into()).is_none_or(|end| end > size_bytes) {
                return Err(Errno::FBIG);
            }
            timed(true, bytes.len(), record, || memory.write(offset, bytes))?;
            reply.put_u32(len_bytes);
            reply.put_u32(0);
        }
        // The reply to a write is sent after all in-sync replicas have stored it, so there is nothing to flush.
        Opcode::Flush | Opcode::Fsync | Opcode::Release | Opcode::Forget | Opcode::BatchForget => {}
        Opcode::Destroy | Opcode::Interrupt => {}
        Opcode::Fallocate => return Err(Errno::OPNOTSUPP),
        _ => return Err(Errno::NOSYS),
    }
    Ok(())
}

fn timed(
    is_write: bool,
    len_bytes: usize,
    record: &mut impl FnMut(Transfer),
    transfer: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let begun = Instant::now();
    let outcome = transfer();
    record(Transfer { is_write, len_bytes, time: begun.elapsed(), is_done: outcome.is_ok() });
    outcome
}

fn attributes(ino: u64, size_bytes: u64) -> Result<Attributes> {
    let (mode, size) = match ino {
        ROOT => (DIRECTORY | 0o700, 0),
        FILE => (REGULAR | MODE, size_bytes),
        _ => return Err(Errno::NOENT),
    };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let blocks = size / BLOCK_BYTES * (BLOCK_BYTES / 512);
    Ok(Attributes { ino, size, blocks, mode, uid, gid, nlink: 1, ..Attributes::default() })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::wire::Fields;
    use super::*;

    const SIZE_BYTES: u64 = 64 << 10;

    struct Bytes(Mutex<Vec<u8>>);

    impl Memory for Bytes {
        fn read(&self, at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
            let from = at as usize;
            let all = self.0.lock().unwrap();
            bytes.extend_from_slice(all.get(from..from + len_bytes).ok_or(Errno::IO)?);
            Ok(())
        }

        fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
            let from = at as usize;
            let mut all = self.0.lock().unwrap();
            all.get_mut(from..from + bytes.len()).ok_or(Errno::IO)?.copy_from_slice(bytes);
            Ok(())
        }
    }

    fn execute(
        memory: &Bytes,
        opcode: Opcode,
        node: u64,
        body: &[u8],
        transfers: &mut Vec<Transfer>,
    ) -> Result<Vec<u8>> {
        let request = Request {
            opcode: Some(opcode),
            unique: 1,
            node,
            named: node,
            era: 0,
            uid: 0,
            gid: 0,
            body: Fields(body),
            bytes: body,
            valid: VALID_MAX,
        };
        let mut reply = Vec::new();
        handle(memory, SIZE_BYTES, &request, &mut reply, &mut |transfer| transfers.push(transfer))?;
        Ok(reply)
    }

    fn words(handle: u64, offset: u64, len_bytes: u32) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64(handle);
        body.put_u64(offset);
        body.put_u32(len_bytes);
        (0..5).for_each(|_| body.put_u32(0));
        body
    }

    #[test]
    fn reads_written_bytes_within_the_size() {
        let memory = Bytes(Mutex::new(vec![0; SIZE_BYTES as usize]));
        let mut transfers = Vec::new();
        let mut write = words(0, 8_192, 4_096);
        write.extend_from_slice(&[7; 4_096]);
        let mut execute = |opcode, node, body: &[u8]| execute(&memory, opcode, node, body, &mut transfers);
        assert_eq!(execute(Opcode::Write, FILE, &write).unwrap()[..4], 4_096_u32.to_ne_bytes());
        assert_eq!(execute(Opcode::Read, FILE, &words(0, 8_192, 4_096)).unwrap(), vec![7; 4_096]);
        assert_eq!(execute(Opcode::Read, FILE, &words(0, SIZE_BYTES - 10, 4_096)).unwrap(), vec![0; 10]);
        assert_eq!(execute(Opcode::Read, FILE, &words(0, SIZE_BYTES + 1, 4_096)).unwrap(), Vec::<u8>::new());
        let mut beyond = words(0, SIZE_BYTES - 10, 4_096);
        beyond.extend_from_slice(&[7; 4_096]);
        assert_eq!(execute(Opcode::Write, FILE, &beyond), Err(Errno::FBIG));
        assert_eq!(execute(Opcode::Write, FILE, &write[..100]), Err(Errno::IO), "shorter than it says");
        assert_eq!(execute(Opcode::Lookup, ROOT, b"swap\0").unwrap()[..8], FILE.to_ne_bytes());
        assert_eq!(execute(Opcode::Lookup, ROOT, b"other\0"), Err(Errno::NOENT));
        assert_eq!(execute(Opcode::Unlink, ROOT, b"swap\0"), Err(Errno::NOSYS));
        assert_eq!(transfers.len(), 3, "nothing is asked for beyond the end");
        assert!(
            transfers.iter().all(|transfer| transfer.is_done)
                && transfers[0].is_write
                && !transfers[1].is_write
        );
    }
}
