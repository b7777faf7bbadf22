//! Execution of requests on a tree alone: decodes fields of linux/fuse.h, calls the tree, and encodes the reply.

use rustix::io::Errno;

use super::wire::{Body, Fields, Opcode, Request, TRANSFER_BYTES_MAX, handle_of, ino_of, node_of};
use crate::tree::{
    Attributes, Caller, Changes, DIRECTORY, Exchange, KIND_BITS, Result, SetXattr, Time, Tree,
};

/// Length in bytes of the structure before a name in a directory listing, and of the attributes before that.
const DIRENT_BYTES: usize = 24;
const ENTRY_OUT_BYTES: usize = 128;

/// Flag in the reply to `open`: the kernel does not cache file data, except for memory mappings.
const FOPEN_DIRECT_IO: u32 = 1;

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

/// The handle consists of inode and era, so that another process interprets it in the same way.
fn put_open(reply: &mut Vec<u8>, handle: u64, flags: u32) {
    reply.put_u64(handle);
    reply.put_u32(flags);
    reply.put_u32(0);
}

/// Contents of the lines of a directory listing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lines {
    Names,
    NamesAndAttributes,
}

pub(super) fn readdir(
    tree: &mut Tree,
    request: &Request<'_>,
    lines: Lines,
    reply: &mut Vec<u8>,
) -> Result<()> {
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
