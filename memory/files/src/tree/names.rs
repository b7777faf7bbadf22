//! Operations on names of inodes.

use rustix::io::Errno;

use super::directory::{Directory, NAME_BYTES_MAX};
use super::inode::{Caller, Content, File, KIND_BITS, SETGID};
use super::{Attributes, DIRECTORY, REGULAR, ROOT, Result, SYMLINK, Time, Tree, inode};

/// Maximum link count of an inode; subdirectories count, too.
const LINKS_MAX: u32 = 1 << 20;
/// Maximum length of the target of a symbolic link in bytes.
const TARGET_BYTES_MAX: usize = 4_095;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Position of a reader that has read this entry, from which it continues.
    pub position: u64,
    /// Name.
    pub name: &'a [u8],
    /// Inode number.
    pub ino: u64,
    /// Mode of the inode, including its type.
    pub mode: u32,
}

/// Handling of an existing target of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// The target is replaced.
    Replace,
    /// The target must not exist.
    NoReplace,
    /// The target gets the old name.
    Exchange,
}

const fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::EXIST),
        _ if name.len() > NAME_BYTES_MAX => Err(Errno::NAMETOOLONG),
        _ => Ok(()),
    }
}

impl Tree {
    /// Returns the attributes of the inode with a name.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attributes> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let directory = self.directory(parent)?;
        let ino = match name {
            b"." => parent,
            b".." => directory.parent,
            _ => directory.get(name).ok_or(Errno::NOENT)?,
        };
        self.attributes(ino)
    }

    /// Returns the entries of a directory from a position on. Position 0 is before the first entry and begins a scan:
    /// entries that other operations add afterwards are not part of it, so that every scan ends.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`.
    pub fn entries(&self, ino: u64, position: u64) -> Result<impl Iterator<Item = Entry<'_>>> {
        let directory = self.directory(ino)?;
        let scan = directory.scan(position);
        let dots = [(1, &b"."[..], ino), (2, &b".."[..], directory.parent)];
        let dots = dots.into_iter().filter(move |(cookie, ..)| scan.includes(*cookie));
        Ok(dots.chain(directory.after(scan)).filter_map(move |(cookie, name, ino)| {
            let mode = self.inodes.get(&ino)?.mode;
            Some(Entry { position: scan.position_after(cookie), name, ino, mode })
        }))
    }

    /// Creates an inode under a new name: a directory, a file, a socket, a pipe or a device.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`, `ENOSPC`, `EMLINK`.
    pub fn create(
        &mut self,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
        caller: Caller,
        now: Time,
    ) -> Result<Attributes> {
        let content = match mode & KIND_BITS {
            DIRECTORY => Content::Directory(Directory::new(parent)),
            REGULAR | 0 => Content::Bytes(File::default()),
            SYMLINK => return Err(Errno::INVAL),
            _ => Content::Special,
        };
        self.add(parent, name, content, mode, rdev, caller, now)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// Returns the errors of [`Tree::create`].
    pub fn symlink(
        &mut self,
        parent: u64,
        name: &[u8],
        target: &[u8],
        caller: Caller,
        now: Time,
    ) -> Result<Attributes> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.add(parent, name, Content::Symlink(target.to_vec()), SYMLINK | 0o777, 0, caller, now)
    }

    /// Creates a file without a name (`O_TMPFILE`).
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOSPC`.
    pub fn create_unnamed(
        &mut self,
        parent: u64,
        mode: u32,
        caller: Caller,
        now: Time,
    ) -> Result<Attributes> {
        let (caller, mode) = self.inherited(parent, caller, mode)?;
        let mut file = inode(Content::Bytes(File::default()), REGULAR | mode, caller, 0, now);
        file.links = 0;
        let ino = self.insert(file)?;
        self.attributes(ino)
    }

    /// Applies the set-group-ID bit of a directory: a new inode in it gets the group of the directory, and a new
    /// directory also the bit.
    fn inherited(&self, parent: u64, caller: Caller, mode: u32) -> Result<(Caller, u32)> {
        self.directory(parent)?;
        let directory = self.get(parent)?;
        if directory.mode & SETGID == 0 {
            return Ok((caller, mode));
        }
        let bit = if mode & KIND_BITS == DIRECTORY { SETGID } else { 0 };
        Ok((Caller { gid: directory.gid, ..caller }, mode | bit))
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of mknod(2), the caller and the time")]
    fn add(
        &mut self,
        parent: u64,
        name: &[u8],
        content: Content,
        mode: u32,
        rdev: u32,
        caller: Caller,
        now: Time,
    ) -> Result<Attributes> {
        check_name(name)?;
        if self.directory(parent)?.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        self.check_linked(parent)?;
        let (caller, mode) = self.inherited(parent, caller, mode)?;
        let mode = if mode & KIND_BITS == 0 { mode | REGULAR } else { mode };
        let mut made = inode(content, mode, caller, rdev, now);
        let is_directory = made.is_directory();
        if is_directory {
            made.links = 2;
            self.check_links(parent)?;
        }
        let ino = self.insert(made)?;
        self.directory_mut(parent)?.set(name, ino);
        self.touch_directory(parent, i32::from(is_directory), now)?;
        self.attributes(ino)
    }

    /// Returns `ENOENT` for a removed directory, in which no names may be created.
    fn check_linked(&self, parent: u64) -> Result<()> {
        if self.get(parent)?.links == 0 { Err(Errno::NOENT) } else { Ok(()) }
    }

    fn check_links(&self, ino: u64) -> Result<()> {
        if self.get(ino)?.links >= LINKS_MAX { Err(Errno::MLINK) } else { Ok(()) }
    }

    /// Records a change of a directory's names. `directories` is the change of the number of its subdirectories.
    fn touch_directory(&mut self, ino: u64, directories: i32, now: Time) -> Result<()> {
        let inode = self.get_mut(ino)?;
        inode.links = inode.links.saturating_add_signed(directories);
        (inode.mtime, inode.ctime) = (now, now);
        Ok(())
    }

    /// Creates another name for an inode.
    ///
    /// # Errors
    /// Returns the errors of [`Tree::create`]; `EPERM` for a directory.
    pub fn link(&mut self, ino: u64, parent: u64, name: &[u8], now: Time) -> Result<Attributes> {
        check_name(name)?;
        if self.get(ino)?.is_directory() {
            return Err(Errno::PERM);
        }
        self.check_links(ino)?;
        if self.directory(parent)?.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        self.check_linked(parent)?;
        self.directory_mut(parent)?.set(name, ino);
        self.touch_directory(parent, 0, now)?;
        let inode = self.get_mut(ino)?;
        inode.links += 1;
        inode.ctime = now;
        self.attributes(ino)
    }

    /// Removes a name of an inode that is not a directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`.
    pub fn unlink(&mut self, parent: u64, name: &[u8], now: Time) -> Result<()> {
        let ino = self.directory(parent)?.get(name).ok_or(Errno::NOENT)?;
        if self.get(ino)?.is_directory() {
            return Err(Errno::ISDIR);
        }
        self.directory_mut(parent)?.remove(name);
        self.touch_directory(parent, 0, now)?;
        self.remove_link(ino, now)
    }

    /// Removes a directory that is empty.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`.
    pub fn rmdir(&mut self, parent: u64, name: &[u8], now: Time) -> Result<()> {
        let ino = self.directory(parent)?.get(name).ok_or(Errno::NOENT)?;
        if !self.directory(ino)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.directory_mut(parent)?.remove(name);
        self.touch_directory(parent, -1, now)?;
        self.remove_link(ino, now)
    }

    /// Records the removal of a name of an inode. A directory has only one.
    fn remove_link(&mut self, ino: u64, now: Time) -> Result<()> {
        let inode = self.get_mut(ino)?;
        inode.links = if inode.is_directory() { 0 } else { inode.links.saturating_sub(1) };
        inode.ctime = now;
        self.drop_if_unused(ino);
        Ok(())
    }

    /// Renames an inode atomically: no operation observes both names or neither.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `ENOTDIR`, `EISDIR`, `ENOTEMPTY`, `EMLINK`; `EINVAL` if a directory would become its own
    /// descendant.
    pub fn rename(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        exchange: Exchange,
        now: Time,
    ) -> Result<()> {
        check_name(to.1)?;
        let moved = self.directory(from.0)?.get(from.1).ok_or(Errno::NOENT)?;
        let target = self.directory(to.0)?.get(to.1);
        self.check_linked(to.0)?;
        self.check_no_cycle(moved, to.0)?;
        match (exchange, target) {
            (Exchange::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (Exchange::Exchange, None) => return Err(Errno::NOENT),
            (Exchange::Exchange, Some(target)) => {
                self.check_no_cycle(target, from.0)?;
                return self.exchange((from, moved), (to, target), now);
            }
            // Two names of the same inode: rename(2) has no effect.
            (_, Some(target)) if target == moved => return Ok(()),
            (_, Some(target)) => self.check_replaceable(moved, target)?,
            (_, None) => {}
        }
        let is_directory = self.get(moved)?.is_directory();
        if is_directory && from.0 != to.0 && target.is_none() {
            self.check_links(to.0)?;
        }
        if let Some(target) = target {
            self.touch_directory(to.0, -i32::from(is_directory), now)?;
            self.remove_link(target, now)?;
        }
        if from.0 == to.0 {
            self.directory_mut(from.0)?.rename(from.1, to.1);
        } else {
            self.directory_mut(from.0)?.remove(from.1);
            self.directory_mut(to.0)?.set(to.1, moved);
        }
        self.touch_directory(from.0, -i32::from(is_directory), now)?;
        self.touch_directory(to.0, i32::from(is_directory), now)?;
        self.update_moved(moved, to.0, now)
    }

    fn exchange(&mut self, a: ((u64, &[u8]), u64), b: ((u64, &[u8]), u64), now: Time) -> Result<()> {
        let directories = |tree: &Self, ino: u64| tree.get(ino).map(|inode| i32::from(inode.is_directory()));
        let (of_a, of_b) = (directories(self, a.1)?, directories(self, b.1)?);
        self.directory_mut(a.0.0)?.set(a.0.1, b.1);
        self.directory_mut(b.0.0)?.set(b.0.1, a.1);
        self.touch_directory(a.0.0, of_b - of_a, now)?;
        self.touch_directory(b.0.0, of_a - of_b, now)?;
        self.update_moved(a.1, b.0.0, now)?;
        self.update_moved(b.1, a.0.0, now)
    }

    /// Records the move of an inode to another directory.
    fn update_moved(&mut self, ino: u64, parent: u64, now: Time) -> Result<()> {
        let inode = self.get_mut(ino)?;
        inode.ctime = now;
        if let Content::Directory(directory) = &mut inode.content {
            directory.parent = parent;
        }
        Ok(())
    }

    fn check_replaceable(&self, moved: u64, target: u64) -> Result<()> {
        let (moved, target) = (self.get(moved)?, self.get(target)?);
        match (&moved.content, &target.content) {
            (Content::Directory(_), Content::Directory(directory)) if directory.is_empty() => Ok(()),
            (Content::Directory(_), Content::Directory(_)) => Err(Errno::NOTEMPTY),
            (Content::Directory(_), _) => Err(Errno::NOTDIR),
            (_, Content::Directory(_)) => Err(Errno::ISDIR),
            _ => Ok(()),
        }
    }

    /// Returns `EINVAL` if `directory` is `ino` or below it.
    fn check_no_cycle(&self, ino: u64, directory: u64) -> Result<()> {
        let mut at = directory;
        while at != ROOT {
            if at == ino {
                return Err(Errno::INVAL);
            }
            at = self.directory(at)?.parent;
        }
        if ino == ROOT { Err(Errno::INVAL) } else { Ok(()) }
    }
}
