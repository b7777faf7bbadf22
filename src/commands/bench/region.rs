//! `farcall bench region`: page faults of a region of remote memory.

use crate::commands::kv::resolve;
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::memory::Preflight;
use farcall_bench::experiments::region_faults::{self, RegionFaults, RegionPlan};
use farcall_bench::measure::{LatencyRecorder, LatencySummary};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// Measure page faults of a region of remote memory, compared with bare userfaultfd.
///
/// One thread touches each page once, in random order. Three kinds of memory are measured: memory whose pages a thread
/// only copies from local memory (bare), a region with space for all pages (region), and a region at its limit, which
/// evicts a page for each fault (full). The three alternate after every 256 faults. No memory is pinned, no page is read
/// ahead, and every page is checked. Without --nodes, a memory node is started on this machine: the software RNIC
/// measures inter-process communication, not a network.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall bench region\n  \
                        farcall bench region --nodes 10.0.0.1:11500 --faults 65536 --json")]
pub struct RegionBench {
    /// Memory nodes, separated by commas. Each of the two regions needs as much memory as is touched.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', value_parser = resolve)]
    nodes: Vec<SocketAddr>,
    /// Number of faults of each kind of memory.
    #[arg(long, value_name = "COUNT", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(256..=1 << 22))]
    faults: u32,
    /// Seed of the order of pages.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    nic: NicArgs,
}

/// A memory node for this measurement, killed when dropped.
struct MemoryNode {
    process: Child,
    address: String,
}

impl MemoryNode {
    fn start(faults: u32) -> io::Result<Self> {
        // Capacity for two regions of 4 KiB pages, and for partly used slabs.
        let size_mib = faults.div_ceil(256) * 2 + 4;
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--json", "memory", "serve", "--listen", "127.0.0.1:0", "--slab", "1M"])
            .args(["--size", &format!("{size_mib}M")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take();
        let mut node = Self { process, address: String::new() };
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line)?;
        }
        let ready: Value = serde_json::from_str(&line).unwrap_or_default();
        node.address = ready["rpc"]
            .as_str()
            .ok_or_else(|| io::Error::other("the memory node exited before it was ready"))?
            .to_owned();
        Ok(node)
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl RegionBench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If regions are not available here, or a page has wrong contents.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let preflight = Preflight::run();
        if let Preflight::Nothing(_) = preflight {
            let remedy = preflight.remedy().unwrap_or_default();
            return Err(Failure::new(preflight.meaning()).remedy(remedy));
        }
        let selected = self.nic.open()?;
        let failed = |error: &dyn std::error::Error| {
            Failure::because("cannot measure faults of a region", error)
                .remedy("find out what is missing: farcall doctor")
        };
        let node = if self.nodes.is_empty() { Some(MemoryNode::start(self.faults)) } else { None };
        let node = node.transpose().map_err(|error| failed(&error))?;
        let nodes = match &node {
            Some(node) => vec![node.address.clone()],
            None => self.nodes.iter().map(ToString::to_string).collect(),
        };
        let plan = RegionPlan { nodes, faults: self.faults as usize, seed: self.seed };
        let found = region_faults::run(&selected.nic, &plan).map_err(|error| failed(&*error))?;
        console.print(
            &text(&found, &selected.explanation),
            &value(&found, selected.selection.provider.name()),
        )?;
        Ok(Exit::Success)
    }
}

fn rows(found: &RegionFaults) -> [(&'static str, LatencySummary); 3] {
    let row = |name, times: &LatencyRecorder| (name, times.summary());
    [row("bare", &found.baseline), row("region", &found.roomy), row("full", &found.full)]
}

fn text(found: &RegionFaults, provider: &str) -> String {
    let rows = rows(found);
    let bare = rows[0].1.p50_ns as f64;
    let mut text = String::from("page faults   p50 µs   p99 µs   p50 / bare");
    for (name, times) in rows {
        let (p50, p99) = (times.p50_ns as f64, times.p99_ns as f64);
        text += &format!("\n{name:11} {:8.1} {:8.1} {:12.2}", p50 / 1e3, p99 / 1e3, p50 / bare);
    }
    let counts = found.status.counts;
    text += &format!(
        "\n{} faults of each; full: {} pages evicted, {} of them unchanged, {} faults waited for space\n{provider}",
        found.baseline.count(),
        counts.evicted,
        counts.evicted_clean,
        counts.waited_for_room
    );
    text
}

fn value(found: &RegionFaults, provider: &str) -> Value {
    let bare = found.baseline.summary().p50_ns as f64;
    let rows = rows(found).map(|(name, times)| {
        json!({ "name": name, "faults": times.count, "p50_us": times.p50_ns as f64 / 1e3,
                "p99_us": times.p99_ns as f64 / 1e3, "p50_to_bare": times.p50_ns as f64 / bare })
    });
    let counts = found.status.counts;
    json!({ "provider": provider, "rows": rows, "evicted": counts.evicted, "evicted_clean": counts.evicted_clean,
            "waited_for_room": counts.waited_for_room, "table_bytes": found.status.table_bytes })
}
