//! Advice on the preset for calls of a given shape on this machine, with the reasons.

use super::ExperimentError;
use super::calls::{self, CallSample, CallTask, Callee, Job, PATIENCE, SharedContext};
use super::env::{ExperimentEnv, Progress};
use super::preset_ranking::{RankedPreset, ranked};
use crate::load::AUTO;
use crate::measure::{Spread, contention_warning, pin_thread};
use crate::report::{Cell, Column, Figure, Report, Table};
use farcall::rpc::tune::LinkProfile;
use farcall::select::{ProviderChoice, SelectedNic};
use farcall_link::{Nic, PRESETS, Plan, Preset, RequestPath, ResponsePath};
use farcall_rpc::wire::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, message_bytes};
use farcall_verbs::with_sources;

const SOFTWARE_NOTE: &str = "This was measured over shared memory: a verb is a few memory accesses of a processor of \
                             this host. The advice does not carry over to an RNIC; there measure again, with \
                             --provider ibv.";
const CPU_NOTE: &str = "Both ends poll: their processors are busy whether calls come or not, so the µs of CPU a call \
                        tell which end is the busier one only together with calls/s.";

const NO_ADVICE_NOTE: &str = "No preset is recommended: threads of other programs competed for the processors, and \
                              chance decided which preset was measured while they ran.";

/// Plan of the experiment.
pub struct AdvisePlan {
    /// Cores, durations, repetitions.
    pub env: ExperimentEnv,
    /// The RNIC of both ends.
    pub chosen: SelectedNic,
    /// Profile with which connections start instead of a probe.
    pub profile: Option<LinkProfile>,
    /// Shape of the calls.
    pub job: Job,
    /// Number of connections, all run by one client thread.
    pub clients: u32,
    /// Outstanding calls on each connection.
    pub window: u32,
}

/// A preset, or [`AUTO`], with its measurements or the reason why it could not be measured.
struct Candidate {
    preset: &'static str,
    samples: Vec<CallSample>,
    failed: Option<String>,
}

/// Measures all suitable presets and explains the choice.
///
/// # Errors
/// Returns an error if nothing can be measured.
pub fn run(plan: &AdvisePlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let AdvisePlan { env, chosen, job, .. } = plan;
    let nic = &chosen.selection;
    pin_thread(env.client_core)?;
    let mut conditions = env.conditions();
    conditions.push("provider", nic.provider.to_string());
    conditions.push("calls", job.to_string());
    let threads = format!("1 server thread, 1 client thread, {} connection(s)", plan.clients);
    conditions.push("threads", format!("{threads}, {} call(s) in flight on each", plan.window));
    let mut report = env.report("Advice on the preset of such calls", conditions, nic.provider);
    contention_warning().into_iter().for_each(|warning| report.warn(warning));
    let (fitting, unfit) = candidates(&chosen.nic.clone(), job);
    let server = calls::start_echo(env, nic, 1)?;
    let context = SharedContext { env, nic, profile: plan.profile.as_ref(), server: &server };
    let mut taken: Vec<Candidate> = fitting
        .into_iter()
        .chain([AUTO])
        .map(|preset| Candidate { preset, samples: Vec::new(), failed: None })
        .collect();
    env.interleave(
        &mut taken,
        &mut report,
        progress,
        |candidate| candidate.preset.to_owned(),
        |candidate, _, _| {
            candidate.measure(plan, &context);
            Ok::<(), ExperimentError>(())
        },
    )?;
    server.end(PATIENCE, &mut report);
    // Other programs may have started since the first sample.
    if report.warnings.is_empty() {
        contention_warning().into_iter().for_each(|warning| report.warn(warning));
    }
    report.tables.push(measured(&taken));
    let failed = taken.iter().filter_map(|it| Some((it.preset, it.failed.clone()?)));
    let left_out: Vec<(&str, String)> = unfit.into_iter().chain(failed).collect();
    explain(&taken, &left_out, &mut report);
    if nic.provider != ProviderChoice::Ibv {
        report.note(SOFTWARE_NOTE);
    }
    Ok(report)
}

impl Candidate {
    /// Takes a sample, unless an earlier one failed. A preset that the device does not support is left out; the others
    /// continue.
    fn measure(&mut self, plan: &AdvisePlan, context: &SharedContext<'_>) {
        let AdvisePlan { job, clients, window, .. } = *plan;
        let callee = Callee::Job(job);
        let task = CallTask { callee, connections: clients, window, ..CallTask::small(self.preset) };
        if self.failed.is_none() {
            match calls::measure(&task, context) {
                Ok(sample) => self.samples.push(sample),
                Err(error) => self.failed = Some(with_sources(&*error)),
            }
        }
    }

    /// Returns the results for the comparison; none if any sample failed.
    fn ranked_preset(&self) -> RankedPreset {
        let samples = if self.failed.is_none() { &self.samples[..] } else { &[] };
        RankedPreset::of_calls(self.preset, samples)
    }
}

type LeftOut = Vec<(&'static str, String)>;

/// Returns the presets that suit calls of this size, and the reasons why the others do not.
fn candidates(nic: &Nic, job: &Job) -> (Vec<&'static str>, LeftOut) {
    let (mut fitting, mut left_out) = (Vec::new(), Vec::new());
    for preset in PRESETS {
        match misfit(preset, nic, job) {
            None => fitting.push(preset.name),
            Some(why) => left_out.push((preset.name, why)),
        }
    }
    (fitting, left_out)
}

/// Returns why `preset` does not suit the calls. Datagram presets are for messages that fit into one datagram: longer
/// ones are split, and each part takes a round trip.
fn misfit(preset: &Preset, nic: &Nic, job: &Job) -> Option<String> {
    let geometry = preset.plan.with_mtu(nic.mtu()).geometry;
    let too_long = |what: &str, bytes: usize, slot_bytes: u32| {
        let is_too_long = bytes > slot_bytes as usize;
        is_too_long.then(|| format!("{what} takes {bytes} B, and a datagram {slot_bytes}"))
    };
    let request = message_bytes(REQUEST_HEADER_BYTES, job.request_bytes as usize);
    let result = message_bytes(RESPONSE_HEADER_BYTES, job.response_bytes as usize);
    let by_request = (preset.plan.request == RequestPath::Datagram)
        .then(|| too_long("a request", request, geometry.request_slot_bytes));
    let by_result = (preset.plan.response == ResponsePath::Datagram)
        .then(|| too_long("a result", result, geometry.response_slot_bytes));
    by_request.flatten().or_else(|| by_result.flatten())
}

fn measured(taken: &[Candidate]) -> Table {
    let figures: [Figure<CallSample>; 5] = [
        (Column::new("per_second", "calls/s"), |sample| sample.figures.per_second),
        (Column::median("round_us", "round µs", 2), |sample| sample.round_mean_us),
        (Column::median("verbs_per_call", "verbs", 3), |sample| sample.verbs_per_call),
        (Column::median("server_cpu_us_per_call", "server CPU µs", 3), |sample| {
            sample.server_cpu_us_per_call
        }),
        (Column::median("client_cpu_us_per_call", "client CPU µs", 3), |sample| {
            sample.client_cpu_us_per_call
        }),
    ];
    let title = "Measured: a round ends when all calls in flight have their results";
    let mut table = Table::of_figures(title, vec![Column::new("preset", "preset")], &figures);
    for candidate in taken.iter().filter(|it| it.failed.is_none()) {
        table.push_figures(vec![candidate.preset.into()], &figures, &candidate.samples);
    }
    table
}

/// Adds the table of the choice and the reasons as text to `report`.
fn explain(taken: &[Candidate], left_out: &[(&str, String)], report: &mut Report) {
    for (preset, why) in left_out {
        report.note(format!("Left out: {preset}, because {why}."));
    }
    let presets_measured: Vec<RankedPreset> = taken.iter().map(Candidate::ranked_preset).collect();
    if !report.warnings.is_empty() {
        report.note(NO_ADVICE_NOTE);
        return;
    }
    let ranked = ranked(&presets_measured);
    let auto = presets_measured.iter().find(|it| it.preset == AUTO);
    let Some(winner) = ranked.first() else {
        // After an interruption the problems are not empty, and the reason is known.
        if report.problems.is_empty() {
            report.problems.push("no preset could be measured".to_owned());
        }
        return;
    };
    let columns = vec![
        Column::new("place", "place"),
        Column::new("preset", "preset"),
        Column::new("per_second", "calls/s"),
        Column::with_decimals("of_the_winner", "of the winner's", 3),
        Column::with_decimals("of_the_winner_low", "from", 3),
        Column::with_decimals("of_the_winner_high", "to", 3),
    ];
    let mut advice = Table::new("Advice", columns);
    let mut place = |place: &str, preset: &str, it: &RankedPreset| {
        let ratio = it.over(winner).map_or([f64::NAN; 3], |ratio| [ratio.median, ratio.low, ratio.high]);
        let mut row = vec![place.into(), preset.into(), it.median().into()];
        row.extend(ratio.map(Cell::from));
        advice.push(row);
    };
    place("winner", winner.preset, winner);
    report.note(format!("Take {}: {}.", winner.preset, way_of(winner.preset)));
    if let Some(second) = ranked.get(1) {
        place("second", second.preset, second);
        report.note(beside(winner, second, taken));
    }
    if let Some(auto) = auto {
        place(AUTO, auto.chosen.as_deref().unwrap_or(AUTO), auto);
    }
    report.tables.push(advice);
    let choice = taken.iter().flat_map(|it| &it.samples).find_map(|sample| sample.choice.as_ref());
    report.notes.extend(choice.map(|choice| format!("By itself (auto) a client takes {choice}.")));
    report.note(CPU_NOTE);
}

/// Returns why the first preset ranks before the second, from the measurements of both.
fn beside(winner: &RankedPreset, second: &RankedPreset, taken: &[Candidate]) -> String {
    let medians = |ranked_preset: &RankedPreset| {
        let candidate = taken.iter().find(|it| it.preset == ranked_preset.preset);
        let samples = candidate.map_or(&[][..], |it| &it.samples);
        let median = |figure: fn(&CallSample) -> f64| {
            Spread::of(samples.iter().map(figure)).map_or(f64::NAN, |spread| spread.median)
        };
        format!(
            "{:.2} verbs, {:.2} µs of the server's CPU and {:.2} of the client's",
            median(|sample| sample.verbs_per_call),
            median(|sample| sample.server_cpu_us_per_call),
            median(|sample| sample.client_cpu_us_per_call)
        )
    };
    let Some(ratio) = second.over(winner) else { return String::new() };
    let is_told = ratio.high < 1.0 && ratio.confidence_percent >= 95.0;
    let certainty =
        if is_told { "this is no coincidence" } else { "this run does not show which of the two is faster" };
    format!(
        "A call under {} takes {}. Second is {} with {:.0} % of its calls/s ({:.0} to {:.0} %: {certainty}): {}. A call \
         takes {}.",
        winner.preset,
        medians(winner),
        second.preset,
        100.0 * ratio.median,
        100.0 * ratio.low,
        100.0 * ratio.high,
        way_of(second.preset),
        medians(second)
    )
}

/// Returns how the messages of a call travel, which side issues them, and the number of round trips.
fn way_of(preset: &str) -> String {
    let Some(Plan { request, response, .. }) = Plan::named(preset) else { return String::new() };
    let there = match request {
        RequestPath::WriteMailbox => "the client WRITEs the request into memory that the server polls",
        RequestPath::DenseMailbox => {
            "the client WRITEs the request, and by a second verb a byte, which alone the server polls"
        }
        RequestPath::Send => "the client SENDs the request into a receive of the server",
        _ => "the client sends the request as a datagram, into a receive that all clients share",
    };
    let back = match response {
        ResponsePath::Write => "the server WRITEs the result; one round trip, one verb of each end",
        ResponsePath::Fetch => {
            "the client READs until the result is there; two round trips or more, all verbs the client's"
        }
        ResponsePath::FetchThenReply => {
            "the client READs until the result is there, two round trips or more, all verbs the client's; results of \
             slow methods the server WRITEs"
        }
        ResponsePath::Send => "the server SENDs the result; one round trip, one verb of each end",
        ResponsePath::NotifyThenFetch => {
            "the server tells of the result by SEND and the client READs it; two round trips, two verbs of the client's \
             and one of the server's"
        }
        _ => "the server sends the result as a datagram; one round trip, one verb of each end",
    };
    format!("{there}; {back}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall::select::Selection;

    #[test]
    fn datagrams_are_left_out_where_messages_do_not_fit_in_words() {
        let nic = Selection::softnic().open().unwrap().nic;
        let job = |request_bytes, response_bytes| Job { request_bytes, response_bytes, process_us: 0 };
        let left_out = |job| candidates(&nic, &job).1;
        assert!(left_out(job(64, 64)).is_empty());
        let long_results = left_out(job(64, 5_000));
        assert_eq!(long_results.iter().map(|(preset, _)| *preset).collect::<Vec<_>>(), ["herd", "ud-rpc"]);
        assert!(long_results.iter().all(|(_, why)| why.contains("a result takes")), "{long_results:?}");
        let long_requests = left_out(job(5_000, 64));
        assert_eq!(long_requests.iter().map(|(preset, _)| *preset).collect::<Vec<_>>(), ["ud-rpc"]);
    }

    #[test]
    fn recommends_nothing_from_a_run_under_contention() {
        let failed = |preset| Candidate { preset, samples: Vec::new(), failed: Some("no reply".to_owned()) };
        let explained = |warning: Option<&str>| {
            let mut report = Report::default();
            warning.into_iter().for_each(|warning| report.warn(warning));
            explain(&[failed("herd")], &[("ud-rpc", "it is too long".to_owned())], &mut report);
            report
        };
        let quiet = explained(None);
        assert_eq!(quiet.problems, ["no preset could be measured"], "a recommendation was tried");
        let contended = explained(Some("18 more threads"));
        assert!(contended.problems.is_empty() && contended.tables.is_empty());
        assert_eq!(contended.notes, ["Left out: ud-rpc, because it is too long.", NO_ADVICE_NOTE]);
    }

    #[test]
    fn every_preset_is_explained() {
        for preset in PRESETS {
            let way = way_of(preset.name);
            assert!(way.contains("round trip") && way.contains("verb"), "{}: {way}", preset.name);
        }
    }
}
