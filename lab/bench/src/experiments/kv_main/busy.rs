//! The store in its default configuration while other programs compute: the default blocking client over verbs,
//! alternating with a memcached client over the TCP listener of the same server. No thread is pinned, and both clients
//! use their default wait strategies.

use super::super::ExperimentError;
use super::super::env::{ExperimentEnv, Progress};
use super::super::server::ServerProcess;
use super::STOP_PATIENCE;
use crate::measure::{LatencyRecorder, PairedRatio};
use crate::peer::{ChildProcess, PeerError, PeerLauncher};
use crate::report::{Cell, Column, Figure, Report, Table};
use farcall::kv::MemcachedClient;
use farcall::kv::{KvClient, Write};
use farcall::rpc::ClientOptions;
use farcall::select::Selection;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Minimum number of pairs, with which their interval has a confidence of 95 %.
const PAIRS_MIN: u32 = 20;
/// Time for the scheduler to distribute the programs over the cores.
const SETTLE: Duration = Duration::from_millis(300);
/// Timeout of one call, independent of the number of programs.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const KEY: &[u8] = b"busy";
const VALUE: [u8; 32] = *b"a value of thirty-two bytes here";

const NOTE: &str = "Client and server wait as they come and are not pinned. A ratio above 1 says that calls over verbs \
                    are faster than the TCP listener of the same server; for latencies, below 1.";

/// Plan of the experiment.
#[derive(Debug, Clone)]
pub struct KvBusyPlan {
    /// Durations and repetitions.
    pub env: ExperimentEnv,
    /// The RNIC of both ends.
    pub nic: Selection,
    /// Numbers of programs that compute concurrently.
    pub programs: Vec<u32>,
}

impl KvBusyPlan {
    fn pairs(&self) -> u32 {
        self.env.repetitions.max(PAIRS_MIN)
    }
}

/// Paths to the store.
#[derive(Clone, Copy)]
enum Way {
    Rpc,
    Tcp,
}

names! { Way { Rpc => "RPC, default client", Tcp => "TCP listener" } }

/// Results of sequential GETs during one interval.
#[derive(Clone, Copy)]
struct Sample {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

struct Clients {
    rpc: KvClient,
    tcp: MemcachedClient,
}

/// Measures with each number of programs.
///
/// # Errors
/// Returns an error if the server cannot be started or reached, or if a call fails.
pub fn run(plan: &KvBusyPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let mut conditions = plan.env.conditions();
    conditions.replace("pinning", "none");
    conditions
        .replace("repetitions", format!("{} pairs of {:?} each, in turns", plan.pairs(), plan.env.duration));
    conditions.push("calls", format!("GET of {} bytes, one at a time", VALUE.len()));
    let mut report =
        plan.env.report("The key-value service next to programs that compute", conditions, plan.nic.provider);
    report.note(NOTE);
    let server = start_server(plan)?;
    let mut clients = Clients::connect(plan, &server)?;
    let (mut figures, mut ratios) = (figures_table(), ratios_table());
    for programs in plan.programs.iter().copied() {
        let Some(pairs) = measure(plan, programs, &mut clients, &mut report, progress)? else { break };
        for (way, samples) in
            [(Way::Rpc, each(&pairs, |pair| pair.0)), (Way::Tcp, each(&pairs, |pair| pair.1))]
        {
            figures.push_figures(
                vec![u64::from(programs).into(), way.to_string().into()],
                &FIGURES,
                &samples,
            );
        }
        ratios.push(ratios_row(programs, &pairs));
    }
    report.tables.extend([figures, ratios]);
    drop(clients);
    server.end(STOP_PATIENCE, &mut report);
    Ok(report)
}

fn start_server(plan: &KvBusyPlan) -> Result<ServerProcess, ExperimentError> {
    let args = ["--json", "kv", "serve", "--tcp", "127.0.0.1:0", "--rpc", "127.0.0.1:0"];
    let args = args.map(str::to_owned).into_iter().chain(plan.nic.args());
    Ok(ServerProcess::start(&PeerLauncher::with_args(args), plan.env.all_cores())?)
}

impl Clients {
    fn connect(plan: &KvBusyPlan, server: &ServerProcess) -> Result<Self, ExperimentError> {
        let ready = server.ready();
        let (Some(rpc), Some(tcp)) = (&ready.rpc, ready.tcp.first()) else {
            return Err("the server does not say where it serves".into());
        };
        let options = ClientOptions::default().call_timeout(CALL_TIMEOUT);
        let mut rpc = plan.nic.connect(|nic| KvClient::connect(nic, rpc, &options), |_| false)?;
        let tcp = MemcachedClient::connect_tcp(tcp.parse::<SocketAddr>()?)?;
        tcp.set_timeout(Some(CALL_TIMEOUT))?;
        rpc.put(KEY, Write::of(&VALUE))?;
        Ok(Self { rpc, tcp })
    }

    fn get(&mut self, way: Way) -> Result<(), ExperimentError> {
        let is_right = match way {
            Way::Rpc => self.rpc.get(KEY)?.is_some_and(|item| item.value == VALUE),
            Way::Tcp => self.tcp.get(KEY)?.is_some_and(|item| item.bytes == VALUE),
        };
        if is_right {
            Ok(())
        } else {
            Err(format!("{way}: GET returned another value than was stored").into())
        }
    }

    fn sample(&mut self, way: Way, duration: Duration) -> Result<Sample, ExperimentError> {
        let (mut latencies, start) = (LatencyRecorder::default(), Instant::now());
        let mut last = start;
        while last - start < duration {
            self.get(way)?;
            let now = Instant::now();
            latencies.record_ns((now - last).as_nanos() as u64);
            last = now;
        }
        let summary = latencies.summary();
        Ok(Sample {
            per_second: summary.count as f64 / (last - start).as_secs_f64(),
            p50_us: summary.p50_ns as f64 / 1e3,
            p99_us: summary.p99_ns as f64 / 1e3,
        })
    }
}

/// Measures all pairs while `programs` programs compute; `None` if interrupted.
fn measure(
    plan: &KvBusyPlan,
    programs: u32,
    clients: &mut Clients,
    report: &mut Report,
    progress: Progress<'_>,
) -> Result<Option<Vec<(Sample, Sample)>>, ExperimentError> {
    let _programs = start_programs(programs, plan.env.all_cores())?;
    thread::sleep(SETTLE);
    let (mut pairs, duration) = (Vec::new(), plan.env.duration);
    for pair in 1..=plan.pairs() {
        let what = format!("next to {programs} programs ({pair} of {})", plan.pairs());
        if !report.goes_on(progress(&what)) {
            return Ok(None);
        }
        // Each path is measured first in every other pair.
        pairs.push(if pair % 2 == 0 {
            let rpc = clients.sample(Way::Rpc, duration)?;
            (rpc, clients.sample(Way::Tcp, duration)?)
        } else {
            let tcp = clients.sample(Way::Tcp, duration)?;
            (clients.sample(Way::Rpc, duration)?, tcp)
        });
    }
    Ok(Some(pairs))
}

/// Starts programs that compute until they are dropped.
fn start_programs(count: u32, cores: &[usize]) -> Result<Vec<ChildProcess>, PeerError> {
    let start = |_| {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        ChildProcess::start(&mut command, cores, &[])
    };
    (0..count).map(start).collect()
}

const FIGURES: [Figure<Sample>; 3] = [
    (Column::new("per_second", "GETs/s"), |sample| sample.per_second),
    (Column::with_decimals("p50_us", "p50 µs", 1), |sample| sample.p50_us),
    (Column::with_decimals("p99_us", "p99 µs", 1), |sample| sample.p99_us),
];

fn figures_table() -> Table {
    let lead = vec![Column::new("programs", "programs"), Column::new("client", "client")];
    Table::of_figures("GETs by each client", lead, &FIGURES)
}

fn ratios_table() -> Table {
    let columns = vec![
        Column::new("programs", "programs"),
        Column::new("pairs", "pairs"),
        Column::with_decimals("rate_ratio", "GETs/s\nratio", 2),
        Column::with_decimals("rate_ratio_low", "from", 2),
        Column::with_decimals("rate_ratio_high", "to", 2),
        Column::with_decimals("p99_ratio", "p99\nratio", 2),
        Column::with_decimals("p99_ratio_low", "from", 2),
        Column::with_decimals("p99_ratio_high", "to", 2),
        Column::with_decimals("confidence_percent", "confidence %", 1),
    ];
    Table::new("RPC over TCP: medians of the ratios of pairs, with intervals", columns)
}

fn ratios_row(programs: u32, pairs: &[(Sample, Sample)]) -> Vec<Cell> {
    let ratio = |figure: fn(&Sample) -> f64| {
        PairedRatio::of(pairs.iter().map(|(rpc, tcp)| (figure(rpc), figure(tcp))))
    };
    let (rates, latencies) = (ratio(|sample| sample.per_second), ratio(|sample| sample.p99_us));
    let cells = |ratio: Option<PairedRatio>| {
        ratio.map_or([Cell::None, Cell::None, Cell::None], |it| [it.median, it.low, it.high].map(Cell::from))
    };
    let mut row: Vec<Cell> = vec![u64::from(programs).into(), (pairs.len() as u64).into()];
    row.extend(cells(rates));
    row.extend(cells(latencies));
    row.push(rates.map(|it| it.confidence_percent).into());
    row
}

fn each(pairs: &[(Sample, Sample)], one: impl Fn(&(Sample, Sample)) -> Sample) -> Vec<Sample> {
    pairs.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_the_two_ways_pair_by_pair() {
        let sample = |per_second: f64| Sample { per_second, p50_us: 1.0, p99_us: 1e6 / per_second };
        let pairs: Vec<_> =
            (1..=20).map(|pair| (sample(f64::from(2 * pair)), sample(f64::from(pair)))).collect();
        let row = ratios_row(8, &pairs);
        let expected: [Cell; 3] = [8_u64.into(), 20_u64.into(), 2.0.into()];
        assert_eq!(row[..3], expected);
        assert_eq!(row[5], Cell::Number(0.5));
        let mut table = ratios_table();
        table.push(row);
    }
}
