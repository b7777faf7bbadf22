//! One queue pair of a session: posting, work requests in flight, and completions.

use std::array::from_fn;
use std::sync::Arc;

use farcall_link::{
    Completed, Connection, LocalSlice, Operation, PostRefused, Region, RegionId, Remote, RemoteRegion,
    SGES_MAX, TOGETHER_MAX, WorkRequest, send_tag,
};
use farcall_verbs::{Wc, WcStatus};

use crate::grants::Grants;
use crate::merging::{Direction, Work};
use crate::post_scheduler::Batch;
use crate::request::{Entry, Local};

/// A queue pair of a session.
pub(crate) struct SessionQp<C> {
    pub connection: Connection,
    /// Index among the queue pairs of the session.
    index: usize,
    pool: RegionId,
    /// Work requests in flight. The tag of a work request is the index of its record plus 1, since the drain marker of
    /// the connection has tag 0.
    records: Vec<Record<C>>,
    /// Indices of free records; the last one is used next.
    unused: Vec<u32>,
}

struct Record<C> {
    work: Option<Work>,
    entries: Vec<Entry<C>>,
}

/// Returns the grant of a request. It existed when the request was accepted, and grants are never removed.
fn grant_of(grants: &Grants, number: u32) -> &RemoteRegion {
    grants.get(number).expect("a grant that a request names")
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkStatus {
    Success,
    /// The work request failed, which ends the queue pair.
    Failed(WcStatus),
    /// The queue pair was in the error state; it is unknown whether the work request took effect.
    Flushed,
}

/// A work request that has ended. Its requests are returned separately.
pub(crate) struct CompletedWork {
    pub work: Work,
    pub outcome: WorkStatus,
}

impl<C> SessionQp<C> {
    /// Creates the queue pair with index `index`, for up to `depth` work requests in flight.
    pub fn new(index: usize, mut connection: Connection, pool: &Arc<Region>, depth: u32) -> Self {
        let pool = connection.attach(Arc::clone(pool));
        let records = (0..depth).map(|_| Record { work: None, entries: Vec::new() }).collect();
        Self { connection, index, pool, records, unused: (0..depth).rev().collect() }
    }

    /// Posts a batch. Posted work requests and their requests move to the records; the others remain in the batch.
    ///
    /// # Errors
    /// If the connection refuses one of the work requests. Those before it were posted.
    pub fn post(&mut self, batch: &mut Batch<C>, grants: &Grants) -> Result<(), PostRefused> {
        let count = batch.doorbell.work.len();
        let error = self.post_chain(batch, grants).err();
        let posted = match &error {
            None => count,
            Some(PostRefused::Post { source, .. }) => source.posted,
            Some(_) => 0,
        };
        let members: usize = batch.doorbell.work[..posted].iter().map(|work| work.members.len()).sum();
        let mut entries = batch.entries.drain(..members);
        for work in batch.doorbell.work.drain(..posted) {
            let record = &mut self.records[self.unused.pop().expect("as many records as room") as usize];
            record.entries.extend(entries.by_ref().take(work.members.len()));
            record.work = Some(work);
        }
        drop(entries);
        error.map_or(Ok(()), Err)
    }

    /// Posts all work requests of the batch with one doorbell.
    fn post_chain(&mut self, batch: &Batch<C>, grants: &Grants) -> Result<(), PostRefused> {
        let work = &batch.doorbell.work;
        let mut pieces =
            [[LocalSlice { region: self.pool, offset: 0, len_bytes: 0 }; SGES_MAX]; TOGETHER_MAX];
        let mut counts = [0; TOGETHER_MAX];
        for (at, work) in work.iter().enumerate() {
            counts[at] = self.local_slices(work, &batch.entries[work.members.clone()], &mut pieces[at]);
        }
        // `post` removes the records from `unused` in this order.
        let tags = self.unused.iter().rev().map(|record| record + 1);
        let mut tags_of = [0; TOGETHER_MAX];
        tags_of.iter_mut().zip(tags).for_each(|(tag, of)| *tag = of);
        let request = |at: usize| {
            let Work { direction, span, .. } = &work[at];
            let remote = Remote { grant: grant_of(grants, span.region), offset: span.start as usize };
            let operation = match direction {
                Direction::Read => Operation::Read(remote),
                Direction::Write => Operation::Write(remote),
            };
            let local = &pieces[at][..counts[at]];
            (WorkRequest { operation, local, imm: None, is_signalled: true }, tags_of[at])
        };
        if let [Entry { local: Local::Registered(region), .. }] = &batch.entries[..] {
            let (request, tag) = request(0);
            self.connection.post_lending(Arc::clone(region), request.operation, tag)?;
        } else if let [_] = work[..] {
            self.connection.post_together(&[request(0)])?;
        } else {
            let requests: [_; TOGETHER_MAX] = from_fn(|at| request(at.min(work.len() - 1)));
            self.connection.post_together(&requests[..work.len()])?;
        }
        Ok(())
    }

    /// Writes the local memory of a work request to `pieces`, in the order of its requests, and returns the number of
    /// scatter/gather elements.
    fn local_slices(&self, work: &Work, entries: &[Entry<C>], pieces: &mut [LocalSlice; SGES_MAX]) -> usize {
        let (mut count, mut in_pool, mut offset) = (0, false, work.pool_slice.offset);
        for entry in entries {
            let len_bytes = entry.len_bytes;
            let piece = match &entry.local {
                Local::Pool(_) | Local::Shared(_) => LocalSlice { region: self.pool, offset, len_bytes },
                Local::Slice(slice) => {
                    LocalSlice { region: slice.memory.0.ids[self.index], offset: slice.offset, len_bytes }
                }
                // Such a request is alone in its batch, and `post_chain` passes its region itself.
                Local::ToRegister(_) | Local::Registered(_) => continue,
            };
            let is_pool = matches!(entry.local, Local::Pool(_) | Local::Shared(_));
            if is_pool {
                offset += len_bytes;
            }
            if is_pool && in_pool {
                pieces[count - 1].len_bytes += len_bytes;
            } else {
                pieces[count] = piece;
                count += 1;
            }
            in_pool = is_pool;
        }
        count
    }

    /// Accounts for a completion. Appends the requests of the work request that has ended to `entries`. Returns `None`
    /// if the completion is not that of a work request of the session.
    pub fn complete(&mut self, wc: &Wc, entries: &mut Vec<Entry<C>>) -> Option<CompletedWork> {
        let outcome = match self.connection.complete(wc) {
            Completed::Send { .. } => WorkStatus::Success,
            // If the first failed completion is a flush, its status does not describe its own request.
            Completed::Failed(WcStatus::WR_FLUSH_ERR) | Completed::Flushed => WorkStatus::Flushed,
            Completed::Failed(status) => WorkStatus::Failed(status),
            Completed::Received { .. } => return None,
        };
        let record = send_tag(wc).checked_sub(1)?;
        let Record { work, entries: of_record } = self.records.get_mut(record as usize)?;
        let work = work.take()?;
        entries.append(of_record);
        self.unused.push(record);
        Some(CompletedWork { work, outcome })
    }
}
