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

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use std::sync::Arc;

use rapidhash::v3::rapidhash_v3;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::fuse::{Request, execute};
use crate::log::Log;
use crate::tree::{Allocate, BadImage, Result, Time, Tree, WritePlan};

const GENERATION_BYTES: u64 = 8;
const HEAD_BYTES: usize = 12;
/// Length in bytes from which on a journal is restarted, provided that it is longer than twice its checkpoint.
const LONG_BYTES: u64 = 32 << 20;
/// Maximum total size in bytes of retained replies, the newest ones. They may not have reached the kernel.
const REPLIES_BYTES_MAX: usize = 4 << 20;

/// A requested change of a file's data.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum PendingChange {
    Write { ino: u64, offset: u64, len_bytes: usize },
    Resize { ino: u64, len_bytes: u64 },
    Allocate { ino: u64, offset: u64, len_bytes: u64, how: Allocate, keep_size: bool },
}

impl PendingChange {
    pub const fn ino(&self) -> u64 {
        match *self {
            Self::Write { ino, .. } | Self::Resize { ino, .. } | Self::Allocate { ino, .. } => ino,
        }
    }

    pub fn plan(self, tree: &mut Tree) -> Result<WritePlan> {
        match self {
            Self::Write { ino, offset, len_bytes } => tree.plan_write(ino, offset, len_bytes),
            Self::Resize { ino, len_bytes } => tree.plan_resize(ino, len_bytes),
            Self::Allocate { ino, offset, len_bytes, how, keep_size } => {
                tree.plan_allocate(ino, offset, len_bytes, how, keep_size)
            }
        }
    }
}

/// A change of the tree.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Record<'a> {
    /// A request of the kernel that was executed on the tree alone.
    Executed {
        now: Time,
        request: &'a [u8],
    },
    Accessed {
        ino: u64,
        now: Time,
    },
    Forgotten {
        ino: u64,
        lookups: u64,
    },
    /// Stores were planned and are in progress.
    Planned {
        number: u64,
        change: PendingChange,
    },
    Finished {
        number: u64,
        is_stored: bool,
        now: Time,
    },
    /// A write removed privileges of a file.
    PrivilegesDropped {
        ino: u64,
        set_ids: bool,
        now: Time,
    },
}

/// A reply: error number (0 for success) and body.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reply {
    errno: i32,
    body: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    tree: Vec<u8>,
    replies: BTreeMap<u64, Reply>,
}

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

/// Result of a replay.
pub(crate) struct Replayed {
    pub tree: Tree,
    replies: BTreeMap<u64, Reply>,
}

/// Replays a checkpoint and the records after it. Returns `None` if there is no complete checkpoint. Replies are
/// encoded in era `era`.
pub(crate) fn replay(records: &[u8], generation: u64, era: u16) -> io::Result<Option<Replayed>> {
    let mut rest = records;
    let Some(first) = next_record(&mut rest, generation) else { return Ok(None) };
    let checkpoint: Checkpoint = postcard::from_bytes(first).map_err(|error| bad(&error.to_string()))?;
    let mut tree =
        Tree::from_checkpoint(&checkpoint.tree).map_err(|error: BadImage| bad(&error.to_string()))?;
    let mut replay = Replay { plans: HashMap::new(), replies: VecDeque::new(), replies_bytes: 0, era };
    for (unique, reply) in checkpoint.replies {
        replay.retain_reply(unique, reply);
    }
    // An incomplete record at the end was being written when the process exited. Its effect had not become visible.
    while let Some(record) = next_record(&mut rest, generation) {
        let record = postcard::from_bytes(record).map_err(|error| bad(&error.to_string()))?;
        replay.run(&mut tree, record);
    }
    replay.abort_plans(&mut tree);
    let replies = replay.replies.into_iter().collect();
    Ok(Some(Replayed { tree, replies }))
}

/// Returns the length in bytes of the valid records at the beginning.
pub(crate) fn valid_bytes(records: &[u8], generation: u64) -> usize {
    let (mut rest, mut left) = (records, records.len());
    while next_record(&mut rest, generation).is_some() {
        left = rest.len();
    }
    records.len() - left
}

fn checkpoint(tree: Vec<u8>, replies: BTreeMap<u64, Reply>) -> Vec<u8> {
    // Serialising plain data into a growing vector cannot fail.
    postcard::to_allocvec(&Checkpoint { tree, replies }).unwrap_or_default()
}

struct Replay {
    plans: HashMap<u64, WritePlan>,
    replies: VecDeque<(u64, Reply)>,
    replies_bytes: usize,
    era: u16,
}

impl Replay {
    fn run(&mut self, tree: &mut Tree, record: Record<'_>) {
        match record {
            Record::Executed { now, request } => {
                let Some(request) = Request::parse(request).map(|request| request.in_era(self.era)) else {
                    return;
                };
                let mut body = Vec::new();
                let errno = execute(tree, &request, now, &mut body).err().map_or(0, Errno::raw_os_error);
                self.retain_reply(request.number(), Reply { errno, body });
            }
            Record::Accessed { ino, now } => {
                tree.accessed(ino, now);
            }
            Record::Forgotten { ino, lookups } => tree.forget(ino, lookups),
            Record::PrivilegesDropped { ino, set_ids, now } => {
                tree.drop_privileges(ino, set_ids, now);
            }
            Record::Planned { number, change } => {
                // A plan that fails here failed in the original execution, too, and may still have changed the tree.
                if let Ok(plan) = change.plan(tree) {
                    self.plans.insert(number, plan);
                }
            }
            Record::Finished { number, is_stored, now } => {
                if let Some(plan) = self.plans.remove(&number) {
                    // A failure here also occurred in the original execution.
                    let _ = tree.finish_write(plan, is_stored, now);
                }
            }
        }
    }

    fn retain_reply(&mut self, unique: u64, reply: Reply) {
        self.replies_bytes += reply.body.len() + size_of::<(u64, Reply)>();
        self.replies.push_back((unique, reply));
        while self.replies_bytes > REPLIES_BYTES_MAX
            && let Some((_, oldest)) = self.replies.pop_front()
        {
            self.replies_bytes -= oldest.body.len() + size_of::<(u64, Reply)>();
        }
    }

    /// Ends the plans that were in progress, as failures. The kernel resends their requests.
    fn abort_plans(&mut self, tree: &mut Tree) {
        let mut plans: Vec<_> = self.plans.drain().collect();
        plans.sort_unstable_by_key(|(number, _)| *number);
        // `finish_write` fails for a file that no longer exists, which is harmless.
        for (_, plan) in plans {
            let _ = tree.finish_write(plan, false, Time::default());
        }
    }
}

pub(crate) fn to_record(bytes: &[u8], generation: u64) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD_BYTES + bytes.len());
    record.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    record.extend_from_slice(&(rapidhash_v3(bytes) ^ generation).to_le_bytes());
    record.extend_from_slice(bytes);
    record
}

fn next_record<'a>(rest: &mut &'a [u8], generation: u64) -> Option<&'a [u8]> {
    let (len_bytes, after) = rest.split_first_chunk::<4>()?;
    let (sum, after) = after.split_first_chunk::<8>()?;
    let (bytes, after) = after.split_at_checked(u32::from_le_bytes(*len_bytes) as usize)?;
    let is_whole = !bytes.is_empty() && rapidhash_v3(bytes) ^ generation == u64::from_le_bytes(*sum);
    *rest = after;
    is_whole.then_some(bytes)
}

/// Returns the generation of a file; 0 if it was never written.
fn generation_of(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match file.read_at(&mut bytes, 0)? {
        8 => Ok(u64::from_le_bytes(bytes)),
        _ => Ok(0),
    }
}

pub(crate) fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use farcall_link::SplitMix64;

    use super::*;
    use crate::fuse::requests::{create, forget, lookup, mkdir, readdirplus, release, rename, unlink};
    use crate::tree::{Caller, ROOT};
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
