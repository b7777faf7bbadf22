//! Status of a run: counters of its pager, its cgroup and its swap area.

use farcall_stats::{BlockReport, Histogram, Report, read_all};
use serde::Serialize;

use crate::block_counters::{READS, REPLICAS, SESSIONS, TRANSFERS, WRITES};
use crate::cgroup::Hierarchy;
use crate::loop_device::device_over;
use crate::run_paths::{Config, RunPaths};
use crate::swap::areas;

/// Latency of the kernel's requests in the pager. Quantiles are upper bounds of histogram buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Number of requests.
    pub count: u64,
    /// Mean in nanoseconds.
    pub mean_ns: Option<u64>,
    /// Median in nanoseconds; `None` beyond 2 s.
    pub p50_ns: Option<u64>,
    /// 99th percentile in nanoseconds; `None` beyond 2 s.
    pub p99_ns: Option<u64>,
}

/// Traffic of the open sessions with memory nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Pages read and written, counted per replica.
    pub pages: u64,
    /// Work requests for them: fewer if adjacent pages were merged.
    pub work_requests: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// Maximum number of bytes in flight per node.
    pub window_bytes: u64,
    /// Number of requests that waited for this window.
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

    /// Returns the number of work requests per page: 1 if none were merged.
    pub fn merge_ratio(&self) -> Option<f64> {
        (self.pages > 0).then(|| self.work_requests as f64 / self.pages as f64)
    }
}

/// Status of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Process id of the supervisor.
    pub pid: u32,
    /// Process id of the pager; `None` if there is none.
    pub pager_pid: Option<u32>,
    /// Configuration of the run.
    #[serde(flatten)]
    pub config: Config,
    /// Resident memory in bytes.
    pub resident_now_bytes: Option<u64>,
    /// Major faults of the program, as counted by the kernel.
    pub major_faults: Option<u64>,
    /// Device of the swap area.
    pub device: Option<String>,
    /// Used part of the swap area in bytes.
    pub used_bytes: Option<u64>,
    /// Priority of the swap area.
    pub priority: Option<i32>,
    /// Latency of the kernel's reads: faults and read-ahead.
    pub reads: Latency,
    /// Latency of the kernel's writes.
    pub writes: Latency,
    /// Bytes read by the kernel.
    pub bytes_read: u64,
    /// Bytes written by the kernel.
    pub bytes_written: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Traffic between the pager and its memory nodes.
    pub flow: Flow,
    /// State of the replicas, by counter name.
    #[serde(skip)]
    pub replicas: Vec<(String, u64)>,
}

/// Returns the status of a run.
///
/// # Errors
/// Returns an error if the run does not exist or its record cannot be read.
pub fn status(paths: RunPaths) -> std::io::Result<Status> {
    let config = paths.config()?;
    let report = pager_of(paths);
    let blocks = report.as_ref().map_or(&[][..], |report| &report.blocks[..]);
    let cgroup = Hierarchy::find()?.map(|hierarchy| hierarchy.cgroup(&paths.cgroup()));
    let device = device_over(&paths.file());
    let area = device.as_ref().and_then(|path| areas().ok()?.into_iter().find(|area| area.path == *path));
    let sum = |name: &str| sum(blocks, TRANSFERS, name);
    Ok(Status {
        pid: paths.supervisor(),
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

fn pager_of(paths: RunPaths) -> Option<Report> {
    let label = format!("{REPLICAS} {}", paths.supervisor());
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

/// Merges the histograms of all threads.
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
    use crate::block_counters::ThreadCounters;

    #[test]
    fn sums_counters_of_all_threads() {
        let threads = [ThreadCounters::new(0), ThreadCounters::new(1)];
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
