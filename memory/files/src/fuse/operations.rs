//! Execution of requests: decodes fields of linux/fuse.h, calls the tree and the volume, and encodes the reply.

use rustix::io::Errno;

use super::wire::{Body, Fields, Opcode, Request, TRANSFER_BYTES_MAX, handle_of, ino_of, is_of_era, node_of};
use crate::tree::{
    Allocate, Attributes, BLOCK_BYTES, Caller, Changes, DIRECTORY, Exchange, KIND_BITS, NAME_BYTES_MAX,
    Result, SetXattr, Time, Tree,
};
use crate::volume::Volume;

/// Length in bytes of the structure before a name in a directory listing, and of the attributes before that.
const DIRENT_BYTES: usize = 24;
const ENTRY_OUT_BYTES: usize = 128;

/// Flag in the reply to `open`: the kernel does not cache file data, except for memory mappings.
const FOPEN_DIRECT_IO: u32 = 1;

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

/// Executes a request on the tree alone. Deterministic: with the same request and time it has the same effect on an
/// equal tree, as the replay of the journal requires.
pub(crate) fn execute(tree: &mut Tree, request: &Request<'_>, now: Time, reply: &mut Vec<u8>) -> Result<()> {
    let (node, mut body) = (request.node, request.body);
    let caller = Caller { uid: request.uid, gid: request.gid };
    let Some(opcode) = request.opcode else { return Err(Errno::NOSYS) };
    match opcode {
        Opcode::Lookup => lookup(tree, request, body.name()?, reply),
        Opcode::Setattr => setattr(tree, request, now, reply),
        Opcode::Symlink => {
            let (name, target) = (body.name()?, body.name()?);
            entry(tree, request, reply, |tree| tree.symlink(node, name, target, caller, now))
        }
        Opcode::Mknod => {
            let (mode, rdev) = (body.u32()?, body.u32()?);
            body.skip(8)?;
            let name = body.name()?;
            entry(tree, request, reply, |tree| tree.create(node, name, mode, rdev, caller, now))
        }
        Opcode::Mkdir => {
            let mode = body.u32()? & !KIND_BITS | DIRECTORY;
            body.skip(4)?;
            let name = body.name()?;
            entry(tree, request, reply, |tree| tree.create(node, name, mode, 0, caller, now))
        }
        Opcode::Create | Opcode::Tmpfile => {
            body.skip(4)?;
            let mode = body.u32()?;
            body.skip(8)?;
            let name = body.name()?;
            let made = match opcode {
                Opcode::Tmpfile => tree.create_unnamed(node, mode & !KIND_BITS, caller, now),
                _ => tree.create(node, name, mode, 0, caller, now),
            }?;
            tree.open(made.ino)?;
            entry(tree, request, reply, |_| Ok(made))?;
            put_open(reply, handle_of(made.ino, request.era), FOPEN_DIRECT_IO);
            Ok(())
        }
        Opcode::Unlink => tree.unlink(node, body.name()?, now),
        Opcode::Rmdir => tree.rmdir(node, body.name()?, now),
        Opcode::Rename => {
            let to = ino_of(body.u64()?);
            rename(tree, node, to, Exchange::Replace, body, now)
        }
        Opcode::Rename2 => {
            let (to, flags) = (ino_of(body.u64()?), body.u32()?);
            body.skip(4)?;
            let exchange = match flags {
                0 => Exchange::Replace,
                1 => Exchange::NoReplace,
                2 => Exchange::Exchange,
                _ => return Err(Errno::INVAL),
            };
            rename(tree, node, to, exchange, body, now)
        }
        Opcode::Link => {
            let ino = ino_of(body.u64()?);
            let name = body.name()?;
            entry(tree, request, reply, |tree| tree.link(ino, node, name, now))
        }
        Opcode::Open | Opcode::Opendir => {
            tree.open(node)?;
            let flags = if opcode == Opcode::Open { FOPEN_DIRECT_IO } else { 0 };
            put_open(reply, handle_of(node, request.era), flags);
            Ok(())
        }
        Opcode::Release | Opcode::Releasedir => {
            tree.close(node);
            Ok(())
        }
        Opcode::Readdirplus => {
            readdir(tree, request, Lines::NamesAndAttributes, reply)?;
            tree.accessed(node, now);
            Ok(())
        }
        Opcode::Setxattr => {
            let (len_bytes, flags) = (body.u32()? as usize, body.u32()?);
            let how = match flags {
                0 => SetXattr::Any,
                1 => SetXattr::Create,
                2 => SetXattr::Replace,
                _ => return Err(Errno::INVAL),
            };
            let name = body.name()?;
            tree.set_xattr(node, name, body.take(len_bytes)?, how, now)
        }
        Opcode::Removexattr => tree.remove_xattr(node, body.name()?, now),
        _ => Err(Errno::NOSYS),
    }
}

/// Creates or finds an inode, replies with it, and counts the kernel's reference to it.
fn entry(
    tree: &mut Tree,
    request: &Request<'_>,
    reply: &mut Vec<u8>,
    make: impl FnOnce(&mut Tree) -> Result<Attributes>,
) -> Result<()> {
    let attributes = make(tree)?;
    tree.add_lookup(attributes.ino);
    reply.put_entry_out(node_of(attributes.ino, request.era), &attributes, request.valid);
    Ok(())
}

fn lookup(tree: &mut Tree, request: &Request<'_>, name: &[u8], reply: &mut Vec<u8>) -> Result<()> {
    match entry(tree, request, reply, |tree| tree.lookup(request.node, name)) {
        Err(Errno::NOENT) => {
            reply.put_no_entry(request.valid);
            Ok(())
        }
        outcome => outcome,
    }
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

fn setattr(tree: &mut Tree, request: &Request<'_>, now: Time, reply: &mut Vec<u8>) -> Result<()> {
    let (ino, mut body) = (request.node, request.body);
    let valid = body.u32()?;
    body.skip(4 + 8 + 8 + 8)?;
    let seconds = [body.u64()?, body.u64()?, body.u64()?];
    let nanos = [body.u32()?, body.u32()?, body.u32()?];
    let mode = body.u32()?;
    body.skip(4)?;
    let (uid, gid) = (body.u32()?, body.u32()?);
    let is = |bit: u32| valid & (1 << bit) != 0;
    let time = |at: usize, given: u32, present: Option<u32>| match present {
        Some(present) if is(present) => Some(now),
        _ => is(given).then_some(Time { seconds: seconds[at].cast_signed(), nanos: nanos[at] }),
    };
    let changes = Changes {
        mode: is(0).then_some(mode),
        uid: is(1).then_some(uid),
        gid: is(2).then_some(gid),
        atime: time(0, 4, Some(7)),
        mtime: time(1, 5, Some(8)),
        ctime: time(2, 10, None),
    };
    reply.put_attr_out(&tree.change(ino, changes, now)?, request.valid);
    Ok(())
}

fn rename(
    tree: &mut Tree,
    from: u64,
    to: u64,
    exchange: Exchange,
    mut body: Fields<'_>,
    now: Time,
) -> Result<()> {
    let (name, new_name) = (body.name()?, body.name()?);
    tree.rename((from, name), (to, new_name), exchange, now)
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

/// The handle consists of inode and era, so that another process interprets it in the same way.
fn put_open(reply: &mut Vec<u8>, handle: u64, flags: u32) {
    reply.put_u64(handle);
    reply.put_u32(flags);
    reply.put_u32(0);
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

/// Contents of the lines of a directory listing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    Names,
    NamesAndAttributes,
}

fn readdir(tree: &mut Tree, request: &Request<'_>, lines: Lines, reply: &mut Vec<u8>) -> Result<()> {
    let (ino, mut body) = (request.node, request.body);
    body.skip(8)?;
    let (position, room) = (body.u64()?, (body.u32()? as usize).min(TRANSFER_BYTES_MAX));
    let mut known = Vec::new();
    for line in tree.entries(ino, position)? {
        let attributes =
            (lines == Lines::NamesAndAttributes).then(|| tree.attributes(line.ino)).transpose()?;
        let before = if attributes.is_some() { ENTRY_OUT_BYTES } else { 0 };
        let len_bytes = (before + DIRENT_BYTES + line.name.len()).next_multiple_of(8);
        if reply.len() + len_bytes > room {
            break;
        }
        let end = reply.len() + len_bytes;
        match attributes {
            // The kernel does not count references to these.
            Some(_) if matches!(line.name, b"." | b"..") => reply.resize(reply.len() + ENTRY_OUT_BYTES, 0),
            Some(attributes) => {
                known.push(line.ino);
                reply.put_entry_out(node_of(line.ino, request.era), &attributes, request.valid);
            }
            None => {}
        }
        reply.put_u64(line.ino);
        reply.put_u64(line.position);
        reply.put_u32(line.name.len() as u32);
        reply.put_u32((line.mode & KIND_BITS) >> 12);
        reply.extend_from_slice(line.name);
        reply.resize(end, 0);
    }
    known.into_iter().for_each(|ino| tree.add_lookup(ino));
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
