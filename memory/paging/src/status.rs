//! How a run stands: what its pager counts, its cgroup and its swap area.

use farcall_stats::{BlockReport, Histogram, Report, read_all};
use serde::Serialize;

use crate::block_counters::{READS, REPLICAS, SESSIONS, TRANSFERS, WRITES};
use crate::cgroup::Hierarchy;
use crate::loop_device::device_over;
use crate::place::{Config, Place};
use crate::swap::areas;

/// How long requests of the kernel took in the pager. Limits of buckets: no request of that part took longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// Their mean in nanoseconds.
    pub mean_ns: Option<u64>,
    /// What half of them did not exceed; `None` beyond 2 s.
    pub p50_ns: Option<u64>,
    /// What 99 of 100 did not exceed.
    pub p99_ns: Option<u64>,
}

/// What goes over the sessions with memory nodes that are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Pages that were read and written, each of one replica.
    pub pages: u64,
    /// Work requests that did it: fewer, if neighbours went together.
    pub work_requests: u64,
    /// What is under way now.
    pub in_flight_bytes: u64,
    /// How much may be, for each node.
    pub window_bytes: u64,
    /// How often something had to wait for that.
    pub window_stalls: u64,
}

impl Flow {
    fn of(blocks: &[BlockReport]) -> Self {
        let sum = |names: &[&str]| names.iter().map(|name| sum(blocks, SESSIONS, name)).sum();
        Self {
            pages: sum(&["bytes"]) / farcall_memory::PAGE_BYTES as u64,
            work_requests: sum(&["read_work", "write_work"]),
            in_flight_bytes: sum(&["in_flight_bytes"]),
            window_bytes: farcall_memory::WINDOW_BYTES,
            window_stalls: sum(&["window_stalls"]),
        }
    }

    /// Work requests for each page: 1 if nothing was merged.
    pub fn merge_ratio(&self) -> Option<f64> {
        (self.pages > 0).then(|| self.work_requests as f64 / self.pages as f64)
    }
}

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The process that looks after it.
    pub pid: u32,
    /// The process that serves its pages; `None` if it is not there.
    pub pager_pid: Option<u32>,
    /// What is paged.
    #[serde(flatten)]
    pub config: Config,
    /// Memory that is resident now.
    pub resident_now_bytes: Option<u64>,
    /// Pages that the program waited for, by the kernel's count.
    pub major_faults: Option<u64>,
    /// The swap area's device, what of it is used, and its priority.
    pub device: Option<String>,
    /// See above.
    pub used_bytes: Option<u64>,
    /// See above.
    pub priority: Option<i32>,
    /// Reads of the kernel: faults, and what it reads ahead.
    pub reads: Latency,
    /// Writes of the kernel.
    pub writes: Latency,
    /// Bytes that came and went, and requests that failed.
    pub bytes_read: u64,
    /// See above.
    pub bytes_written: u64,
    /// See above.
    pub failures: u64,
    /// What goes between the pager and its memory nodes.
    pub flow: Flow,
    /// How replicas stand, by name.
    #[serde(skip)]
    pub replicas: Vec<(String, u64)>,
}

/// How a place stands.
///
/// # Errors
/// If there is none, or it cannot be read.
pub fn status(place: Place) -> std::io::Result<Status> {
    let config = place.config()?;
    let report = pager_of(place);
    let blocks = report.as_ref().map_or(&[][..], |report| &report.blocks[..]);
    let cgroup = Hierarchy::find()?.map(|hierarchy| hierarchy.cgroup(&place.cgroup()));
    let device = device_over(&place.file());
    let area = device.as_ref().and_then(|path| areas().ok()?.into_iter().find(|area| area.path == *path));
    let sum = |name: &str| sum(blocks, TRANSFERS, name);
    Ok(Status {
        pid: place.keeper(),
        pager_pid: report.as_ref().map(|report| report.pid),
        config,
        resident_now_bytes: cgroup.as_ref().and_then(|cgroup| cgroup.resident_bytes()),
        major_faults: cgroup.as_ref().and_then(|cgroup| cgroup.major_faults()),
        device: device.map(|path| path.display().to_string()),
        used_bytes: area.as_ref().map(|area| area.used_bytes),
        priority: area.as_ref().map(|area| area.priority),
        reads: latency(blocks, READS),
        writes: latency(blocks, WRITES),
        bytes_read: sum("bytes_read"),
        bytes_written: sum("bytes_written"),
        failures: sum("failures"),
        flow: Flow::of(blocks),
        replicas: of(blocks, REPLICAS).next().map(|block| block.counters.clone()).unwrap_or_default(),
    })
}

fn pager_of(place: Place) -> Option<Report> {
    let label = format!("{REPLICAS} {}", place.keeper());
    let is_its = |report: &Report| report.blocks.iter().any(|block| block.live && block.label == label);
    read_all().ok()?.into_iter().find(|report| report.alive && is_its(report))
}

fn of<'a>(blocks: &'a [BlockReport], kind: &'a str) -> impl Iterator<Item = &'a BlockReport> {
    let is_of = move |block: &&BlockReport| {
        let rest = block.label.strip_prefix(kind);
        block.live && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    blocks.iter().filter(is_of)
}

fn sum(blocks: &[BlockReport], kind: &str, name: &str) -> u64 {
    let value =
        |block: &BlockReport| block.counters.iter().find(|(of, _)| of == name).map(|(_, value)| *value);
    of(blocks, kind).filter_map(value).fold(0, u64::wrapping_add)
}

/// The times of all threads together.
fn latency(blocks: &[BlockReport], kind: &str) -> Latency {
    let mut all = None::<Histogram>;
    for times in of(blocks, kind).filter_map(|block| Histogram::of(&block.counters)) {
        match &mut all {
            None => all = Some(times),
            Some(all) => {
                all.sum_ns = all.sum_ns.wrapping_add(times.sum_ns);
                for (sum, bucket) in all.buckets.iter_mut().zip(times.buckets) {
                    sum.1 = sum.1.wrapping_add(bucket.1);
                }
            }
        }
    }
    let Some(all) = all else { return Latency::default() };
    let count = all.count();
    Latency {
        count,
        mean_ns: all.sum_ns.checked_div(count),
        p50_ns: all.quantile_ns(0.5),
        p99_ns: all.quantile_ns(0.99),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farcall_files::Transfer;

    use super::*;
    use crate::block_counters::OfThread;

    #[test]
    fn what_threads_count_is_summed_up() {
        let threads = [OfThread::new(0), OfThread::new(1)];
        let transfer = |is_write, is_done, us| Transfer {
            is_write,
            len_bytes: 4096,
            time: Duration::from_micros(us),
            is_done,
        };
        threads[0].count(transfer(false, true, 10));
        threads[1].count(transfer(false, true, 30));
        threads[1].count(transfer(true, true, 100));
        threads[1].count(transfer(true, false, 100));
        let report = farcall_stats::read_pid(std::process::id()).unwrap();
        let sum = |name: &str| sum(&report.blocks, TRANSFERS, name);
        assert_eq!(
            [sum("reads"), sum("bytes_read"), sum("bytes_written"), sum("failures")],
            [2, 8192, 4096, 1]
        );
        let reads = latency(&report.blocks, READS);
        assert_eq!((reads.count, reads.mean_ns, reads.p50_ns), (2, Some(20_000), Some(16_384)));
        assert_eq!(latency(&report.blocks, WRITES).count, 1);
        assert_eq!(latency(&[], READS), Latency::default());
    }
}
