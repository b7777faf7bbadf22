//! Consecutive writes in one direction, in three phases: all bytes checked, warm-up, timed. The reader ends each phase
//! with a reply that contains the number of correct writes.

use super::medium::Bytes;
use super::record::{Reads, Writes, is_whole};
use crate::peer::{BothEnds, Meter, PairPlan, Peer, PeerError};
use std::time::{Duration, Instant};

/// Approximate number of bytes that are checked individually.
const CHECKED_BYTES: usize = 16 << 20;
/// Minimum and maximum number of writes for that.
const CHECKED_WRITES: (usize, usize) = (32, 20_000);
/// Bytes between two readings of the clock, if that is more than one write.
const BURST_BYTES: usize = 1 << 10;

/// Results of one-way writes.
#[derive(Debug, Clone, Copy)]
pub struct OneWay {
    /// Writes a second, until the reader had received the last.
    pub writes_per_second: f64,
    /// Number of timed writes.
    pub writes: u64,
    /// Cores used by the writer, which is the client, and by the reader.
    pub cores: BothEnds,
}

/// Runs the writing end.
pub(super) fn measure(
    stream: &mut dyn Bytes,
    len_bytes: usize,
    plan: &PairPlan,
    reader: &Peer,
) -> Result<OneWay, PeerError> {
    let mut writes = Writes::new(len_bytes);
    let checked = (CHECKED_BYTES / len_bytes).clamp(CHECKED_WRITES.0, CHECKED_WRITES.1);
    for left in (0..checked).rev() {
        put(stream, writes.next_whole(left == 0))?;
    }
    confirm(stream, &writes)?;
    write_for(stream, &mut writes, plan.warm_up)?;
    let before = writes.count();
    let meter = Meter::start(reader)?;
    let start = Instant::now();
    write_for(stream, &mut writes, plan.duration)?;
    let seconds = start.elapsed().as_secs_f64().max(1e-9);
    let count = writes.count() - before;
    Ok(OneWay { writes_per_second: count as f64 / seconds, writes: count, cores: meter.stop()? })
}

fn write_for(stream: &mut dyn Bytes, writes: &mut Writes, duration: Duration) -> Result<(), PeerError> {
    let burst = (BURST_BYTES / writes.len_bytes()).max(1);
    let start = Instant::now();
    while start.elapsed() < duration {
        for _ in 0..burst {
            put(stream, writes.next(false))?;
        }
    }
    put(stream, writes.next(true))?;
    confirm(stream, writes)
}

#[inline]
fn put(stream: &mut dyn Bytes, bytes: &[u8]) -> Result<(), PeerError> {
    stream.write_all(bytes).map_err(PeerError::system("write"))
}

/// Waits until the reader reports that it has received all writes.
fn confirm(stream: &mut dyn Bytes, writes: &Writes) -> Result<(), PeerError> {
    let mut count = [0; 8];
    stream.read_exact(&mut count).map_err(PeerError::system("read"))?;
    let count = u64::from_le_bytes(count);
    if count == writes.count() {
        return Ok(());
    }
    Err(PeerError::Part(format!("{count} writes were read instead of {}", writes.count())))
}

/// Runs the reading end until the stream ends.
pub(super) fn take(stream: &mut dyn Bytes, len_bytes: usize) -> Result<(), PeerError> {
    let mut reads = Reads::new(len_bytes);
    let mut is_there = reads.phase(stream, is_whole)?;
    while is_there {
        put(stream, &reads.count().to_le_bytes())?;
        is_there = reads.phase(stream, |_, _| true)?;
    }
    Ok(())
}
