//! Records of the changes of a tree, and their replay. A journal stores them in files of this machine, a log on memory
//! nodes.
//!
//! ```text
//! length, u32 | checksum of the bytes, combined with the generation of the store, u64 | bytes
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

use rapidhash::v3::rapidhash_v3;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::fuse::{Request, execute};
use crate::tree::{Allocate, BadImage, Result, Time, Tree, WritePlan};

const HEAD_BYTES: usize = 12;
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
pub(crate) struct Reply {
    pub errno: i32,
    pub body: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    tree: Vec<u8>,
    replies: BTreeMap<u64, Reply>,
}

/// Result of a replay.
pub(crate) struct Replayed {
    pub tree: Tree,
    /// By the kernel's request number.
    pub replies: BTreeMap<u64, Reply>,
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

/// Returns the contents of a checkpoint.
pub(crate) fn checkpoint(tree: Vec<u8>, replies: BTreeMap<u64, Reply>) -> Vec<u8> {
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

/// Returns a record with these contents.
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

/// Returns the error of damaged records.
pub(crate) fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}
