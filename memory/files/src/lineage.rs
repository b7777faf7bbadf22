//! What a mount's processes hand on of their claims of a volume: by what nodes know them, which marks they gave, and
//! whether the tree that the last one left is the volume's.
//!
//! It is at the begin of the file of the memory's client, which volumes have no other use for:
//!
//! ```text
//! holder, 16 bytes | from 4,096 on two areas, in turn: length, u64 | checksum, u64 | bytes
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_link::Entropy;
use farcall_memory::MarkHistory;
use farcall_memory::wire::Mark;
use rapidhash::v3::rapidhash_v3;
use serde::{Deserialize, Serialize};

use crate::fuse::ERA_MAX;
use crate::journal::bad;

const HOLDER_BYTES: usize = 16;
const AREA_AT: u64 = 4096;
/// Bytes of an area: more than marks of as many nodes as a volume may have take.
const AREA_BYTES: u64 = 1 << 20;
const HEAD_BYTES: usize = 16;
/// Maximum number of claims, and of proposed marks, that are kept. Without the older ones a successor believes less.
const KEPT_MAX: usize = 32;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Recorded {
    generation: u64,
    /// How often the tree was taken from the volume since another client had changed it.
    era: u16,
    /// The journal has the volume's tree, with all that happened since.
    is_tree_current: bool,
    /// Epochs of this mount, of which no other client's is between.
    epochs: Vec<u64>,
    committed: Option<Mark>,
    proposed: Vec<Mark>,
}

/// See above.
pub struct Lineage {
    file: File,
    holder: [u8; HOLDER_BYTES],
    recorded: Mutex<Recorded>,
}

impl Lineage {
    /// Reads what the last process recorded, or begins.
    ///
    /// # Errors
    /// If it cannot be read or written, or the system gives no random number.
    pub fn open(file: File) -> io::Result<Self> {
        let mut holder = [0; HOLDER_BYTES];
        if file.read_at(&mut holder, 0)? < holder.len() {
            holder = Entropy::System.bytes()?;
            file.write_all_at(&holder, 0)?;
        }
        let areas = [read_area(&file, 0)?, read_area(&file, 1)?];
        let recorded = areas.into_iter().flatten().max_by_key(|recorded| recorded.generation);
        Ok(Self { file, holder, recorded: Mutex::new(recorded.unwrap_or_default()) })
    }

    /// What this mount proves to nodes that it is the same by, whichever process serves it.
    pub const fn holder(&self) -> [u8; HOLDER_BYTES] {
        self.holder
    }

    /// How often the tree was taken from the volume since another client had changed it.
    pub fn era(&self) -> u16 {
        self.recorded().era
    }

    /// Whether a process of this mount has claimed the volume.
    pub fn has_claimed(&self) -> bool {
        !self.recorded().epochs.is_empty()
    }

    /// Whether the tree that the journal has is the volume's, with all that happened since: no other client has changed
    /// it.
    pub fn is_tree_current(&self) -> bool {
        self.recorded().is_tree_current
    }

    /// Records that the journal has the volume's tree.
    ///
    /// # Errors
    /// If it is not recorded.
    pub fn tree_is_current(&self) -> io::Result<()> {
        self.change(|recorded| recorded.is_tree_current = true)
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        // A panic leaves what was recorded last.
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Recorded)) -> io::Result<()> {
        let mut recorded = self.recorded();
        let mut changed = recorded.clone();
        change(&mut changed);
        changed.generation += 1;
        // Vectors grow: serialising plain data into one cannot fail.
        let bytes = postcard::to_allocvec(&changed).unwrap_or_default();
        let head = [bytes.len() as u64, rapidhash_v3(&bytes)].map(u64::to_le_bytes);
        if (HEAD_BYTES + bytes.len()) as u64 > AREA_BYTES {
            return Err(bad("there are too many marks to be recorded"));
        }
        // A process that is killed meanwhile leaves a torn area, which the checksum shows; the other one counts then.
        self.file.write_all_at(&[head.as_flattened(), &bytes].concat(), area_at(changed.generation % 2))?;
        *recorded = changed;
        Ok(())
    }
}

impl MarkHistory for Lineage {
    fn marks(&self) -> (Option<Mark>, Vec<Mark>) {
        let recorded = self.recorded();
        (recorded.committed.clone(), recorded.proposed.clone())
    }

    fn propose(&self, before: Option<&Mark>, mark: &Mark) -> io::Result<()> {
        let is_own = |recorded: &Recorded| before.is_some_and(|mark| recorded.epochs.contains(&mark.epoch));
        if self.recorded().era == ERA_MAX {
            return Err(bad("other mounts have changed the volume too often; mount it anew"));
        }
        self.change(|recorded| {
            if !is_own(recorded) {
                recorded.era += u16::from(!recorded.epochs.is_empty());
                recorded.is_tree_current = false;
                recorded.epochs.clear();
            }
            if recorded.epochs.last() != Some(&mark.epoch) {
                recorded.epochs.push(mark.epoch);
            }
            recorded.proposed.push(mark.clone());
            if recorded.epochs.len() > KEPT_MAX {
                recorded.epochs.remove(0);
            }
            if recorded.proposed.len() > KEPT_MAX {
                // What was sent to whom is not known any more: nothing is vouched for before the next commit.
                recorded.committed = None;
                recorded.proposed.remove(0);
            }
        })
    }

    fn commit(&self, mark: &Mark) {
        let committed = self.change(|recorded| {
            recorded.committed = Some(mark.clone());
            recorded.proposed.clear();
        });
        if let Err(error) = committed {
            tracing::warn!("a mark of the volume is not recorded, so a successor vouches for none: {error}");
        }
    }
}

const fn area_at(area: u64) -> u64 {
    AREA_AT + area * AREA_BYTES
}

fn read_area(file: &File, area: u64) -> io::Result<Option<Recorded>> {
    let mut head = [[0; 8]; 2];
    let at = area_at(area);
    if file.read_at(head.as_flattened_mut(), at)? < HEAD_BYTES {
        return Ok(None);
    }
    let [len_bytes, sum] = head.map(u64::from_le_bytes);
    if len_bytes > AREA_BYTES {
        return Ok(None);
    }
    let mut bytes = vec![0; len_bytes as usize];
    let is_whole = file.read_at(&mut bytes, at + HEAD_BYTES as u64)? == bytes.len();
    Ok(if is_whole && rapidhash_v3(&bytes) == sum { postcard::from_bytes(&bytes).ok() } else { None })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn mark(epoch: u64, change: u32) -> Mark {
        Mark { volume: 1, epoch, change, nodes: vec![1, 2], members: vec![1, 2] }
    }

    #[test]
    fn records_whether_the_tree_is_the_volumes_in_each_process() {
        let file: File = memfd_create("lineage", MemfdFlags::CLOEXEC).unwrap().into();
        let next = || Lineage::open(file.try_clone().unwrap()).unwrap();
        let first = next();
        assert!(!first.has_claimed() && !first.is_tree_current());
        first.propose(None, &mark(1, 0)).unwrap();
        first.commit(&mark(1, 0));
        // It may end here: the journal has no tree.
        assert!(next().has_claimed() && !next().is_tree_current());
        first.tree_is_current().unwrap();
        first.propose(Some(&mark(1, 0)), &mark(1, 1)).unwrap();
        let second = next();
        assert_eq!(second.holder(), first.holder());
        assert_eq!(second.marks(), (Some(mark(1, 0)), vec![mark(1, 1)]));
        // A claim that ended before any node had its mark.
        second.propose(Some(&mark(1, 1)), &mark(2, 0)).unwrap();
        second.propose(Some(&mark(1, 1)), &mark(3, 0)).unwrap();
        second.commit(&mark(3, 0));
        assert!(next().is_tree_current() && next().era() == 0);
        // Another client's mark is there.
        let third = next();
        third.propose(Some(&mark(4, 0)), &mark(5, 0)).unwrap();
        assert!(!next().is_tree_current() && next().era() == 1);
        // A process that ends before it has taken the tree leaves that to the next one.
        next().propose(Some(&mark(5, 0)), &mark(6, 0)).unwrap();
        assert!(!next().is_tree_current() && next().era() == 1);
        next().tree_is_current().unwrap();
        assert!(next().is_tree_current());
    }

    #[test]
    fn passes_over_an_area_that_is_torn_and_keeps_few_marks() {
        let file: File = memfd_create("lineage", MemfdFlags::CLOEXEC).unwrap().into();
        let lineage = Lineage::open(file.try_clone().unwrap()).unwrap();
        lineage.propose(None, &mark(1, 0)).unwrap();
        lineage.commit(&mark(1, 0));
        let newest = lineage.recorded().generation % 2;
        file.write_all_at(&[0xFF; 4], area_at(newest) + HEAD_BYTES as u64).unwrap();
        let next = Lineage::open(file).unwrap();
        assert_eq!(next.marks(), (None, vec![mark(1, 0)]));
        for epoch in 2..100 {
            next.propose(Some(&mark(1, 0)), &mark(epoch, 0)).unwrap();
        }
        let (committed, proposed) = next.marks();
        assert!(committed.is_none() && proposed.len() == KEPT_MAX, "{committed:?}");
    }
}
