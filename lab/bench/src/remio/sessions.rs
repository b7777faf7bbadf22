//! Requests of several threads through sessions.

use super::admission::{Seen, Watched};
use super::chooser::Chooser;
use super::memory_server;
use super::pages::Written;
use super::sample::Sample;
use super::task::{LocalMemory, Polling, RemioTask};
use super::user::{Inboxes, OVER, RECORDED, SharedContext, User, UserSample, WARM_UP};
use crate::experiments::ExperimentError;
use crate::measure::{LatencyRecorder, cpu_time, pin_thread};
use crate::peer::{PairPlan, Peer};
use farcall::select::SelectedNic;
use farcall_drive::{Driver, Stop};
use farcall_io::{Attached, Counts, PollCounts, Poller, PollerConfig, Session};
use farcall_link::Region;
use farcall_verbs::{Access, MonotonicClock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;

/// Sessions with all memory servers, and the pollers of their completions.
struct Ends {
    sessions: Vec<Session<Inboxes>>,
    pollers: Vec<Poller<Inboxes>>,
    attached: Vec<Attached>,
    seen: Vec<Arc<Seen>>,
    inboxes: Inboxes,
}

/// Result of a polling thread: its counters and its context switches.
type Looked = Result<(PollCounts, u64), ExperimentError>;

pub(super) fn measure(
    chosen: &SelectedNic,
    task: &RemioTask,
    plan: &PairPlan,
    seed: u64,
    servers: &[Peer],
) -> Result<Sample, ExperimentError> {
    let Ends { sessions, mut pollers, attached, seen, inboxes } = connect(chosen, task, servers)?;
    let pages = task.pages(seed);
    let written: Vec<Written> = servers.iter().map(|_| Written::none_of(&pages)).collect();
    let (phase, cursor) = (AtomicU8::new(WARM_UP), AtomicU64::new(0));
    let context =
        SharedContext { task, pages, written: &written, seen: &seen, phase: &phase, inboxes: &inboxes };
    let mut inline = if task.polling == Polling::Inline { pollers.pop() } else { None };
    let stop = Stop::new()?;
    thread::scope(|scope| {
        let lookers: Vec<_> = pollers
            .into_iter()
            .enumerate()
            .map(|(number, poller)| {
                let stop = stop.clone();
                let core = [plan.server_core, plan.client_core][number % 2];
                scope.spawn(move || look(poller, task.polling, core, stop))
            })
            .collect();
        let users: Vec<_> = (0..task.threads as usize)
            .map(|number| {
                let seed = seed.wrapping_add(number as u64);
                let chooser = Chooser::new(task.workload, pages, seed, &cursor);
                let user = User::new(number, &context, &sessions, &attached, chooser, inline.take());
                // The memory server's core is free, because the memory server sleeps.
                let core = [plan.client_core, plan.server_core][number % 2];
                scope.spawn(move || {
                    pin_thread(core)?;
                    user.run()
                })
            })
            .collect();
        thread::sleep(plan.warm_up);
        // Errors are handled after the threads have ended.
        let before = cpu_time(std::process::id());
        phase.store(RECORDED, Ordering::Release);
        thread::sleep(plan.duration);
        phase.store(OVER, Ordering::Release);
        let ended: Vec<Result<_, ExperimentError>> =
            users.into_iter().map(|user| user.join().unwrap_or_else(|_| Err(PANICKED.into()))).collect();
        let after = cpu_time(std::process::id());
        // No request is outstanding any more; the sessions still exist.
        let checked =
            servers.iter().zip(&written).try_for_each(|(peer, written)| memory_server::check(peer, written));
        stop.request();
        let mut looked: Vec<Looked> = lookers
            .into_iter()
            .map(|looker| looker.join().unwrap_or_else(|_| Err(PANICKED.into())))
            .collect();
        let mut samples = Vec::new();
        for ended in ended {
            let (sample, poller) = ended?;
            looked.extend(poller.map(|poller| Ok((poller.counts(), 0))));
            samples.push(sample);
        }
        checked?;
        let cpu = after?.saturating_sub(before?);
        let requests: u64 = samples.iter().map(|sample| sample.requests).sum();
        let (polls, switches) = sum_of_looks(looked)?;
        Ok(Sample {
            per_second: samples.iter().map(|sample| sample.per_second).sum(),
            latency: all_latencies(&samples).summary(),
            cpu_us_per_request: cpu.as_secs_f64() * 1e6 / requests as f64,
            counts: sum_of_counts(&sessions)?,
            polls,
            switches,
            in_flight: seen.iter().map(|seen| seen.in_flight()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1)),
        })
    })
}

const PANICKED: &str = "a thread of the measurement panicked; its message is on standard error";

fn connect(chosen: &SelectedNic, task: &RemioTask, servers: &[Peer]) -> Result<Ends, ExperimentError> {
    let nic = chosen.nic.clone();
    let config = task.config();
    let sessions_each = servers.len().div_ceil(task.pollers as usize);
    let completions = sessions_each as u32 * config.connections as u32 * config.send_depth;
    let looks = PollerConfig { completions, max_poll_wc: task.polling.max_poll_wc() };
    let pollers = (0..task.pollers).map(|_| Poller::new(&nic, looks));
    let mut pollers = pollers.collect::<farcall_verbs::Result<Vec<_>>>()?;
    let region = match task.memory {
        LocalMemory::RegisteredOnce => {
            let len_bytes = task.outstanding() * task.pages(0).len_bytes;
            Some(Arc::new(Region::alloc(&**nic.pd(), len_bytes, Access::LOCAL_WRITE)?))
        }
        LocalMemory::Copied | LocalMemory::RegisteredEach => None,
    };
    let inboxes = Inboxes::new(task.threads);
    let (mut sessions, mut seen) = (Vec::new(), Vec::new());
    for (number, peer) in servers.iter().enumerate() {
        let watched: Arc<Seen> = Arc::default();
        let admission = Watched::new(task.window_bytes, Arc::clone(&watched));
        let session = pollers[number % task.pollers as usize].open(config, admission, inboxes.clone())?;
        memory_server::connect_to(peer, |card| {
            session.connect(&card.qps, &[card.grant])?;
            Ok(session.infos())
        })?;
        sessions.push(session);
        seen.push(watched);
    }
    let attached =
        region.iter().flat_map(|region| sessions.iter().map(|session| session.attach(Arc::clone(region))));
    let attached = attached.collect();
    Ok(Ends { sessions, pollers, attached, seen, inboxes })
}

/// Polls for completions until it is stopped.
fn look(mut poller: Poller<Inboxes>, polling: Polling, core: usize, stop: Stop) -> Looked {
    pin_thread(core)?;
    Driver::new(MonotonicClock::new(), polling.waiting(), stop).run(&mut poller)?;
    Ok((poller.counts(), switches_of_this_thread()?))
}

/// Returns the context switches of the calling thread since its start, voluntary and involuntary ones.
fn switches_of_this_thread() -> Result<u64, ExperimentError> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let of = |line: &str| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok();
    Ok(status.lines().filter_map(of).sum())
}

fn sum_of_looks(looked: Vec<Looked>) -> Looked {
    let (mut all, mut switches) = (PollCounts::default(), 0);
    for looked in looked {
        let (counts, more) = looked?;
        all.polls += counts.polls;
        all.empty_polls += counts.empty_polls;
        all.completions += counts.completions;
        all.sleeps += counts.sleeps;
        switches += more;
    }
    Ok((all, switches))
}

/// Returns the sum of the counters of all sessions. Each request was one work request, or was merged into another's.
fn sum_of_counts(sessions: &[Session<Inboxes>]) -> Result<Counts, ExperimentError> {
    let mut all = Counts::default();
    for session in sessions {
        let of = session.counts();
        all.reads += of.reads;
        all.writes += of.writes;
        all.read_work += of.read_work;
        all.write_work += of.write_work;
        all.merged += of.merged;
        all.chained += of.chained;
        all.doorbells += of.doorbells;
        all.window_stalls += of.window_stalls;
        all.pool_stalls += of.pool_stalls;
        all.overlapping += of.overlapping;
    }
    let work = all.read_work + all.write_work;
    if work + all.merged == all.reads + all.writes && work == all.doorbells + all.chained {
        return Ok(all);
    }
    Err(format!("the counts of the sessions do not add up: {all:?}").into())
}

fn all_latencies(samples: &[UserSample]) -> LatencyRecorder {
    let mut all = LatencyRecorder::default();
    samples.iter().for_each(|sample| all.add(&sample.latencies));
    all
}
