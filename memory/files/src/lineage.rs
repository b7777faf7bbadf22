//! Record of the claims of a volume, passed between the processes of a mount: the identity that nodes know, the
//! membership views ([`MembershipView`]) that were proposed, and whether the tree in the journal is current.
//!
//! It is at the beginning of the memory client's file, whose other contents are unused with volumes:
//!
//! ```text
//! holder, 16 bytes | from 4,096 on two areas, alternating: length, u64 | checksum, u64 | bytes
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_link::Entropy;
use farcall_memory::ViewHistory;
use farcall_memory::wire::MembershipView;
use rapidhash::v3::rapidhash_v3;
use serde::{Deserialize, Serialize};

use crate::fuse::ERA_MAX;
use crate::record::bad;

const HOLDER_BYTES: usize = 16;
const AREA_AT: u64 = 4096;
/// Length of an area in bytes: sufficient for the views of the maximum number of nodes.
const AREA_BYTES: u64 = 1 << 20;
const HEAD_BYTES: usize = 16;
/// Maximum number of claims, and of proposed views, that are retained. Without the older ones a successor accepts
/// fewer copies of nodes as its own.
const RETAINED_MAX: usize = 32;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Recorded {
    generation: u64,
    /// Number of times that the tree was read from the volume because another client had changed it.
    era: u16,
    /// `true` if the journal contains the volume's tree and all its changes.
    is_tree_current: bool,
    /// Consecutive epochs of this mount: no epoch of another client lies between them.
    epochs: Vec<u64>,
    committed: Option<MembershipView>,
    proposed: Vec<MembershipView>,
}

/// The record; see the module documentation.
pub struct Lineage {
    file: File,
    holder: [u8; HOLDER_BYTES],
    recorded: Mutex<Recorded>,
}

impl Lineage {
    /// Reads the record of the last process, or begins a new one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, or if the kernel provides no random number.
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

    /// Returns the identity that this mount presents to nodes, independent of the process that serves it.
    pub const fn holder(&self) -> [u8; HOLDER_BYTES] {
        self.holder
    }

    /// Returns the number of times that the tree was read from the volume because another client had changed it.
    pub fn era(&self) -> u16 {
        self.recorded().era
    }

    /// Returns whether a process of this mount has claimed the volume.
    pub fn has_claimed(&self) -> bool {
        !self.recorded().epochs.is_empty()
    }

    /// Returns whether the journal contains the volume's tree and all its changes: no other client has changed the
    /// volume.
    pub fn is_tree_current(&self) -> bool {
        self.recorded().is_tree_current
    }

    /// Records that the journal contains the volume's tree.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub fn tree_is_current(&self) -> io::Result<()> {
        self.change(|recorded| recorded.is_tree_current = true)
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        // After a panic the value is the one recorded last.
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Recorded)) -> io::Result<()> {
        let mut recorded = self.recorded();
        let mut changed = recorded.clone();
        change(&mut changed);
        changed.generation += 1;
        // Serialising plain data into a growing vector cannot fail.
        let bytes = postcard::to_allocvec(&changed).unwrap_or_default();
        let head = [bytes.len() as u64, rapidhash_v3(&bytes)].map(u64::to_le_bytes);
        if (HEAD_BYTES + bytes.len()) as u64 > AREA_BYTES {
            return Err(bad("there are too many marks to be recorded"));
        }
        // A process that is killed during the write leaves a torn area, which its checksum reveals; the other area is
        // valid then.
        self.file.write_all_at(&[head.as_flattened(), &bytes].concat(), area_at(changed.generation % 2))?;
        *recorded = changed;
        Ok(())
    }
}

impl ViewHistory for Lineage {
    fn views(&self) -> (Option<MembershipView>, Vec<MembershipView>) {
        let recorded = self.recorded();
        (recorded.committed.clone(), recorded.proposed.clone())
    }

    fn propose(&self, before: Option<&MembershipView>, view: &MembershipView) -> io::Result<()> {
        let is_own = |recorded: &Recorded| before.is_some_and(|view| recorded.epochs.contains(&view.epoch));
        if self.recorded().era == ERA_MAX {
            return Err(bad("other mounts have changed the volume too often; mount it again"));
        }
        self.change(|recorded| {
            if !is_own(recorded) {
                recorded.era += u16::from(!recorded.epochs.is_empty());
                recorded.is_tree_current = false;
                recorded.epochs.clear();
            }
            if recorded.epochs.last() != Some(&view.epoch) {
                recorded.epochs.push(view.epoch);
            }
            recorded.proposed.push(view.clone());
            if recorded.epochs.len() > RETAINED_MAX {
                recorded.epochs.remove(0);
            }
            if recorded.proposed.len() > RETAINED_MAX {
                // It is no longer known which view was sent to which node, so none is vouched for before the next
                // commit.
                recorded.committed = None;
                recorded.proposed.remove(0);
            }
        })
    }

    fn commit(&self, view: &MembershipView) {
        let committed = self.change(|recorded| {
            recorded.committed = Some(view.clone());
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

    fn view(epoch: u64, change: u32) -> MembershipView {
        MembershipView { volume: 1, epoch, change, nodes: vec![1, 2], members: vec![1, 2] }
    }

    #[test]
    fn records_whether_the_tree_is_the_volumes_in_each_process() {
        let file: File = memfd_create("lineage", MemfdFlags::CLOEXEC).unwrap().into();
        let next = || Lineage::open(file.try_clone().unwrap()).unwrap();
        let first = next();
        assert!(!first.has_claimed() && !first.is_tree_current());
        first.propose(None, &view(1, 0)).unwrap();
        first.commit(&view(1, 0));
        // The process may exit here: the journal has no tree.
        assert!(next().has_claimed() && !next().is_tree_current());
        first.tree_is_current().unwrap();
        first.propose(Some(&view(1, 0)), &view(1, 1)).unwrap();
        let second = next();
        assert_eq!(second.holder(), first.holder());
        assert_eq!(second.views(), (Some(view(1, 0)), vec![view(1, 1)]));
        // A claim that ended before any node had stored its view.
        second.propose(Some(&view(1, 1)), &view(2, 0)).unwrap();
        second.propose(Some(&view(1, 1)), &view(3, 0)).unwrap();
        second.commit(&view(3, 0));
        assert!(next().is_tree_current() && next().era() == 0);
        // The nodes have a view of another client.
        let third = next();
        third.propose(Some(&view(4, 0)), &view(5, 0)).unwrap();
        assert!(!next().is_tree_current() && next().era() == 1);
        // A process that exits before it has read the tree leaves that to the next one.
        next().propose(Some(&view(5, 0)), &view(6, 0)).unwrap();
        assert!(!next().is_tree_current() && next().era() == 1);
        next().tree_is_current().unwrap();
        assert!(next().is_tree_current());
    }

    #[test]
    fn skips_a_torn_area_and_retains_few_views() {
        let file: File = memfd_create("lineage", MemfdFlags::CLOEXEC).unwrap().into();
        let lineage = Lineage::open(file.try_clone().unwrap()).unwrap();
        lineage.propose(None, &view(1, 0)).unwrap();
        lineage.commit(&view(1, 0));
        let newest = lineage.recorded().generation % 2;
        file.write_all_at(&[0xFF; 4], area_at(newest) + HEAD_BYTES as u64).unwrap();
        let next = Lineage::open(file).unwrap();
        assert_eq!(next.views(), (None, vec![view(1, 0)]));
        for epoch in 2..100 {
            next.propose(Some(&view(1, 0)), &view(epoch, 0)).unwrap();
        }
        let (committed, proposed) = next.views();
        assert!(committed.is_none() && proposed.len() == RETAINED_MAX, "{committed:?}");
    }
}
