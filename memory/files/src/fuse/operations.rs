//! Execution of requests on a volume: decodes fields of linux/fuse.h, calls the volume, and encodes the reply.

use rustix::io::Errno;

use super::tree_requests::{Lines, readdir};
use super::wire::{Body, Fields, Opcode, Request, TRANSFER_BYTES_MAX, ino_of, is_of_era};
use crate::tree::{Allocate, BLOCK_BYTES, NAME_BYTES_MAX, Result, Tree};
use crate::volume::Volume;

/// Executes a request and appends the body of the reply to `reply`.
pub(crate) fn handle(volume: &Volume, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<()> {
    let (node, mut body) = (request.node, request.body);
    if request.is_resent()
        && let Some(outcome) = volume.earlier_reply(request.number(), reply)
    {
        return outcome;
    }
    // An earlier process may have run a newer build: its recorded reply is used above even if this build does not know
    // the opcode.
    let Some(opcode) = request.opcode else { return Err(Errno::NOSYS) };
    if !is_current(opcode, request)? {
        // The kernel forgets or closes an inode that the tree does not have.
        let is_end = matches!(opcode, Opcode::Forget | Opcode::Release | Opcode::Releasedir);
        return if is_end { Ok(()) } else { Err(Errno::STALE) };
    }
    if request.is_resent() && volume.is_restarted() && changes_the_tree(opcode) {
        // The request may have been executed before another mount changed the tree.
        return Err(Errno::STALE);
    }
    match opcode {
        Opcode::Forget => {
            volume.forget(node, body.u64()?);
            Ok(())
        }
        Opcode::BatchForget => batch_forget(volume, request, body),
        Opcode::Getattr => {
            reply.put_attr_out(&volume.tree().attributes(node)?, request.valid);
            Ok(())
        }
        Opcode::Setattr => {
            resize(volume, node, body)?;
            volume.execute(request, reply)
        }
        Opcode::Readlink => {
            reply.extend_from_slice(volume.tree().readlink(node)?);
            Ok(())
        }
        Opcode::Release | Opcode::Releasedir => volume.execute_exclusively(request, reply),
        Opcode::Read => {
            body.skip(8)?;
            let (offset, len_bytes) = (body.u64()?, body.u32()? as usize);
            volume.read(node, offset, len_bytes.min(TRANSFER_BYTES_MAX), reply)
        }
        Opcode::Write => write(volume, node, body, reply),
        Opcode::Readdir => {
            let mut tree = volume.tree();
            readdir(&mut tree, request, Lines::Names, reply)?;
            volume.accessed(&mut tree, node);
            Ok(())
        }
        Opcode::Statfs => {
            statfs(&volume.tree(), reply);
            Ok(())
        }
        // The reply to a write is sent after all in-sync replicas have stored it, so only metadata changes since the
        // last sync remain to be stored.
        Opcode::Flush | Opcode::Fsync | Opcode::Fsyncdir | Opcode::Syncfs => volume.sync(),
        Opcode::Destroy | Opcode::Interrupt | Opcode::Init => Ok(()),
        Opcode::Getxattr => {
            let room = body.u32()? as usize;
            body.skip(4)?;
            put_sized(reply, room, volume.tree().xattr(node, body.name()?)?)
        }
        Opcode::Listxattr => {
            let room = body.u32()? as usize;
            put_sized(reply, room, &volume.tree().xattr_names(node)?)
        }
        Opcode::Fallocate => fallocate(volume, node, body),
        Opcode::Lseek => {
            body.skip(8)?;
            let (offset, whence) = (body.u64()?, body.u32()?);
            let for_data = match whence {
                3 => true,
                4 => false,
                _ => return Err(Errno::INVAL),
            };
            reply.put_u64(volume.tree().seek(node, offset, for_data)?);
            Ok(())
        }
        _ => volume.execute(request, reply),
    }
}

/// Returns whether the kernel received all nodes that a request names in this era. Sync requests are checked by their
/// handle: for a handle of an earlier era it is unknown which data was lost.
fn is_current(opcode: Opcode, request: &Request<'_>) -> Result<bool> {
    let mut body = request.body;
    let is_other_current = match opcode {
        Opcode::Rename | Opcode::Rename2 | Opcode::Link => request.is_current(body.u64()?),
        Opcode::Flush | Opcode::Fsync | Opcode::Fsyncdir => is_of_era(body.u64()?, request.era),
        // It names no node; those in its body are checked one by one.
        Opcode::BatchForget => return Ok(true),
        _ => true,
    };
    Ok(request.is_current(request.named) && is_other_current)
}

const fn changes_the_tree(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Setattr
            | Opcode::Symlink
            | Opcode::Mknod
            | Opcode::Mkdir
            | Opcode::Unlink
            | Opcode::Rmdir
            | Opcode::Rename
            | Opcode::Rename2
            | Opcode::Link
            | Opcode::Create
            | Opcode::Tmpfile
            | Opcode::Setxattr
            | Opcode::Removexattr
    )
}

fn batch_forget(volume: &Volume, request: &Request<'_>, mut body: Fields<'_>) -> Result<()> {
    let count = body.u32()?;
    body.skip(4)?;
    for _ in 0..count {
        let (node, lookups) = (body.u64()?, body.u64()?);
        if request.is_current(node) {
            volume.forget(ino_of(node), lookups);
        }
    }
    Ok(())
}

/// Bit of SETATTR: the length is valid.
const FATTR_SIZE: u32 = 1 << 3;

/// Executes the part of SETATTR that accesses memory: a change of the length.
fn resize(volume: &Volume, ino: u64, mut body: Fields<'_>) -> Result<()> {
    let valid = body.u32()?;
    body.skip(4 + 8)?;
    let size = body.u64()?;
    if valid & FATTR_SIZE == 0 { Ok(()) } else { volume.resize(ino, size).map(drop) }
}

/// Flags of WRITE. FUSE_WRITE_CACHE: pages of a mapping that the kernel writes back, at any time after a program
/// changed them. FUSE_WRITE_KILL_SUIDGID: the caller may not keep set-user-ID and set-group-ID.
const FUSE_WRITE_CACHE: u32 = 1 << 0;
const FUSE_WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// Removes, before a write, the privileges that it ends. Returns whether the attributes cached by the kernel became
/// invalid.
pub(super) fn drop_privileges(volume: &Volume, request: &Request<'_>) -> bool {
    let mut body = request.body;
    let flags = body.skip(8 + 8 + 4).and_then(|()| body.u32());
    let Some(flags) = flags.ok().filter(|flags| flags & FUSE_WRITE_CACHE == 0) else { return false };
    request.opcode == Some(Opcode::Write)
        && volume.drop_privileges(request.node, flags & FUSE_WRITE_KILL_SUIDGID != 0)
}

fn write(volume: &Volume, ino: u64, mut body: Fields<'_>, reply: &mut Vec<u8>) -> Result<()> {
    body.skip(8)?;
    let (offset, len_bytes) = (body.u64()?, body.u32()?);
    body.skip(20)?;
    volume.write(ino, offset, body.take(len_bytes as usize)?)?;
    reply.put_u32(len_bytes);
    reply.put_u32(0);
    Ok(())
}

fn statfs(tree: &Tree, reply: &mut Vec<u8>) {
    let usage = tree.usage();
    let counts = [usage.blocks, usage.blocks_free, usage.blocks_free, usage.inodes, usage.inodes_free];
    counts.into_iter().for_each(|count| reply.put_u64(count));
    let block_bytes = BLOCK_BYTES as u32;
    [block_bytes, NAME_BYTES_MAX as u32, block_bytes].into_iter().for_each(|value| reply.put_u32(value));
    (0..7).for_each(|_| reply.put_u32(0));
}

/// Replies with a value, or with its length if `room` is 0.
fn put_sized(reply: &mut Vec<u8>, room: usize, value: &[u8]) -> Result<()> {
    if room == 0 {
        reply.put_u32(value.len() as u32);
        reply.put_u32(0);
    } else if value.len() > room {
        return Err(Errno::RANGE);
    } else {
        reply.extend_from_slice(value);
    }
    Ok(())
}

fn fallocate(volume: &Volume, ino: u64, mut body: Fields<'_>) -> Result<()> {
    body.skip(8)?;
    let (offset, len_bytes, mode) = (body.u64()?, body.u64()?, body.u32()?);
    // FALLOC_FL_KEEP_SIZE, _PUNCH_HOLE, _ZERO_RANGE.
    let (how, keep_size) = match mode {
        0 => (Allocate::Reserve, false),
        0x01 => (Allocate::Reserve, true),
        0x03 => (Allocate::Punch, true),
        0x10 => (Allocate::Zero, false),
        0x11 => (Allocate::Zero, true),
        _ => return Err(Errno::OPNOTSUPP),
    };
    volume.allocate(ino, offset, len_bytes, how, keep_size).map(drop)
}
