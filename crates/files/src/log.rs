//! What happened to a tree, as memory nodes have it: so that a mount on another machine has the same tree when this one
//! is gone.
//!
//! Two halves of the notes of a volume, in turn. What is in the one with the higher generation counts: a checkpoint,
//! then records in the order in which they changed the tree, as in a [`Journal`](crate::Journal). When it has grown long
//! the other half begins anew.
//!
//! ```text
//! magic with version, u64 | generation, u64 | then, again and again: length, u32 | checksum, u64 | bytes
//! ```

use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use farcall_memory::RemoteMemory;
use rustix::io::Errno;

use crate::journal::{bad, replay, to_record};
use crate::tree::{BLOCK_BYTES, Result, Tree};
use crate::volume::errno;

const MAGIC: u64 = u64::from_le_bytes(*b"farlog01");
const HEAD_BYTES: usize = 16;
/// What nobody asks to be synced is synced all the same, so long after it has happened.
const SYNC_PERIOD: Duration = Duration::from_secs(1);
/// Room for one half, by the size of the volume: from the smallest to the largest.
const HALF_BYTES: [u64; 2] = [1 << 20, 64 << 20];

/// Where a log is kept.
pub trait Notes: Send + Sync {
    /// Writes: done when a mount on another machine would read it.
    ///
    /// # Errors
    /// If it may not have been done.
    fn note(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

impl Notes for RemoteMemory {
    fn note(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Self::note(self, offset, bytes).map_err(|error| errno(offset, error))
    }
}

struct State {
    generation: u64,
    /// Where the next record goes, in its half.
    end: usize,
    checkpoint_bytes: usize,
    /// What is not noted yet.
    records: Vec<u8>,
    /// Why no more is noted.
    broken: Option<Errno>,
}

/// See above.
pub struct Log {
    notes: Arc<dyn Notes>,
    half_bytes: usize,
    state: Mutex<State>,
    /// Held by who notes; taken before the state.
    turn: Mutex<()>,
    /// There is something to be noted.
    has_more: SyncSender<()>,
}

impl Log {
    /// Bytes of notes for a volume of so many bytes.
    pub fn notes_bytes(size_bytes: u64) -> u64 {
        2 * (size_bytes / 128).clamp(HALF_BYTES[0], HALF_BYTES[1]).next_multiple_of(BLOCK_BYTES)
    }

    /// A log over notes that an earlier mount may have left, and the tree that it had: all that it had synced.
    ///
    /// # Errors
    /// If what is there is damaged, or there are no threads.
    pub fn open(notes: Arc<dyn Notes>, size_bytes: u64, found: Option<&[u8]>) -> io::Result<(Arc<Self>, Option<Tree>)> {
        let half_bytes = (Self::notes_bytes(size_bytes) / 2) as usize;
        let (generation, tree) = match found {
            Some(found) => read_log(found, half_bytes, size_bytes / BLOCK_BYTES)?,
            None => (0, None),
        };
        let state = State { generation, end: 0, checkpoint_bytes: 0, records: Vec::new(), broken: None };
        let (has_more, wanted) = mpsc::sync_channel(1);
        let log =
            Arc::new(Self { notes, half_bytes, state: Mutex::new(state), turn: Mutex::new(()), has_more });
        let weak = Arc::downgrade(&log);
        let run = move || sync_now_and_then(&weak, &wanted);
        std::thread::Builder::new().name("mount-log".into()).spawn(run)?;
        Ok((log, tree))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a panic left is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what has happened. It is noted by the next [`Log::sync`].
    pub(crate) fn append(&self, record: &[u8]) {
        let mut state = self.state();
        if state.records.is_empty() {
            // One wish is enough.
            let _ = self.has_more.try_send(());
        }
        if state.broken.is_none() {
            let generation = state.generation;
            state.records.extend_from_slice(&to_record(record, generation));
        }
    }

    /// All that was added is noted.
    ///
    /// # Errors
    /// If it is not, and nothing will be any more.
    pub fn sync(&self) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, records) = {
            let mut state = self.state();
            if let Some(errno) = state.broken {
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
        let noted = if fits { self.notes.note(at, &records) } else { Err(Errno::NOSPC) };
        noted.inspect_err(|errno| self.break_off(*errno))
    }

    /// Begins anew with a checkpoint. Nothing is added meanwhile.
    pub(crate) fn begin(&self, checkpoint: &[u8]) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.state().generation + 1;
        let record = to_record(checkpoint, generation);
        let end = HEAD_BYTES + record.len();
        if end > self.half_bytes / 8 * 7 {
            return self.break_off(Errno::NOSPC);
        }
        let (at, head) = (self.half(generation), [MAGIC, generation].map(u64::to_le_bytes));
        // Until its head is there the other half counts.
        let noted = self.notes.note(at + HEAD_BYTES as u64, &record);
        match noted.and_then(|()| self.notes.note(at, head.as_flattened())) {
            Ok(()) => {
                let (checkpoint_bytes, records) = (end, Vec::new());
                *self.state() = State { generation, end, checkpoint_bytes, records, broken: None };
            }
            Err(errno) => self.break_off(errno),
        }
    }

    /// Whether it is time to begin anew.
    pub(crate) fn is_long(&self) -> bool {
        let state = self.state();
        let len_bytes = state.end + state.records.len();
        state.broken.is_none() && len_bytes > (state.checkpoint_bytes + self.half_bytes) / 2
    }

    const fn half(&self, generation: u64) -> u64 {
        generation % 2 * self.half_bytes as u64
    }

    fn break_off(&self, errno: Errno) {
        tracing::error!("what another mount would need to go on is not noted any more: {errno}");
        let mut state = self.state();
        state.broken = Some(errno);
        state.records = Vec::new();
    }

}

/// Syncs what nobody asks to be synced, until there is no log.
fn sync_now_and_then(log: &Weak<Log>, wanted: &Receiver<()>) {
    while wanted.recv().is_ok() {
        std::thread::sleep(SYNC_PERIOD);
        // Who asks hears of what went wrong.
        let _ = log.upgrade().map(|log| log.sync());
    }
}

/// The generation of a log, and the tree that it leads to: without what has no name, since nobody has that open any more.
///
/// # Errors
/// If it is damaged.
fn read_log(notes: &[u8], half_bytes: usize, blocks: u64) -> io::Result<(u64, Option<Tree>)> {
    let mut halves: Vec<(u64, &[u8])> = notes.chunks(half_bytes).take(2).filter_map(read_head).collect();
    halves.sort_unstable_by_key(|(generation, _)| std::cmp::Reverse(*generation));
    let Some((newest, _)) = halves.first().copied() else { return Ok((0, None)) };
    for (generation, records) in halves {
        if let Some(found) = replay(records, generation)? {
            let tree = Tree::from_image(&found.tree.to_image(), blocks);
            return Ok((generation, Some(tree.map_err(|error| bad(&error.to_string()))?)));
        }
    }
    Err(bad(&format!("generation {newest} of the log has no checkpoint")))
}

fn read_head(half: &[u8]) -> Option<(u64, &[u8])> {
    let (head, records) = half.split_first_chunk::<HEAD_BYTES>()?;
    let [magic, generation] = [0, 8].map(|at| u64::from_le_bytes(*head[at..].first_chunk().unwrap_or(&[0; 8])));
    (magic == MAGIC && generation > 0).then_some((generation, records))
}
