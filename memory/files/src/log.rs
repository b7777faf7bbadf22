//! Log of the changes of a tree on memory nodes: a mount on another machine restores the same tree after this one has
//! failed.
//!
//! It alternates between the two halves of a volume's metadata. The half with the higher generation is valid. It
//! contains a checkpoint, followed by records in the order in which they changed the tree, as in a
//! [`Journal`](crate::Journal). When it has become long, the other half is started with a new checkpoint.
//!
//! ```text
//! magic with version, u64 | generation, u64 | then, repeated: length, u32 | checksum, u64 | bytes
//! ```

use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use farcall_memory::RemoteMemory;
use rustix::io::Errno;

use crate::memory_error::errno;
use crate::record::{bad, replay, to_record, valid_bytes};
use crate::tree::{BLOCK_BYTES, Result, Tree};

const MAGIC: u64 = u64::from_le_bytes(*b"farlog01");
const HEAD_BYTES: usize = 16;
/// Maximum delay after which a change is synced without a request.
const SYNC_PERIOD: Duration = Duration::from_secs(1);
/// Minimum and maximum length of one half in bytes; it depends on the size of the volume.
const HALF_BYTES: [u64; 2] = [1 << 20, 64 << 20];

/// Storage of a log.
pub trait LogStorage: Send + Sync {
    /// Writes to the storage. Returns when a mount on another machine is certain to read these bytes.
    ///
    /// # Errors
    /// Returns an error if the write may not have been executed.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

impl LogStorage for RemoteMemory {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Self::write_metadata(self, offset, bytes).map_err(|error| errno(offset, error))
    }
}

struct State {
    generation: u64,
    /// Offset of the next record in its half.
    end: usize,
    checkpoint_bytes: usize,
    /// Records that are not written yet.
    records: Vec<u8>,
    /// Reason why the log is no longer written.
    broken: Option<Errno>,
    /// `true` if the log is out of space and a sync was requested since: restarting it is tried again.
    is_restart_wanted: bool,
}

impl State {
    fn new(generation: u64, end: usize) -> Self {
        let (records, broken, is_restart_wanted) = (Vec::new(), None, false);
        Self { generation, end, checkpoint_bytes: end, records, broken, is_restart_wanted }
    }
}

/// The log; see the module documentation.
pub struct Log {
    storage: Arc<dyn LogStorage>,
    half_bytes: usize,
    state: Mutex<State>,
    /// Held by the thread that writes the log. Lock order: before `state`.
    writing: Mutex<()>,
    /// Notifies the background thread that there are records to write.
    has_more: SyncSender<()>,
}

impl Log {
    /// Returns the length in bytes of the metadata area of a volume of `size_bytes` bytes.
    pub fn metadata_bytes(size_bytes: u64) -> u64 {
        2 * (size_bytes / 128).clamp(HALF_BYTES[0], HALF_BYTES[1]).next_multiple_of(BLOCK_BYTES)
    }

    /// Opens a log over the metadata that an earlier mount may have left; `found` contains the copy of each node.
    /// Returns the tree that this mount had synced, if there is one.
    ///
    /// # Errors
    /// Returns an error if the metadata is damaged or no thread can be started.
    pub fn open(
        storage: Arc<dyn LogStorage>,
        size_bytes: u64,
        found: &[Vec<u8>],
    ) -> io::Result<(Arc<Self>, Option<Tree>)> {
        let half_bytes = (Self::metadata_bytes(size_bytes) / 2) as usize;
        let (generation, tree) = read_log(found, half_bytes, size_bytes / BLOCK_BYTES)?;
        let state = State::new(generation, 0);
        let (has_more, wanted) = mpsc::sync_channel(1);
        let log = Arc::new(Self {
            storage,
            half_bytes,
            state: Mutex::new(state),
            writing: Mutex::new(()),
            has_more,
        });
        let weak = Arc::downgrade(&log);
        let run = move || sync_periodically(&weak, &wanted);
        std::thread::Builder::new().name("mount-log".into()).spawn(run)?;
        Ok((log, tree))
    }

    /// Returns the tree that an earlier mount left, without opening a log for changes.
    ///
    /// # Errors
    /// Returns an error if the metadata is damaged.
    pub fn read(size_bytes: u64, found: &[Vec<u8>]) -> io::Result<Option<Tree>> {
        let half_bytes = (Self::metadata_bytes(size_bytes) / 2) as usize;
        Ok(read_log(found, half_bytes, size_bytes / BLOCK_BYTES)?.1)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record. The next [`Log::sync`] writes it.
    pub(crate) fn append(&self, record: &[u8]) {
        let mut state = self.state();
        if state.records.is_empty() {
            // A full channel already contains a notification.
            let _ = self.has_more.try_send(());
        }
        if state.broken.is_none() {
            let generation = state.generation;
            state.records.extend_from_slice(&to_record(record, generation));
        }
    }

    /// Writes all appended records.
    ///
    /// # Errors
    /// Returns an error if they cannot be written. After `ENOSPC` the log stays unusable until it is restarted with a
    /// smaller tree, after other errors for good.
    pub fn sync(&self) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, records) = {
            let mut state = self.state();
            if let Some(errno) = state.broken {
                state.is_restart_wanted = errno == Errno::NOSPC;
                return Err(errno);
            }
            let records = std::mem::take(&mut state.records);
            let at = state.end;
            state.end += records.len();
            (self.half(state.generation) + at as u64, records)
        };
        if records.is_empty() {
            return Ok(());
        }
        let fits = self.state().end <= self.half_bytes;
        let written = if fits { self.storage.write(at, &records) } else { Err(Errno::NOSPC) };
        written.inspect_err(|errno| self.stop(*errno))
    }

    /// Restarts the log with a checkpoint. No record may be appended concurrently.
    pub(crate) fn begin(&self, checkpoint: &[u8]) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.state().generation + 1;
        let record = to_record(checkpoint, generation);
        let end = HEAD_BYTES + record.len();
        if end > self.half_bytes / 8 * 7 {
            return self.stop(Errno::NOSPC);
        }
        let (at, head) = (self.half(generation), [MAGIC, generation].map(u64::to_le_bytes));
        // The other half stays valid until the header of this one is written.
        let written = self.storage.write(at + HEAD_BYTES as u64, &record);
        match written.and_then(|()| self.storage.write(at, head.as_flattened())) {
            Ok(()) => *self.state() = State::new(generation, end),
            Err(errno) => self.stop(errno),
        }
    }

    /// Returns whether the log should be restarted.
    pub(crate) fn is_long(&self) -> bool {
        let state = self.state();
        let len_bytes = state.end + state.records.len();
        match state.broken {
            None => len_bytes > (state.checkpoint_bytes + self.half_bytes) / 2,
            Some(_) => state.is_restart_wanted,
        }
    }

    const fn half(&self, generation: u64) -> u64 {
        generation % 2 * self.half_bytes as u64
    }

    fn stop(&self, errno: Errno) {
        let mut state = self.state();
        // Logged only once, because restarting may be tried every second.
        if state.broken.is_none() {
            tracing::error!(
                "the state with which another mount could continue is not stored any more: {errno}"
            );
        }
        (state.broken, state.is_restart_wanted) = (Some(errno), false);
        state.records = Vec::new();
    }
}

/// Syncs records for which no sync is requested, until the log is dropped.
fn sync_periodically(log: &Weak<Log>, wanted: &Receiver<()>) {
    while wanted.recv().is_ok() {
        std::thread::sleep(SYNC_PERIOD);
        // A later requested sync returns the error.
        let _ = log.upgrade().map(|log| log.sync());
    }
}

/// Returns the generation of a log and the tree that it contains, without unlinked files: no process has them open any
/// more. Of the copies of several nodes, the one with the most valid records is used, because synced records are in
/// all copies.
///
/// # Errors
/// Returns an error if all copies are damaged.
fn read_log(metadata: &[Vec<u8>], half_bytes: usize, blocks: u64) -> io::Result<(u64, Option<Tree>)> {
    let halves =
        metadata.iter().flat_map(|metadata| metadata.chunks(half_bytes).take(2)).filter_map(read_head);
    let valid = |(generation, records)| (generation, valid_bytes(records, generation), records);
    let Some((generation, _, records)) = halves
        .map(valid)
        .filter(|(_, valid, _)| *valid > 0)
        .max_by_key(|(generation, valid, _)| (*generation, *valid))
    else {
        let is_new = metadata.iter().flatten().all(|byte| *byte == 0);
        return if is_new { Ok((0, None)) } else { Err(bad("no node has a log with a checkpoint")) };
    };
    let Some(tree) = replay(records, generation, 0)? else { return Ok((generation, None)) };
    let tree = Tree::from_image(&tree.tree.to_image(), blocks);
    Ok((generation, Some(tree.map_err(|error| bad(&error.to_string()))?)))
}

fn read_head(half: &[u8]) -> Option<(u64, &[u8])> {
    let (head, records) = half.split_first_chunk::<HEAD_BYTES>()?;
    let [magic, generation] =
        [0, 8].map(|at| u64::from_le_bytes(*head[at..].first_chunk().unwrap_or(&[0; 8])));
    (magic == MAGIC && generation > 0).then_some((generation, records))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use farcall_link::SplitMix64;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::fuse::Request;
    use crate::fuse::requests::{create, forget, lookup, mkdir, release, rename, unlink};
    use crate::journal::Journal;
    use crate::record::Record;
    use crate::tree::{Attributes, Caller, DIRECTORY, KIND_BITS, ROOT, Time};
    use crate::volume::{Memory, Volume};

    const BLOCKS: u64 = 64;
    const SIZE_BYTES: u64 = BLOCKS * BLOCK_BYTES;

    /// State that outlives a machine: blocks and metadata.
    struct Nodes {
        bytes: Mutex<Vec<u8>>,
        metadata: Mutex<Vec<u8>>,
    }

    impl Nodes {
        fn new() -> Arc<Self> {
            let bytes = Mutex::new(vec![0; SIZE_BYTES as usize]);
            Arc::new(Self { bytes, metadata: Mutex::new(vec![0; Log::metadata_bytes(SIZE_BYTES) as usize]) })
        }

        fn open(self: &Arc<Self>) -> (Arc<Log>, Option<Tree>) {
            let found = self.metadata.lock().unwrap().clone();
            Log::open(Arc::clone(self) as _, SIZE_BYTES, &[found]).unwrap()
        }

        fn put(&self, offset: usize, bytes: &[u8]) {
            self.metadata.lock().unwrap()[offset..][..bytes.len()].copy_from_slice(bytes);
        }

        /// Mounts the volume on another machine.
        fn mount(self: &Arc<Self>) -> Volume {
            let (log, tree) = self.open();
            let memfd = || memfd_create("journal", MemfdFlags::CLOEXEC).unwrap().into();
            let (journal, _) = Journal::open([memfd(), memfd()]).unwrap();
            let tree = tree.unwrap_or_else(|| Tree::new(BLOCKS, Caller::default(), Time::default()));
            Volume::with_journal(tree, Box::new(Arc::clone(self)), journal.with_log(log))
        }
    }

    impl Memory for Nodes {
        fn read(&self, at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
            bytes.extend_from_slice(&self.bytes.lock().unwrap()[at as usize..][..len_bytes]);
            Ok(())
        }

        fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
            self.bytes.lock().unwrap()[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }
    }

    impl LogStorage for Nodes {
        fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.put(offset as usize, bytes);
            Ok(())
        }
    }

    fn any_request(rng: &mut SplitMix64, unique: u64) -> Vec<u8> {
        let name = |rng: &mut SplitMix64| format!("name {}", rng.below(8));
        let node = ROOT + rng.below(12);
        match rng.below(9) {
            0..3 => create(unique, ROOT, &name(rng)),
            3 => mkdir(unique, ROOT, &name(rng)),
            4 => unlink(unique, ROOT, &name(rng)),
            5 => rename(unique, (ROOT, &name(rng)), (ROOT + rng.below(4), &name(rng))),
            6 => lookup(unique, node, &name(rng)),
            7 => release(unique, node),
            _ => forget(unique, node, rng.below(3)),
        }
    }

    /// Returns all named inodes: path, inode number, length, mode and link count.
    fn shape(volume: &Volume) -> Vec<(String, u64, u64, u32, u32)> {
        let (tree, mut shape, mut next) = (volume.tree(), Vec::new(), vec![(String::new(), ROOT)]);
        while let Some((path, ino)) = next.pop() {
            let Attributes { size, mode, nlink, .. } = tree.attributes(ino).unwrap();
            // The size of a directory is not significant.
            let size = if mode & KIND_BITS == DIRECTORY { 0 } else { size };
            for line in tree.entries(ino, 0).into_iter().flatten().skip(2) {
                next.push((format!("{path}/{}", String::from_utf8_lossy(line.name)), line.ino));
            }
            shape.push((path, ino, size, mode, nlink));
        }
        shape.sort_unstable();
        shape
    }

    /// Contents of files at a moment, by inode number.
    type Contents = BTreeMap<u64, Vec<u8>>;

    fn contents(volume: &Volume) -> Contents {
        let file = |ino| {
            let len_bytes = volume.tree().attributes(ino).ok()?.size as usize;
            let mut bytes = Vec::new();
            volume.read(ino, 0, len_bytes, &mut bytes).ok()?;
            Some((ino, bytes))
        };
        (ROOT..ROOT + 60).filter_map(file).collect()
    }

    /// Checks that each byte of each file was at its offset at one of these moments.
    fn check(found: &Contents, moments: &[Contents]) {
        for (ino, bytes) in found {
            for (at, byte) in bytes.iter().enumerate() {
                let mut had = moments.iter().filter_map(|moment| moment.get(ino)?.get(at));
                assert!(had.any(|had| had == byte), "file {ino} has {byte} at {at}");
            }
        }
    }

    #[test]
    fn restores_a_tree_since_the_last_sync_on_the_next_mount() {
        for seed in 1..60 {
            println!("seed {seed}");
            let (nodes, mut rng) = (Nodes::new(), SplitMix64::new(seed));
            let mut unique = 0;
            let mut last: Option<(Vec<_>, Vec<Contents>)> = None;
            for _ in 0..6 {
                let volume = nodes.mount();
                if let Some((trees, moments)) = last {
                    assert!(trees.contains(&shape(&volume)), "seed {seed}: a tree that never was");
                    check(&contents(&volume), &moments);
                }
                let (mut trees, mut moments) = (vec![shape(&volume)], vec![contents(&volume)]);
                for _ in 0..rng.below(120) {
                    unique += 2;
                    let (ino, offset) = (ROOT + rng.below(20), rng.below(30_000));
                    match rng.below(6) {
                        0 | 1 => {
                            let bytes = vec![rng.next_u64() as u8; 1 + rng.below(9_000) as usize];
                            let _ = volume.write(ino, offset, &bytes);
                        }
                        2 => {
                            let size = volume.tree().attributes(ino).map_or(0, |attributes| attributes.size);
                            let mut more = Vec::new();
                            if volume.resize(ino, offset).is_ok() && offset > size {
                                volume.read(ino, size, (offset - size) as usize, &mut more).unwrap();
                            }
                            assert!(more.iter().all(|byte| *byte == 0), "seed {seed}: garbage behind an end");
                        }
                        3 => {
                            volume.sync().unwrap();
                            (trees, moments) = (Vec::new(), Vec::new());
                        }
                        _ => {
                            let bytes = any_request(&mut rng, unique);
                            let (request, mut reply) = (Request::parse(&bytes).unwrap(), Vec::new());
                            let _ = crate::fuse::handle_request(&volume, &request, &mut reply);
                        }
                    }
                    trees.push(shape(&volume));
                    moments.push(contents(&volume));
                }
                last = Some((trees, moments));
            }
        }
    }

    #[test]
    fn ignores_a_torn_record_and_an_unfinished_log_half() {
        let nodes = Nodes::new();
        let (log, none) = nodes.open();
        assert!(none.is_none());
        let tree = Tree::new(BLOCKS, Caller::default(), Time::default());
        let memfd = || memfd_create("journal", MemfdFlags::CLOEXEC).unwrap().into();
        let mut journal = Journal::open([memfd(), memfd()]).unwrap().0.with_log(Arc::clone(&log));
        journal.begin(&tree);
        let before = nodes.metadata.lock().unwrap().clone();
        let request = mkdir(2, ROOT, "directory");
        journal.add(&Record::Executed { now: Time::default(), request: &request });
        let is_there = || nodes.open().1.unwrap().lookup(ROOT, b"directory").is_ok();
        assert!(!is_there(), "it was not synced");
        log.sync().unwrap();
        let after = nodes.metadata.lock().unwrap().clone();
        let changed = (0..after.len()).filter(|at| before[*at] != after[*at]).collect::<Vec<_>>();
        for upto in changed[0]..=changed[changed.len() - 1] {
            nodes.put(0, &after);
            nodes.put(upto, &before[upto..]);
            assert!(!is_there(), "torn at {upto}");
        }
        nodes.put(0, &after);
        assert!(is_there());
        // The other half is not valid before its header is written, whatever it contains.
        journal.begin(&Tree::new(BLOCKS, Caller::default(), Time::default()));
        assert!(!is_there());
        let half = Log::metadata_bytes(SIZE_BYTES) as usize / 2;
        let heads = [0, half].map(|at| nodes.metadata.lock().unwrap()[at + 8]);
        let newest = if heads[0] > heads[1] { 0 } else { half };
        nodes.put(newest, &[0; 16]);
        assert!(is_there());
        nodes.put(half - newest, &[0; 16]);
        let found = nodes.metadata.lock().unwrap().clone();
        assert!(Log::open(Arc::clone(&nodes) as _, SIZE_BYTES, &[found]).is_err(), "it is not new");
    }

    #[test]
    fn restarts_a_full_log_and_reports_one_without_space() {
        let nodes = Nodes::new();
        let volume = nodes.mount();
        for unique in 0..60_000 {
            let bytes = create(2 * unique, ROOT, &format!("name {}", unique % 5));
            let (request, mut reply) = (Request::parse(&bytes).unwrap(), Vec::new());
            drop(volume.reply_guard());
            let _ = crate::fuse::handle_request(&volume, &request, &mut reply);
            volume.sync().unwrap();
        }
        let (log, tree) = nodes.open();
        assert!(log.state().generation > 1, "it began anew");
        assert!(tree.unwrap().lookup(ROOT, b"name 4").is_ok());
        log.begin(&vec![1; Log::metadata_bytes(SIZE_BYTES) as usize / 2]);
        assert_eq!(log.sync(), Err(Errno::NOSPC));
        assert!(nodes.open().1.is_some(), "what was synced is there");
    }

    #[test]
    fn resumes_a_full_log_after_the_tree_shrinks() {
        let nodes = Nodes::new();
        let volume = nodes.mount();
        let mut unique = 0;
        let mut make = |name: &str| {
            unique += 2;
            let bytes = mkdir(unique, ROOT, name);
            drop(volume.reply_guard());
            crate::fuse::handle_request(&volume, &Request::parse(&bytes).unwrap(), &mut Vec::new()).unwrap();
        };
        make("before");
        volume.sync().unwrap();
        // Simulates a tree that has become too large.
        volume.log().unwrap().begin(&vec![1; Log::metadata_bytes(SIZE_BYTES) as usize / 2]);
        make("meanwhile");
        let is_there = |name: &str| nodes.open().1.unwrap().lookup(ROOT, name.as_bytes()).is_ok();
        assert!(is_there("before") && !is_there("meanwhile"), "nobody wanted to sync");
        assert_eq!(volume.sync(), Err(Errno::NOSPC));
        make("after");
        volume.sync().unwrap();
        assert!(["before", "meanwhile", "after"].iter().all(|name| is_there(name)));
    }

    #[test]
    fn syncs_changes_without_a_request() {
        let nodes = Nodes::new();
        let volume = nodes.mount();
        let bytes = create(2, ROOT, "name");
        let (request, mut reply) = (Request::parse(&bytes).unwrap(), Vec::new());
        crate::fuse::handle_request(&volume, &request, &mut reply).unwrap();
        // Without a deadline: the test harness ends a test that hangs.
        while nodes.open().1.unwrap().lookup(ROOT, b"name").is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn rejects_damage_without_a_valid_copy() {
        let nodes = Nodes::new();
        drop(nodes.mount());
        let metadata = nodes.metadata.lock().unwrap().clone();
        let at = metadata.iter().rposition(|byte| *byte != 0).unwrap();
        nodes.put(at, &[metadata[at] ^ 1]);
        let found = nodes.metadata.lock().unwrap().clone();
        let open = |found: &[Vec<u8>]| Log::open(Arc::clone(&nodes) as _, SIZE_BYTES, found);
        assert!(open(std::slice::from_ref(&found)).is_err());
        // The copy of another node is complete.
        let (_, tree) = open(&[found, metadata]).unwrap();
        assert!(tree.unwrap().attributes(ROOT).is_ok());
    }
}
