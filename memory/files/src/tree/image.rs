//! Serialisation of a tree, for snapshots and checkpoints. Snapshots are untrusted input: inconsistent ones are
//! rejected.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::blocks::FreeBlocks;
use super::inode::{Content, Inode};
use super::{Blocks, DIRECTORY, FILE_BYTES_MAX, KIND_BITS, NAME_BYTES_MAX, REGULAR, ROOT, SYMLINK, Tree};

/// Version of the format.
const VERSION: u16 = 1;

/// Error of decoding a tree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a file system's metadata: {0}")]
pub struct BadImage(String);

/// A serialised tree.
#[derive(Debug, Serialize, Deserialize)]
struct Image {
    version: u16,
    next_ino: u64,
    inodes: Vec<(u64, Inode)>,
}

/// A serialised tree for the next process, including the kernel's references.
#[derive(Serialize, Deserialize)]
struct Checkpoint {
    next_ino: u64,
    blocks: u64,
    cursor: u64,
    /// Number, inode, lookup count and number of open handles.
    inodes: Vec<(u64, Inode, u64, u64)>,
}

impl Tree {
    /// Serialises the complete tree for [`Tree::from_checkpoint`]. No plan may be in progress.
    pub(crate) fn to_checkpoint(&self) -> Vec<u8> {
        let inodes = self.inodes.iter();
        let inodes = inodes.map(|(ino, inode)| (*ino, inode.clone(), inode.lookups, inode.opens)).collect();
        let (next_ino, blocks, cursor) = (self.next_ino, self.blocks, self.free.cursor());
        // Serialising plain data into a growing vector cannot fail.
        postcard::to_allocvec(&Checkpoint { next_ino, blocks, cursor, inodes }).unwrap_or_default()
    }

    /// Restores a checkpoint. The caller has verified its checksum.
    ///
    /// # Errors
    /// Returns an error if the bytes are no checkpoint of this build.
    pub(crate) fn from_checkpoint(bytes: &[u8]) -> Result<Self, BadImage> {
        let Checkpoint { next_ino, blocks, cursor, inodes } =
            postcard::from_bytes(bytes).map_err(|error| bad(&error))?;
        let mut tree = Self { inodes: BTreeMap::new(), next_ino, free: FreeBlocks::new(blocks), blocks };
        for (ino, mut inode, lookups, opens) in inodes {
            (inode.lookups, inode.opens) = (lookups, opens);
            inode.renumber_if_exhausted();
            tree.check_content(&inode).map_err(|why| bad(&format!("inode {ino}: {why}")))?;
            tree.inodes.insert(ino, inode);
        }
        tree.free.set_cursor(cursor);
        Ok(tree)
    }

    /// Serialises the tree without unlinked inodes.
    pub fn to_image(&self) -> Vec<u8> {
        let named = self.inodes.iter().filter(|(_, inode)| inode.links > 0);
        let inodes = named.map(|(ino, inode)| (*ino, inode.clone())).collect();
        // Serialising plain data into a growing vector cannot fail.
        postcard::to_allocvec(&Image { version: VERSION, next_ino: self.next_ino, inodes })
            .unwrap_or_default()
    }

    /// Returns the stored blocks of all files in ascending order.
    pub fn stored_blocks(&self) -> Vec<Blocks> {
        let files =
            self.inodes.values().filter(|inode| inode.links > 0).filter_map(|inode| match &inode.content {
                Content::Bytes(file) => Some(file),
                _ => None,
            });
        let runs = files.flat_map(|file| file.extents.runs()).filter(|(_, run)| run.is_stored);
        let mut blocks: Vec<Blocks> = runs.map(|(_, run)| run.blocks).collect();
        blocks.sort_unstable_by_key(|blocks| blocks.start);
        blocks
    }

    /// Decodes a tree over `blocks` blocks.
    ///
    /// # Errors
    /// Returns an error if the bytes are no valid tree, or if its files use other blocks.
    pub fn from_image(bytes: &[u8], blocks: u64) -> Result<Self, BadImage> {
        let image: Image = postcard::from_bytes(bytes).map_err(|error| bad(&error))?;
        if image.version != VERSION {
            return Err(bad(&format!("version {}; this build knows {VERSION}", image.version)));
        }
        let mut tree =
            Self { inodes: BTreeMap::new(), next_ino: image.next_ino, free: FreeBlocks::new(blocks), blocks };
        for (ino, mut inode) in image.inodes {
            inode.renumber_if_exhausted();
            if ino == 0 || ino >= image.next_ino || tree.inodes.insert(ino, inode).is_some() {
                return Err(bad(&format!("inode {ino}")));
            }
        }
        tree.check_names()?;
        let inodes = std::mem::take(&mut tree.inodes);
        for (ino, inode) in &inodes {
            tree.check_content(inode).map_err(|why| bad(&format!("inode {ino}: {why}")))?;
        }
        tree.inodes = inodes;
        Ok(tree)
    }

    /// Checks that every name refers to an inode, every inode has the correct link count, and the directories form a
    /// tree.
    fn check_names(&self) -> Result<(), BadImage> {
        let mut links: HashMap<u64, u32> = HashMap::from([(ROOT, 2)]);
        let mut seen = BTreeSet::from([ROOT]);
        let mut next = vec![ROOT];
        while let Some(at) = next.pop() {
            let directory = self.directory(at).map_err(|_| bad(&format!("directory {at}")))?;
            directory.check().map_err(|why| bad(&format!("directory {at}: {why}")))?;
            for (name, ino) in directory.names() {
                let inode = self.get(ino).map_err(|_| bad(&format!("directory {at} names inode {ino}")))?;
                let is_name =
                    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name != b"." && name != b"..";
                if !is_name || name.contains(&b'/') || name.contains(&0) {
                    return Err(bad(&format!("directory {at} has an impossible name")));
                }
                *links.entry(ino).or_default() += 1;
                if let Content::Directory(below) = &inode.content {
                    if !seen.insert(ino) || below.parent != at {
                        return Err(bad(&format!("directory {ino} has two parents")));
                    }
                    *links.entry(ino).or_default() += 1;
                    *links.entry(at).or_default() += 1;
                    next.push(ino);
                }
            }
        }
        if self.directory(ROOT).map(|root| root.parent) != Ok(ROOT) {
            return Err(bad(&"the root is below another directory"));
        }
        match self.inodes.iter().find(|(ino, inode)| links.get(ino) != Some(&inode.links)) {
            Some((ino, _)) => Err(bad(&format!("inode {ino} has another number of names"))),
            None => Ok(()),
        }
    }

    /// Checks that the content matches the mode, and allocates its blocks, which no other file may use.
    fn check_content(&mut self, inode: &Inode) -> Result<(), &'static str> {
        let kind = inode.mode & KIND_BITS;
        let is_kind = match &inode.content {
            Content::Bytes(_) => kind == REGULAR,
            Content::Directory(_) => kind == DIRECTORY,
            Content::Symlink(_) => kind == SYMLINK,
            Content::Special => ![REGULAR, DIRECTORY, SYMLINK].contains(&kind),
        };
        if !is_kind || inode.mode > 0o177_777 {
            return Err("its mode is of another kind");
        }
        let Content::Bytes(file) = &inode.content else { return Ok(()) };
        let mut end = 0;
        let mut count = 0_u64;
        for (at, run) in file.extents.runs() {
            let run_end = at.checked_add(run.blocks.len);
            end = match run_end
                .filter(|run_end| at >= end && *run_end <= FILE_BYTES_MAX / super::BLOCK_BYTES + 1)
            {
                Some(run_end) => run_end,
                None => return Err("its runs overlap"),
            };
            let is_behind = end > file.len_bytes.div_ceil(super::BLOCK_BYTES);
            if run.is_stored && is_behind {
                return Err("it has bytes behind its end");
            }
            if !self.free.allocate_exactly(run.blocks) {
                return Err("its blocks are of another file, or there are none");
            }
            count += run.blocks.len;
        }
        if file.len_bytes > FILE_BYTES_MAX || count != file.extents.count() {
            return Err("its length is impossible");
        }
        Ok(())
    }
}

fn bad(why: &impl ToString) -> BadImage {
    BadImage(why.to_string())
}
