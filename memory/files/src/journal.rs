//! Journal of the changes of a tree, in files that outlive the process: the next process of the mount restores the
//! same tree, and repeats the replies of the last one to resent requests.
//!
//! There are two files, usually memfds that another process holds open. The one with the higher generation is valid.
//! It contains a checkpoint, followed by records in the order in which they changed the tree. When it has become long,
//! the other file is started with a new checkpoint.
//!
//! ```text
//! generation, u64 | then, repeated: length, u32 | checksum, u64 | bytes
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::Errno;

use crate::log::Log;
use crate::record::{Record, Reply, bad, checkpoint, replay, to_record};
use crate::tree::{Result, Tree};

const GENERATION_BYTES: u64 = 8;
/// Length in bytes from which on a journal is restarted, provided that it is longer than twice its checkpoint.
const LONG_BYTES: u64 = 32 << 20;

/// The journal; see the module documentation.
pub struct Journal {
    files: [File; 2],
    log: Option<Arc<Log>>,
    generation: u64,
    end: u64,
    checkpoint_bytes: u64,
    /// Replies of the last process, by the kernel's request number.
    replies: BTreeMap<u64, Reply>,
    era: u16,
    /// `true` if another mount has changed the tree since the last process held it.
    is_restarted: bool,
    is_broken: bool,
}

impl Journal {
    /// Opens the journal. Returns the tree of the last process if it wrote one.
    ///
    /// # Errors
    /// Returns an error if the files cannot be read or are damaged.
    pub fn open(files: [File; 2]) -> io::Result<(Self, Option<Tree>)> {
        Self::open_in_era(files, 0)
    }

    /// Like [`Journal::open`], in an era: the number of times that other mounts have changed the tree since this one
    /// began.
    ///
    /// # Errors
    /// Returns the errors of [`Journal::open`].
    pub fn open_in_era(files: [File; 2], era: u16) -> io::Result<(Self, Option<Tree>)> {
        let generations = [generation_of(&files[0])?, generation_of(&files[1])?];
        let mut journal = Self {
            files,
            log: None,
            generation: 0,
            end: 0,
            checkpoint_bytes: 0,
            replies: BTreeMap::new(),
            era,
            is_restarted: false,
            is_broken: false,
        };
        if generations == [0, 0] {
            return Ok((journal, None));
        }
        let mut in_turn = generations;
        in_turn.sort_unstable_by(|a, b| b.cmp(a));
        for generation in in_turn {
            journal.generation = generation;
            if let Some(tree) = journal.replay()? {
                return Ok((journal, Some(tree)));
            }
        }
        Err(bad("it has no checkpoint, or could not be written any more"))
    }

    fn file(&self) -> &File {
        &self.files[(self.generation % 2) as usize]
    }

    /// Returns `None` if the checkpoint of the current file is incomplete.
    fn replay(&mut self) -> io::Result<Option<Tree>> {
        let mut bytes = vec![0; self.file().metadata()?.len() as usize];
        self.file().read_exact_at(&mut bytes, 0)?;
        let records = bytes.get(GENERATION_BYTES as usize..).unwrap_or_default();
        let Some(replayed) = replay(records, self.generation, self.era)? else { return Ok(None) };
        self.replies = replayed.replies;
        Ok(Some(replayed.tree))
    }

    /// Restarts the journal in another era, with the tree that another mount left. The replies of the last process are
    /// discarded.
    #[must_use]
    pub fn restarted(self, era: u16) -> Self {
        Self { replies: BTreeMap::new(), era, is_restarted: true, ..self }
    }

    pub(crate) const fn era(&self) -> u16 {
        self.era
    }

    pub(crate) const fn is_restarted(&self) -> bool {
        self.is_restarted
    }

    /// Writes all further records to `log` as well.
    #[must_use]
    pub fn with_log(self, log: Arc<Log>) -> Self {
        Self { log: Some(log), ..self }
    }

    pub(crate) const fn log(&self) -> Option<&Arc<Log>> {
        self.log.as_ref()
    }

    /// Restarts the journal with a checkpoint of this tree. No plan may be in progress.
    pub(crate) fn begin(&mut self, tree: &Tree) {
        let bytes = checkpoint(tree.to_checkpoint(), self.replies.clone());
        if let Some(log) = &self.log {
            // Without replies: the kernel of another mount resends no requests of this one.
            log.begin(&checkpoint(tree.to_checkpoint(), BTreeMap::new()));
        }
        let earlier = (self.generation % 2) as usize;
        self.generation += 1;
        let record = to_record(&bytes, self.generation);
        self.checkpoint_bytes = record.len() as u64;
        self.end = GENERATION_BYTES + self.checkpoint_bytes;
        let written =
            self.file().set_len(0).and_then(|()| self.file().write_all_at(&record, GENERATION_BYTES));
        let written = written.and_then(|()| self.file().write_all_at(&self.generation.to_le_bytes(), 0));
        self.check_write(written.and_then(|()| self.files[earlier].set_len(0)));
    }

    /// Appends a record. Must be called while the tree is locked, before the effect of the change becomes visible to a
    /// client.
    pub(crate) fn add(&mut self, record: &Record<'_>) {
        // Serialising plain data into a growing vector cannot fail.
        let bytes = postcard::to_allocvec(record).unwrap_or_default();
        if let Some(log) = &self.log {
            log.append(&bytes);
        }
        let record = to_record(&bytes, self.generation);
        let at = self.end;
        self.end += record.len() as u64;
        self.check_write(self.file().write_all_at(&record, at));
    }

    pub(crate) fn is_long(&self) -> bool {
        let is_long = self.end > LONG_BYTES && self.end > 2 * self.checkpoint_bytes;
        is_long || self.log.as_ref().is_some_and(|log| log.is_long())
    }

    /// Returns the reply of the last process to this request, if it had executed it.
    pub(crate) fn earlier_reply(&self, unique: u64, body: &mut Vec<u8>) -> Option<Result<()>> {
        let reply = self.replies.get(&unique)?;
        body.extend_from_slice(&reply.body);
        Some(if reply.errno == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(reply.errno)) })
    }

    /// Handles the result of a write. An incomplete journal is useless to the next process, so a failure invalidates
    /// both files.
    fn check_write(&mut self, written: io::Result<()>) {
        if let Err(error) = written
            && !self.is_broken
        {
            self.is_broken = true;
            tracing::error!("the state with which another process could continue cannot be stored: {error}");
            if let Err(error) = self.files.iter().try_for_each(|file| file.write_all_at(&[0xFF; 8], 0)) {
                tracing::error!("and that cannot be noted: {error}");
            }
        }
    }
}

/// Returns the generation of a file; 0 if it was never written.
fn generation_of(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match file.read_at(&mut bytes, 0)? {
        8 => Ok(u64::from_le_bytes(bytes)),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use farcall_link::SplitMix64;

    use super::*;
    use crate::fuse::Request;
    use crate::fuse::requests::{create, forget, lookup, mkdir, readdirplus, release, rename, unlink};
    use crate::tree::{Caller, ROOT, Time};
    use crate::volume::{Memory, Volume};

    struct Bytes(Mutex<Vec<u8>>);

    impl Memory for Bytes {
        fn read(&self, at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
            bytes.extend_from_slice(&self.0.lock().unwrap()[at as usize..][..len_bytes]);
            Ok(())
        }

        fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
            self.0.lock().unwrap()[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }
    }

    fn memfds() -> [File; 2] {
        [(); 2].map(|()| rustix::fs::memfd_create("journal", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into())
    }

    fn again(files: &[File; 2]) -> (Journal, Option<Tree>) {
        Journal::open(files.each_ref().map(|file| file.try_clone().unwrap())).unwrap()
    }

    fn any_request(rng: &mut SplitMix64, unique: u64) -> Vec<u8> {
        let name = |rng: &mut SplitMix64| format!("name {}", rng.below(8));
        let node = ROOT + rng.below(12);
        match rng.below(9) {
            0 | 1 => create(unique, node, &name(rng)),
            2 => mkdir(unique, node, &name(rng)),
            3 => unlink(unique, node, &name(rng)),
            4 => rename(unique, (node, &name(rng)), (ROOT + rng.below(4), &name(rng))),
            5 => lookup(unique, node, &name(rng)),
            6 => readdirplus(unique, ROOT),
            7 => release(unique, node),
            _ => forget(unique, node, rng.below(3)),
        }
    }

    #[test]
    fn restores_the_tree_and_repeats_replies_in_a_new_process() {
        const BLOCKS: u64 = 64;
        let memory = Arc::new(Bytes(Mutex::new(vec![0; (BLOCKS * crate::BLOCK_BYTES) as usize])));
        for seed in 1..40 {
            println!("seed {seed}");
            let (mut rng, files) = (SplitMix64::new(seed), memfds());
            let mut tree = Tree::new(BLOCKS, Caller::default(), Time::default());
            let mut unique = 0;
            for _ in 0..6 {
                let volume = Volume::with_journal(tree, Box::new(Arc::clone(&memory)), again(&files).0);
                let mut last = None;
                for _ in 0..rng.below(120) {
                    unique += 2;
                    let (ino, offset) = (ROOT + rng.below(12), rng.below(60_000));
                    match rng.below(4) {
                        0 => {
                            volume.drop_privileges(ino, rng.below(2) == 0);
                            let _ = volume.write(ino, offset, &vec![7; rng.below(9_000) as usize]);
                        }
                        1 => drop(volume.resize(ino, offset)),
                        _ => {
                            let bytes = any_request(&mut rng, unique);
                            let (request, mut reply) = (Request::parse(&bytes).unwrap(), Vec::new());
                            let outcome = crate::fuse::handle_request(&volume, &request, &mut reply);
                            let is_noted = !request.is_lookup_of_nothing(&reply) && bytes[4] != 2;
                            last = is_noted.then_some((unique, outcome, reply)).or(last);
                        }
                    }
                }
                let (journal, found) = again(&files);
                tree = found.unwrap();
                assert!(tree.to_checkpoint() == volume.tree().to_checkpoint(), "seed {seed}: another tree");
                if let Some((unique, outcome, reply)) = last {
                    let mut again = Vec::new();
                    assert_eq!(journal.earlier_reply(unique, &mut again), Some(outcome), "seed {seed}");
                    assert!(outcome.is_err() || again == reply, "seed {seed}: another answer");
                }
            }
        }
    }

    #[test]
    fn ignores_a_torn_record() {
        let files = memfds();
        let tree = Tree::new(64, Caller::default(), Time::default());
        let (mut journal, none) = again(&files);
        assert!(none.is_none());
        journal.begin(&tree);
        let before = journal.end;
        let request = mkdir(2, ROOT, "directory");
        journal.add(&Record::Executed { now: Time::default(), request: &request });
        let after = journal.end;
        for len_bytes in before..=after {
            journal.file().set_len(len_bytes).unwrap();
            let found = again(&files).1.unwrap().lookup(ROOT, b"directory");
            assert_eq!(found.is_ok(), len_bytes == after, "{len_bytes} of {after} bytes");
            journal.file().set_len(before).unwrap();
            journal.end = before;
            journal.add(&Record::Executed { now: Time::default(), request: &request });
        }
        for file in &files {
            file.write_all_at(&[0xFF; 8], 0).unwrap();
        }
        assert!(Journal::open(files).is_err(), "one that could not be written is none");
    }
}
