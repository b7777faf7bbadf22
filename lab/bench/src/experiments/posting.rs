//! Cost of posting and waiting on a device: inlining, signalling, and sleeping instead of polling.

use super::env::{ExperimentEnv, Progress};
use super::subject::{Sample, Subject};
use crate::measure::Spread;
use crate::report::Report;
use crate::rnic::{Inlining, Operation, RnicError, RnicTask, RnicTest, Tuning};
use farcall::rpc::tune::Posting;
use farcall::select::SelectedNic;
use farcall_link::Transport;
use std::fmt;

/// Minimum share of the best rate that counts as equally fast.
const AS_GOOD: f64 = 0.97;
const INLINE_LENS_BYTES: [u32; 3] = [64, 128, 256];
const SIGNAL_EVERY: [u16; 6] = [1, 2, 4, 8, 16, 32];
/// Outstanding requests; a multiple of each signalling interval.
const WINDOW: u32 = 64;

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    /// Inlined WRITEs of the given length in bytes.
    Inline(u32),
    /// WRITEs of the given length in bytes that the device fetches from memory.
    Fetched(u32),
    /// Short WRITEs with the given signalling interval.
    Signalled(u16),
    /// Round trips of SENDs, with both ends polling.
    Polled,
    /// The same, with both ends sleeping.
    Slept,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline(len_bytes) => write!(f, "WRITEs of {len_bytes} B, inline"),
            Self::Fetched(len_bytes) => write!(f, "WRITEs of {len_bytes} B, not inline"),
            Self::Signalled(every) => write!(f, "WRITEs, one in {every} signalled"),
            Self::Polled => f.write_str("SENDs between two that poll"),
            Self::Slept => f.write_str("SENDs between two that sleep"),
        }
    }
}

impl Probe {
    fn all() -> impl Iterator<Item = Self> {
        let inline = INLINE_LENS_BYTES.into_iter().flat_map(|len| [Self::Inline(len), Self::Fetched(len)]);
        inline.chain(SIGNAL_EVERY.map(Self::Signalled)).chain([Self::Polled, Self::Slept])
    }

    fn task(self) -> RnicTask {
        let writes = |len_bytes: u32, signal_every: u16, inlining| {
            let signal_every = signal_every.into();
            let tuning = Tuning { window: WINDOW, chain: 1, signal_every, inlining, ..Tuning::RATE };
            let test = RnicTest::Throughput;
            let len_bytes = len_bytes as usize;
            RnicTask { operation: Operation::Write, transport: Transport::Rc, test, len_bytes, tuning }
        };
        let send = |sleeps| {
            let tuning = Tuning { sleeps, ..Tuning::LATENCY };
            RnicTask::latency(Operation::Send, Transport::Rc, 64, tuning)
        };
        match self {
            Self::Inline(len_bytes) => writes(len_bytes, 16, Inlining::UpTo(len_bytes)),
            Self::Fetched(len_bytes) => writes(len_bytes, 16, Inlining::UpTo(0)),
            Self::Signalled(every) => writes(64, every, Inlining::Auto),
            Self::Polled => send(false),
            Self::Slept => send(true),
        }
    }
}

/// Takes all measurements, interleaved. Returns `None` if `progress` ended them early.
///
/// # Errors
/// Returns an error if a measurement is not possible.
pub(super) fn measure(
    chosen: &SelectedNic,
    env: &ExperimentEnv,
    idle_turn_ns: u64,
    report: &mut Report,
    progress: Progress<'_>,
) -> Result<Option<Posting>, RnicError> {
    // There are many small measurements, and only samples taken close together are compared.
    let env = env.shortened(4);
    let problems_before = report.problems.len();
    let probes = Probe::all().map(|probe| (probe, Subject::from(probe.task())));
    let sampled = env.sample(
        probes,
        report,
        progress,
        |(probe, _)| probe.to_string(),
        |(_, subject), _, report| {
            match subject.measure(chosen, &env, None, report) {
                // The device does not inline this length, so there is nothing to compare.
                Err(RnicError::Illegal(_)) => Ok(None),
                measured => measured,
            }
        },
    )?;
    let median = |probe: Probe, figure: fn(&Sample) -> f64| {
        let samples = sampled.iter().find(|it| it.subject.0 == probe).map(|it| &it.samples);
        Spread::of(samples.into_iter().flatten().map(figure)).map(|spread| spread.median)
    };
    let rate = |probe| median(probe, |sample| sample.per_second);
    let one_way_us = |probe| median(probe, |sample| sample.p50_us);
    let (Some(polled), Some(slept)) = (one_way_us(Probe::Polled), one_way_us(Probe::Slept)) else {
        return Ok(None);
    };
    // An early end is a problem.
    Ok((report.problems.len() == problems_before).then(|| Posting {
        inline_max_bytes: inline_limit(|len| Some((rate(Probe::Inline(len))?, rate(Probe::Fetched(len))?))),
        signal_every: rarest_needed(|every| rate(Probe::Signalled(every))),
        idle_turn_ns,
        wake_ns: ((slept - polled) * 1e3).max(1.0) as u64,
    }))
}

/// Returns the largest length up to which inlining is not slower at any length. `rates` returns the rates with and
/// without inlining.
fn inline_limit(rates: impl Fn(u32) -> Option<(f64, f64)>) -> u32 {
    let pays = |len: &u32| rates(*len).is_some_and(|(inline, fetched)| inline >= AS_GOOD * fetched);
    INLINE_LENS_BYTES.into_iter().take_while(pays).last().unwrap_or(0)
}

/// Returns the smallest interval whose rate is as good as the best: the smaller it is, the sooner slots of the send
/// queue are free again.
fn rarest_needed(rate: impl Fn(u16) -> Option<f64>) -> u16 {
    let best = SIGNAL_EVERY.into_iter().filter_map(&rate).fold(0.0, f64::max);
    let is_as_good = |every: &u16| rate(*every).is_some_and(|rate| rate >= AS_GOOD * best);
    SIGNAL_EVERY.into_iter().find(is_as_good).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_inlining_is_where_it_begins_to_cost() {
        let limit =
            |costs_from: u32| inline_limit(|len| Some((if len < costs_from { 10.0 } else { 9.0 }, 10.0)));
        assert_eq!([64, 65, 129, 257].map(limit), [0, 64, 128, 256]);
        // A device that inlines less, and one that inlines nothing.
        assert_eq!(inline_limit(|len| (len <= 128).then_some((9.9, 10.0))), 128);
        assert_eq!(inline_limit(|_| None), 0);
    }

    #[test]
    fn the_interval_is_the_smallest_that_costs_next_to_nothing() {
        assert_eq!(
            rarest_needed(|every| Some(if every < 8 { 5.0 } else { 10.0 - 1.0 / f64::from(every) })),
            8
        );
        assert_eq!(rarest_needed(|_| Some(10.0)), 1);
        assert_eq!(rarest_needed(|_| None), 1);
    }

    #[test]
    fn lists_distinct_probes_with_whole_signal_intervals() {
        let probes: Vec<Probe> = Probe::all().collect();
        assert!(probes.iter().enumerate().all(|(at, probe)| !probes[..at].contains(probe)));
        assert!(SIGNAL_EVERY.iter().all(|every| WINDOW.is_multiple_of((*every).into())));
    }
}
