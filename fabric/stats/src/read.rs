//! Reading of statistics of another process, running or exited. They are untrusted input, so everything is validated.

use crate::StatsError;
use crate::format::{
    AT_EXE, AT_MAGIC, AT_PID, AT_START, AT_USED, BLOCK_COUNTERS, BLOCK_LABEL, BLOCK_NEXT, BLOCK_RECORDS,
    BLOCK_STATE, BlockLayout, ENDED, EXE_BYTES, FIRST_BLOCK, LABEL_BYTES, LIVE, MAGIC, NAME_BYTES,
    RECORD_BYTES, SEGMENT_BYTES, is_magic, word,
};
use crate::segment::list;

/// The statistics of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Process id.
    pub pid: u32,
    /// Whether the process still runs.
    pub alive: bool,
    /// Command line.
    pub command: String,
    /// Endpoints.
    pub blocks: Vec<BlockReport>,
}

/// The statistics of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// The endpoint's label.
    pub label: String,
    /// Whether the endpoint still exists.
    pub live: bool,
    /// Names and values of the counters.
    pub counters: Vec<(String, u64)>,
    /// Last events, oldest first.
    pub records: Vec<FlightRecord>,
}

/// An event of a flight recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightRecord {
    /// Nanoseconds since the process's page was created.
    pub at_ns: u64,
    /// Kind of the event, as numbered by the endpoint.
    pub code: u64,
    /// Argument of the event.
    pub argument: u64,
}

/// Reads the statistics of a process of this user: those of the running process with this pid, or else of the last one
/// that had it.
///
/// # Errors
/// Returns [`StatsError::NotFound`] if there are none.
pub fn read_pid(pid: u32) -> Result<Report, StatsError> {
    let start = start_ticks(pid);
    let mut newest = Err(StatsError::NotFound { pid });
    for found in list()?.into_iter().filter(|found| found.creator_pid == pid) {
        let bytes = match found.read() {
            Ok(Some(bytes)) => bytes,
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                newest = newest.or(Err(StatsError::Malformed { pid, why: "a page of them is lost" }));
                continue;
            }
            // Not statistics, or removed in the meantime.
            Ok(None) | Err(_) => continue,
        };
        let (mut report, started) = parse(&bytes).map_err(|why| StatsError::Malformed { pid, why })?;
        report.pid = pid;
        report.alive = start != 0 && started == start;
        if report.alive {
            return Ok(report);
        }
        newest = newest.or(Ok(report));
    }
    newest
}

/// Reads the statistics of all processes of this user, the newest first. Statistics that are unreadable or of another
/// version are omitted.
///
/// # Errors
/// Returns an error if the system does not list the segments.
pub fn read_all() -> Result<Vec<Report>, StatsError> {
    let reports = list()?.into_iter().filter_map(|found| {
        let (mut report, started) = parse(&found.read().ok()??).ok()?;
        report.pid = found.creator_pid;
        report.alive = started != 0 && started == start_ticks(found.creator_pid);
        Some(report)
    });
    Ok(reports.collect())
}

/// Returns the start time of a process in clock ticks since boot, which identifies a reused pid; 0 if the process has
/// exited.
pub(crate) fn start_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain any characters; fields are counted after its closing parenthesis.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn text(bytes: &[u8], at: usize, room: usize) -> Option<String> {
    let text = bytes.get(at..at.checked_add(room)?)?;
    let end = text.iter().position(|b| *b == 0).unwrap_or(room);
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}

/// Parses the bytes of statistics; also returns the start time of the process.
///
/// # Errors
/// Returns a description of the defect.
pub fn parse(bytes: &[u8]) -> Result<(Report, u64), &'static str> {
    const SHORT: &str = "shorter than a header";
    match word(bytes, AT_MAGIC).ok_or(SHORT)? {
        MAGIC => {}
        other if is_magic(other) => return Err("another release of Farcall wrote them; ask with that one"),
        _ => return Err("bad magic"),
    }
    let pid = word(bytes, AT_PID).ok_or(SHORT)?;
    let pid = u32::try_from(pid).map_err(|_| "impossible pid")?;
    let start = word(bytes, AT_START).ok_or(SHORT)?;
    let used = word(bytes, AT_USED).ok_or(SHORT)?.min(bytes.len().min(SEGMENT_BYTES) as u64) as usize;
    let command = text(bytes, AT_EXE, EXE_BYTES).ok_or(SHORT)?;
    let (mut blocks, mut at) = (Vec::new(), FIRST_BLOCK);
    while at < used {
        let (block, len) = block(&bytes[at..used]).ok_or("a block that is cut or impossible")?;
        blocks.extend(block);
        at += len;
    }
    Ok((Report { pid, alive: false, command, blocks }, start))
}

/// Parses a block and returns its length; the block is `None` while it is being filled.
fn block(bytes: &[u8]) -> Option<(Option<BlockReport>, usize)> {
    let bounded = |at| word(bytes, at).filter(|n| *n <= SEGMENT_BYTES as u64).map(|n| n as usize);
    let layout = BlockLayout { counters: bounded(BLOCK_COUNTERS)?, records: bounded(BLOCK_RECORDS)? };
    let len = layout.len_bytes();
    if len > bytes.len() {
        return None;
    }
    let state = word(bytes, BLOCK_STATE)?;
    if state != LIVE && state != ENDED {
        return Some((None, len));
    }
    let counter = |i| {
        let name = text(bytes, layout.names_at() + i * NAME_BYTES, NAME_BYTES)?;
        Some((name, word(bytes, layout.values_at() + i * 8)?))
    };
    let next = word(bytes, BLOCK_NEXT)?;
    let kept = next.min(layout.records as u64);
    let record = |i: u64| {
        let at = layout.records_at() + (i % layout.records as u64) as usize * RECORD_BYTES;
        Some(FlightRecord {
            at_ns: word(bytes, at)?,
            code: word(bytes, at + 8)?,
            argument: word(bytes, at + 16)?,
        })
    };
    let report = BlockReport {
        label: text(bytes, BLOCK_LABEL, LABEL_BYTES)?,
        live: state == LIVE,
        counters: (0..layout.counters).map(counter).collect::<Option<_>>()?,
        records: (next - kept..next).map(record).collect::<Option<_>>()?,
    };
    Some((Some(report), len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Block;
    use proptest::prelude::*;

    crate::counters! {
        /// Counters of a test.
        struct Sample {
            /// One.
            apples,
            /// Two.
            pears,
        }
    }

    #[test]
    fn reads_counters_after_the_end_and_reuses_their_slots() {
        let first = Block::<Sample>::new("first", 4);
        first.apples.add(3);
        first.pears.increment();
        for i in 0..6 {
            first.record(i, 10 * i);
        }
        let find =
            |label: &str| read_pid(std::process::id()).unwrap().blocks.into_iter().find(|b| b.label == label);
        let seen = find("first").unwrap();
        assert!(seen.live && read_pid(std::process::id()).unwrap().alive);
        assert_eq!(seen.counters, [("apples".into(), 3), ("pears".into(), 1)]);
        assert_eq!(
            seen.records.iter().map(|r| (r.code, r.argument)).collect::<Vec<_>>(),
            [(2, 20), (3, 30), (4, 40), (5, 50)]
        );
        let all = read_all().unwrap();
        let ours = all.iter().find(|report| report.alive && report.pid == std::process::id()).unwrap();
        assert!(ours.blocks.iter().any(|block| block.label == "first"));
        drop(first);
        assert_eq!(find("first").map(|b| (b.live, b.counters[0].1)), Some((false, 3)));
        let second = Block::<Sample>::new("second", 4);
        assert_eq!((second.apples.get(), find("first").is_none(), find("second").is_some()), (0, true, true));
    }

    #[test]
    fn a_label_holds_two_addresses_in_full() {
        let address = "[2001:0db8:1111:2222:3333:4444:5555:6666]:65535";
        let label = format!("stream {address} {address} connected");
        let _block = Block::<Sample>::new(&label, 0);
        assert!(read_pid(std::process::id()).unwrap().blocks.iter().any(|block| block.label == label));
    }

    #[test]
    fn distinguishes_another_version_from_garbage() {
        let mut bytes = vec![0; FIRST_BLOCK];
        let mut said_of = |magic: &[u8; 8]| {
            bytes[..8].copy_from_slice(magic);
            parse(&bytes).unwrap_err()
        };
        assert!(said_of(b"farstat1").contains("another release"));
        assert_eq!(said_of(b"farstar2"), "bad magic");
    }

    #[test]
    fn an_unknown_process_has_a_clear_error() {
        assert!(matches!(read_pid(u32::MAX), Err(StatsError::NotFound { .. })));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_read_but_never_believed(
            mut bytes in prop::collection::vec(any::<u8>(), 0..8192), start in prop::bool::ANY, used in any::<u64>(),
            counters in any::<u64>(), records in any::<u64>(),
        ) {
            if start && bytes.len() >= FIRST_BLOCK + 128 {
                bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[AT_PID..AT_PID + 8].copy_from_slice(&1_u64.to_le_bytes());
                bytes[AT_USED..AT_USED + 8].copy_from_slice(&used.to_le_bytes());
                bytes[FIRST_BLOCK + BLOCK_COUNTERS..][..8].copy_from_slice(&counters.to_le_bytes());
                bytes[FIRST_BLOCK + BLOCK_RECORDS..][..8].copy_from_slice(&records.to_le_bytes());
            }
            let _ = parse(&bytes);
        }
    }
}
