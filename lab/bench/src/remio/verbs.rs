//! The limit: the same requests posted directly on a queue pair. The same bytes are generated and checked.

use super::chooser::Chooser;
use super::memory_server::{self, MemoryServerInfo};
use super::pages::{Pages, Version, Written, check_read};
use super::sample::Sample;
use super::task::VerbsTask;
use crate::experiments::ExperimentError;
use crate::measure::{LatencyRecorder, cpu_time, pin_thread};
use crate::peer::{PairPlan, Peer};
use farcall::select::SelectedNic;
use farcall_io::{Counts, PollCounts};
use farcall_link::{
    Connection, LocalSlice, Operation, QpSizes, Region, RegionId, Remote, RemoteRegion, Transport,
    WorkRequest, send_tag,
};
use farcall_verbs::{Access, CqInitAttr, RawCq, Wc};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Time after which requests that have not completed count as lost.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// An outstanding work request.
#[derive(Clone, Copy)]
struct UnderWay {
    page: u64,
    reads: bool,
    was_written: bool,
    start: Instant,
}

struct Line<'a> {
    connection: Connection,
    cq: Box<dyn RawCq>,
    grant: RemoteRegion,
    local: RegionId,
    memory: Arc<Region>,
    pages: Pages,
    written: &'a Written,
    chooser: Chooser<'a>,
    /// Indexed by slot in `memory`; the tag of a work request is its slot.
    under_way: Vec<Option<UnderWay>>,
    unused: Vec<usize>,
    counts: Counts,
    polls: PollCounts,
}

pub(super) fn measure(
    chosen: &SelectedNic,
    task: &VerbsTask,
    plan: &PairPlan,
    seed: u64,
    server: &Peer,
) -> Result<Sample, ExperimentError> {
    pin_thread(plan.client_core)?;
    let pages = task.pages(seed);
    let (written, cursor) = (Written::none_of(&pages), AtomicU64::new(0));
    let chooser = Chooser::new(task.workload, pages, seed, &cursor);
    let mut line = Line::connect(chosen, task, pages, &written, chooser, server)?;
    let mut latencies = LatencyRecorder::default();
    let warm_until = Instant::now() + plan.warm_up;
    while Instant::now() < warm_until {
        line.turn(&mut |_| ())?;
    }
    let (start, before, mut requests) = (Instant::now(), cpu_time(std::process::id())?, 0);
    while start.elapsed() < plan.duration || requests == 0 {
        line.turn(&mut |took| {
            latencies.record_ns(took.as_nanos() as u64);
            requests += 1;
        })?;
    }
    let (elapsed, cpu) = (start.elapsed(), cpu_time(std::process::id())?.saturating_sub(before));
    while line.under_way.iter().any(Option::is_some) {
        line.look(&mut |_| ())?;
    }
    memory_server::check(server, &written)?;
    let Line { counts, polls, .. } = line;
    Ok(Sample {
        per_second: f64::from(requests) / elapsed.as_secs_f64(),
        latency: latencies.summary(),
        cpu_us_per_request: cpu.as_secs_f64() * 1e6 / f64::from(requests),
        counts,
        polls,
        switches: 0,
        // The window is always full.
        in_flight: (u64::from(task.window) * pages.len_bytes as u64, 1),
    })
}

impl<'a> Line<'a> {
    fn connect(
        chosen: &SelectedNic,
        task: &VerbsTask,
        pages: Pages,
        written: &'a Written,
        chooser: Chooser<'a>,
        server: &Peer,
    ) -> Result<Self, ExperimentError> {
        let nic = chosen.nic.clone();
        let depth = task.window + 1;
        let cq = nic.context().create_cq(&CqInitAttr { cqe: depth, channel: None })?;
        let config = QpSizes {
            send_depth: depth,
            recv_depth: 1,
            sges_max: 1,
            signal_every: 1,
            inline_max_bytes: 0,
            access: Access::LOCAL_WRITE,
        };
        let mut connection = Connection::new(&nic, Transport::Rc, &*cq, config, None)?;
        let len_bytes = task.window as usize * pages.len_bytes;
        let memory = Arc::new(Region::alloc(&**nic.pd(), len_bytes, Access::LOCAL_WRITE)?);
        let local = connection.attach(Arc::clone(&memory));
        let mut grant = None;
        memory_server::connect_to(server, |MemoryServerInfo { qps, grant: granted }| {
            connection.connect(&nic, qps.first().ok_or("the memory server has no queue pair")?)?;
            grant = Some(*granted);
            Ok(vec![connection.info(&nic)])
        })?;
        let places = task.window as usize;
        Ok(Self {
            connection,
            cq,
            grant: grant.unwrap_or_default(),
            local,
            memory,
            pages,
            written,
            chooser,
            under_way: vec![None; places],
            unused: (0..places).collect(),
            counts: Counts::default(),
            polls: PollCounts::default(),
        })
    }

    /// Posts requests until the window is full, then polls for completions.
    fn turn(&mut self, over: &mut impl FnMut(Duration)) -> Result<(), ExperimentError> {
        while let Some(place) = self.unused.pop() {
            self.post(place)?;
        }
        self.look(over)
    }

    /// Returns a page without an outstanding work request, because requests on the same page are not ordered here.
    fn page(&mut self) -> u64 {
        loop {
            let page = self.chooser.page();
            if self.under_way.iter().flatten().all(|other| other.page != page) {
                return page;
            }
        }
    }

    fn post(&mut self, place: usize) -> Result<(), ExperimentError> {
        let (page, reads) = (self.page(), self.chooser.reads());
        let Self { pages, memory, grant, .. } = self;
        let here = pages.offset(place as u64);
        let remote = Remote { grant, offset: pages.offset(page) };
        let operation = if reads {
            pages.spoil_region(memory, here);
            self.counts.reads += 1;
            self.counts.read_work += 1;
            Operation::Read(remote)
        } else {
            pages.fill_region(page, Version::Written, memory, here);
            self.counts.writes += 1;
            self.counts.write_work += 1;
            Operation::Write(remote)
        };
        self.counts.doorbells += 1;
        let local = [LocalSlice { region: self.local, offset: here, len_bytes: pages.len_bytes }];
        let request = WorkRequest { operation, local: &local, imm: None, is_signalled: true };
        let was_written = self.written.has(page);
        self.under_way[place] = Some(UnderWay { page, reads, was_written, start: Instant::now() });
        self.connection.post(&request, place as u32)?;
        Ok(())
    }

    /// Polls completions; calls `over` with the duration of each.
    fn look(&mut self, over: &mut impl FnMut(Duration)) -> Result<(), ExperimentError> {
        let mut wcs = [Wc::default(); 16];
        let count = self.cq.poll(&mut wcs)?;
        self.polls.polls += 1;
        self.polls.completions += count as u64;
        if count == 0 {
            self.polls.empty_polls += 1;
            let lost = self.under_way.iter().flatten().any(|one| one.start.elapsed() > SILENCE_MAX);
            return if lost { Err("a work request has no completion".into()) } else { Ok(()) };
        }
        for wc in &wcs[..count] {
            if !wc.status.is_success() {
                return Err(format!("a work request failed: {}", wc.status).into());
            }
            self.connection.complete(wc);
            let place = send_tag(wc) as usize;
            let Some(one) = self.under_way[place].take() else {
                return Err("a work request has two completions".into());
            };
            over(one.start.elapsed());
            if one.reads {
                let here = self.pages.offset(place as u64);
                let found = self.pages.version_in_region(one.page, &self.memory, here);
                check_read(found, one.page, one.was_written)?;
            } else {
                self.written.add(one.page);
            }
            self.unused.push(place);
        }
        Ok(())
    }
}
