//! Latency of a page fault in a remote region, compared with a minimal userfaultfd handler on local memory:
//! alternating, in one run.

use super::ExperimentError;
use crate::measure::LatencyRecorder;
use farcall::memory::{ClientConfig, PAGE_BYTES};
use farcall::memory::{LocalFaultBaseline, RegionConfig, RegionStatus, RemoteRegion};
use farcall_link::Nic;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use std::time::{Duration, Instant};

/// Faults of each kind in one round.
const TURN: usize = 256;
/// Timeout for pages to be evicted from local memory.
const LEAVE_MAX: Duration = Duration::from_secs(60);

/// Plan of the experiment.
#[derive(Debug, Clone)]
pub struct RegionPlan {
    /// Bootstrap addresses of memory nodes.
    pub nodes: Vec<String>,
    /// Number of faults of each kind.
    pub faults: usize,
    /// Seed of the order of pages.
    pub seed: u64,
}

/// Results of the experiment.
#[derive(Debug)]
pub struct RegionFaults {
    /// Faults served from local memory by a thread that does nothing else.
    pub baseline: LatencyRecorder,
    /// Faults served from memory nodes, with free space for the pages.
    pub roomy: LatencyRecorder,
    /// The same in a region whose limit is reached: each loaded page evicts another one.
    pub full: LatencyRecorder,
    /// Final status of the region without free space.
    pub status: RegionStatus,
}

/// Measures the faults. Every page is checked.
///
/// # Errors
/// Returns an error if no region can be created, or if a byte is wrong.
pub fn run(nic: &Nic, plan: &RegionPlan) -> Result<RegionFaults, ExperimentError> {
    let pages = plan.faults.next_multiple_of(TURN);
    let open = |resident: usize| open(nic, plan, pages, resident);
    let (roomy, full) = (open(2 * pages)?, open((pages / 8).max(64))?);
    let baseline = LocalFaultBaseline::new(pages, 1)?;
    let mut order: Vec<usize> = (0..pages).collect();
    order.shuffle(&mut Pcg64::seed_from_u64(plan.seed));
    let mut found: [LatencyRecorder; 3] = Default::default();
    for turn in order.chunks(TURN) {
        for (bytes, times) in [baseline.bytes(), roomy.bytes(), full.bytes()].into_iter().zip(&mut found) {
            touch(bytes, turn, times)?;
        }
    }
    let [baseline_times, roomy_times, full_times] = found;
    let status = full.handle().status();
    let remote = roomy.handle().status().counts.remote;
    if remote < pages as u64 {
        return Err(format!("of {pages} faults only {remote} went to a memory node").into());
    }
    Ok(RegionFaults { baseline: baseline_times, roomy: roomy_times, full: full_times, status })
}

/// Opens a region all of whose pages are at memory nodes.
fn open(
    nic: &Nic,
    plan: &RegionPlan,
    pages: usize,
    resident: usize,
) -> Result<RemoteRegion, ExperimentError> {
    let memory = ClientConfig {
        nodes: plan.nodes.clone(),
        replicas: 1,
        size_bytes: (pages * PAGE_BYTES) as u64,
        slab_bytes: 1 << 20,
        ..ClientConfig::default()
    };
    let resident_limit_bytes = (resident * PAGE_BYTES) as u64;
    let config = RegionConfig { memory, resident_limit_bytes, read_ahead_pages: 0 };
    let mut region = RemoteRegion::open(nic, config)?;
    region.bytes_mut().fill(1);
    region.handle().dont_need(0..pages * PAGE_BYTES);
    let by = Instant::now() + LEAVE_MAX;
    while region.handle().status().resident_bytes > 0 {
        if Instant::now() > by {
            return Err("pages do not leave local memory: memory nodes have no room, or do not answer".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(region)
}

/// Touches pages one after another, and records the latencies.
fn touch(bytes: &[u8], pages: &[usize], times: &mut LatencyRecorder) -> Result<(), ExperimentError> {
    for page in pages {
        let place = &bytes[page * PAGE_BYTES + page % PAGE_BYTES];
        let begun = Instant::now();
        let byte = std::hint::black_box(*std::hint::black_box(place));
        times.record_ns(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if byte != 1 {
            return Err(format!("page {page} holds {byte} instead of 1").into());
        }
    }
    Ok(())
}
