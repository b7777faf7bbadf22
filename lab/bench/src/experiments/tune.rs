//! Performance of a connection on this machine, and the resulting R, F and N of RF-RPC.

use super::ExperimentError;
use super::env::{ExperimentEnv, Progress};
use super::server::ServerProcess;
use super::service::{Served, Service};
use crate::load::client_options;
use crate::measure::{Spread, pin_thread};
use crate::report::{Column, Figure, Report, Table};
use farcall::rpc::tune::{LinkProfile, Posting, ReadCost};
use farcall::select::{SelectedNic, Selection};
use farcall_rpc::tune::{Chooser, Sample, TIME_NS_MAX};
use farcall_rpc::{FetchThenReply, StaticClient};
use std::time::{Duration, Instant};

/// Timeout of a reply, after which the server counts as crashed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Sizes of results in bytes for which R and F are shown.
const RESULT_BYTES: [u32; 6] = [8, 32, 256, 512, 1_024, 3_000];
/// Durations of the handlers of those results, in nanoseconds.
const HANDLER_NS: [u64; 3] = [100, 1_000, 10_000];

const NOTE: &str = "alone: one READ, waited for. A reply is a WRITE of 64 B, without waiting, as a server thread pays \
                    it. N: so many fetches fail until READs at full rate have cost what a reply costs. L to H: the \
                    sizes from which F is chosen. R and F are those of equation 2 of the RF-RPC paper for calls that \
                    are all alike.";

/// Measures READs by size, and replies. The profile holds medians over the environment's repetitions; each repetition uses a
/// new connection and takes the shortest of many times. Returns no profile if `progress` ended the measurement early.
///
/// # Errors
/// Returns an error if a measurement is not possible.
pub fn run(
    env: &ExperimentEnv,
    chosen: &SelectedNic,
    progress: Progress<'_>,
) -> Result<(Report, Option<LinkProfile>), ExperimentError> {
    let nic = &chosen.selection;
    pin_thread(env.client_core)?;
    let mut conditions = env.conditions();
    conditions.push("provider", format!("{} (RC)", nic.provider));
    conditions.push("threads", "1 server thread, 1 client thread, 1 connection");
    let mut report = env.report("Capabilities of a connection", conditions, nic.provider);
    report.note(NOTE);
    let service = Service { nic: nic.clone(), what: Served::Echo { threads: 1 } };
    let server = ServerProcess::serve(env, &service)?;
    let title = |_: &()| "READs by size and replies".to_owned();
    let taken =
        env.sample([()], &mut report, progress, title, |(), _, _| measure(env, nic, &server).map(Some))?;
    server.end(PATIENCE, &mut report);
    let samples = taken.into_iter().flat_map(|taken| taken.samples);
    let (profiles, mut idle_turns_ns): (Vec<LinkProfile>, Vec<u64>) = samples.unzip();
    if profiles.len() < env.repetitions as usize {
        return Ok((report, None));
    }
    idle_turns_ns.sort_unstable();
    let idle_turn_ns = idle_turns_ns[idle_turns_ns.len() / 2];
    let Some(profile) = with_posting(medians(&profiles)?, chosen, env, idle_turn_ns, &mut report, progress)?
    else {
        return Ok((report, None));
    };
    let ranges = format!(
        "reply {} ns, N {}, L {} B, H {} B",
        profile.reply_ns(),
        profile.retries_bound(),
        profile.low_bytes(),
        profile.high_bytes()
    );
    report.conditions.push("found", ranges);
    if let Some(Posting { inline_max_bytes, signal_every, idle_turn_ns, wake_ns }) = profile.posting() {
        let found = format!(
            "inline up to {inline_max_bytes} B, one WRITE in {signal_every} signalled; a turn in vain takes \
             {idle_turn_ns} ns, being woken {wake_ns} ns more than polling"
        );
        report.conditions.push("posting", found);
    }
    report.tables.push(costs(&profiles));
    report.tables.push(choices(&profile));
    Ok((report, Some(profile)))
}

/// Number of empty polls of which the mean is taken.
const IDLE_TURNS: u32 = 10_000;

/// Probes one connection for the environment's duration, at least once. Also returns the duration of an empty poll in
/// nanoseconds.
fn measure(
    env: &ExperimentEnv,
    nic: &Selection,
    server: &ServerProcess,
) -> Result<(LinkProfile, u64), ExperimentError> {
    let address =
        server.ready().rpc.clone().ok_or("the server process did not say where RPC clients connect")?;
    let options = client_options(1, PATIENCE, None).probe(false);
    let mut client = nic.connect(
        |provider| StaticClient::<FetchThenReply>::connect(provider, address.clone(), options.clone()),
        |_| false,
    )?;
    let profile = client.measure(env.duration).ok_or("the connection broke while it was measured")?;
    let start = Instant::now();
    (0..IDLE_TURNS).for_each(|_| client.progress());
    let idle_turn_ns = start.elapsed().as_nanos() as u64 / u64::from(IDLE_TURNS);
    Ok((profile, idle_turn_ns.clamp(1, TIME_NS_MAX)))
}

/// Returns the profile with the costs of posting and waiting. `None` if `progress` ended the measurement early.
#[cfg(feature = "verbs")]
fn with_posting(
    profile: LinkProfile,
    chosen: &SelectedNic,
    env: &ExperimentEnv,
    idle_turn_ns: u64,
    report: &mut Report,
    progress: Progress<'_>,
) -> Result<Option<LinkProfile>, ExperimentError> {
    let posting = super::posting::measure(chosen, env, idle_turn_ns, report, progress)?;
    Ok(posting.map(|posting| profile.with_posting(posting)).transpose()?)
}

/// Returns the profile unchanged: without the feature that measures verbs it has no posting costs.
#[cfg(not(feature = "verbs"))]
fn with_posting(
    profile: LinkProfile,
    _: &SelectedNic,
    _: &ExperimentEnv,
    _: u64,
    _: &mut Report,
    _: Progress<'_>,
) -> Result<Option<LinkProfile>, ExperimentError> {
    Ok(Some(profile))
}

/// Returns the profile of the medians.
fn medians(profiles: &[LinkProfile]) -> Result<LinkProfile, ExperimentError> {
    let median = |figure: &dyn Fn(&LinkProfile) -> u64| {
        let mut values: Vec<u64> = profiles.iter().map(figure).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    let sizes = profiles.first().ok_or("nothing was measured")?.reads();
    let reads = sizes.iter().enumerate().map(|(at, size)| ReadCost {
        len_bytes: size.len_bytes,
        alone_ns: median(&|profile| profile.reads()[at].alone_ns),
        each_ns: median(&|profile| profile.reads()[at].each_ns),
    });
    Ok(LinkProfile::new(reads.collect(), median(&LinkProfile::reply_ns))?)
}

fn costs(profiles: &[LinkProfile]) -> Table {
    let figures: [Figure<ReadCost>; 3] = [
        (Column::with_decimals("alone_us", "alone µs", 3), |read| read.alone_ns as f64 / 1e3),
        (Column::with_decimals("million_per_second", "million/s", 2), |read| 1e3 / read.each_ns as f64),
        (Column::median("gib_per_second", "GiB/s", 2), |read| {
            f64::from(read.len_bytes) / read.each_ns as f64 * 1e9 / f64::from(1 << 30)
        }),
    ];
    let lead = vec![Column::new("what", "what"), Column::new("len_bytes", "bytes")];
    let mut table = Table::of_figures("Costs", lead, &figures);
    let sizes = profiles.first().map_or(&[][..], LinkProfile::reads);
    for (at, size) in sizes.iter().enumerate() {
        let samples: Vec<ReadCost> = profiles.iter().map(|profile| profile.reads()[at]).collect();
        let lead = vec!["READ (in-bound)".into(), u64::from(size.len_bytes).into()];
        table.push_figures(lead, &figures, &samples);
    }
    let replies = Spread::of(profiles.iter().map(|profile| 1e3 / profile.reply_ns() as f64));
    let none = || f64::NAN.into();
    table.push(vec!["reply (out-bound)".into(), 64_u64.into(), none(), replies.into(), none()]);
    table
}

fn choices(profile: &LinkProfile) -> Table {
    let columns = vec![
        Column::new("result_bytes", "result bytes"),
        Column::new("handler_ns", "handler ns"),
        Column::new("r", "R"),
        Column::new("f_bytes", "F"),
    ];
    let mut table = Table::new("Conclusions", columns);
    let mut chooser = Chooser::new(1);
    for result_bytes in RESULT_BYTES {
        for time_ns in HANDLER_NS {
            let choice = chooser.choose(profile, &[Sample { result_bytes, time_ns }]);
            let cells =
                [u64::from(result_bytes), time_ns, choice.retries_max.into(), choice.fetch_bytes.into()];
            table.push(cells.map(Into::into).to_vec());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_that_of_the_medians() {
        let profile = |alone_ns, each_ns, reply_ns| {
            LinkProfile::new(vec![ReadCost { len_bytes: 64, alone_ns, each_ns }], reply_ns).unwrap()
        };
        let taken = [profile(10, 9, 70), profile(30, 7, 50), profile(20, 8, 60)];
        assert_eq!(medians(&taken).unwrap(), profile(20, 8, 60));
        assert!(medians(&[]).is_err());
    }
}
