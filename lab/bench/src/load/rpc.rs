//! The key-value service over Farcall RPC, as a target of the load generator.

use super::target::{Outcome, Request, Target, TargetError};
use farcall::kv::PutMode;
use farcall::rpc::tune::{Decision, LinkProfile};
use farcall::rpc::{
    CallError, CallId, Client, ClientOptions, ConnectError, Counters, Executed, UnknownBecause, Verbs,
};
use farcall::select::Selection;
use farcall_kv::wire::{Request as KvRequest, Status, decode_item, decode_version};
use farcall_link::{BatchConfig, BatchSizing, Batching, Geometry, Plan};
use farcall_rpc::{AnyCaller, ClientOf};
use std::time::{Duration, Instant};

/// More than the maximum window of a connection.
const CALLS_MAX: usize = 1024;

/// Returns the client options that benchmarks use: the defaults of the library, R and F included, with a timeout of
/// calls. A slot is reused a short time after its call has completed, so there are twice as many slots as `window`. A
/// connection with a `profile` starts with it, others probe.
pub fn client_options(window: u32, patience: Duration, profile: Option<&LinkProfile>) -> ClientOptions {
    let slots = (2 * window).next_power_of_two().clamp(16, u32::from(Geometry::WINDOW_MAX));
    let options = ClientOptions::default().connect_timeout(patience).profile(profile.cloned());
    options.window(slots as u16).call_timeout(patience)
}

/// Name that stands for the preset chosen by a client without a specified preset.
pub const AUTO: &str = "auto";

/// Resolves [`AUTO`] to the preset that the library chooses at this server, with its reasons, and updates `options`
/// accordingly; used for clients whose paths are fixed at compile time. Any other preset is returned unchanged.
///
/// # Errors
/// Returns an error if the server cannot be reached.
pub fn settle<'a>(
    preset: &'a str,
    options: &mut ClientOptions,
    nic: &Selection,
    address: &str,
) -> Result<(&'a str, Option<Decision>), ConnectError> {
    if preset != AUTO {
        return Ok((preset, None));
    }
    let client = nic.connect(|nic| Client::connect(nic, address, options.clone()), |_| false)?;
    let Some(decision) = client.decision() else { return Ok((preset, None)) };
    options.config.plan = decision.plan;
    options.profile.clone_from(&decision.profile);
    Ok((decision.preset(), Some(decision.clone())))
}

/// Returns the options for a client that sends its calls in batches over the paths of a preset; `None` if there is no
/// such preset.
pub fn in_batches(mut options: ClientOptions, preset: &str, batch: BatchSizing) -> Option<ClientOptions> {
    let Plan { geometry, memory, .. } = options.config.plan;
    let batching = Batching::Calls(BatchConfig::default().size(batch));
    options.config.plan = Plan { geometry, memory, batching, ..Plan::named(preset)? };
    options.verbs = Verbs::OfPlan;
    Some(options)
}

/// Traffic of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// All WRITEs, READs and SENDs of both ends. Over sockets: groups of requests sent together, with their replies.
    pub verbs: u64,
    /// READs among them that found no result yet.
    pub empty_reads: u64,
}

impl Traffic {
    /// Returns the traffic that a client counted.
    pub fn of(counters: &Counters) -> Self {
        Self { verbs: counters.verbs(), empty_reads: counters.empty_reads() }
    }

    /// Returns the sum of the traffic of several clients.
    pub fn of_all<'a>(clients: impl Iterator<Item = &'a Counters>) -> Self {
        clients.map(Self::of).fold(Self::default(), |sum, more| Self {
            verbs: sum.verbs + more.verbs,
            empty_reads: sum.empty_reads + more.empty_reads,
        })
    }

    /// Returns the traffic since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            verbs: self.verbs - earlier.verbs,
            empty_reads: self.empty_reads.saturating_sub(earlier.empty_reads),
        }
    }
}

/// Returns the final R and F of the clients as a condition of a report. `None` if no client fetches results.
pub fn tuning_condition(
    tunings: impl Iterator<Item = (u32, u32)>,
    profile: Option<&LinkProfile>,
) -> Option<String> {
    let (retries, fetches): (Vec<u32>, Vec<u32>) = tunings.unzip();
    let range = |values: &[u32]| {
        let (low, high) = (*values.iter().min()?, *values.iter().max()?);
        Some(if low == high { low.to_string() } else { format!("{low} to {high}") })
    };
    Some(format!(
        "R {}, F {} B: {}, then chosen by enumeration over sampled calls",
        range(&retries)?,
        range(&fetches)?,
        if profile.is_some() { "by the profile given" } else { "probed by each connection" }
    ))
}

/// A connection to a key-value service with one partition. The calling thread polls.
pub struct RpcTarget<C: AnyCaller + ?Sized> {
    client: ClientOf<C>,
    incarnation: u64,
    lost_at: Option<Instant>,
    /// Slot of each outstanding call, by call number, and whether the call is a read.
    calls: Box<[(u32, bool)]>,
    payload: Vec<u8>,
}

impl<C: AnyCaller + ?Sized> RpcTarget<C> {
    /// Creates the target from a client that was connected with [`client_options`] and this plan.
    pub fn new(client: ClientOf<C>, plan: &Plan) -> Self {
        // A batch uses as many numbers as it can hold calls.
        let batches_calls_max = usize::from(plan.geometry.window) * usize::from(BatchConfig::CALLS_MAX);
        let calls_max = match plan.batching {
            Batching::Calls(_) => batches_calls_max.max(CALLS_MAX),
            _ => CALLS_MAX,
        };
        let calls = vec![(0, false); calls_max].into_boxed_slice();
        let incarnation = client.server_incarnation();
        Self { client, incarnation, lost_at: None, calls, payload: Vec::with_capacity(4096) }
    }

    /// Returns the traffic so far.
    pub fn traffic(&self) -> Traffic {
        Traffic::of(self.client.counters())
    }

    /// Returns the current R and F.
    pub fn tuning(&self) -> (u32, u32) {
        self.client.tuning()
    }

    /// Returns when the loss of the connection was detected; `None` if it was not lost.
    pub fn lost_at(&self) -> Option<Instant> {
        self.lost_at
    }

    /// Returns whether the connection now leads to another server process than at its start.
    pub fn has_restarted(&self) -> bool {
        self.client.server_incarnation() != self.incarnation
    }

    /// Accepts the restart of the server: later calls go to the new process.
    pub fn accept_restart(&mut self) {
        self.incarnation = self.client.server_incarnation();
    }

    fn place(calls: &mut [(u32, bool)], call: CallId) -> &mut (u32, bool) {
        let count = calls.len();
        &mut calls[call.0 as usize % count]
    }

    /// Detects a loss of the connection, which the client re-establishes by itself, and a restart of the server.
    #[cold]
    fn watch(&mut self) -> Result<(), TargetError> {
        if !self.client.is_connected() {
            self.lost_at.get_or_insert_with(Instant::now);
            return Ok(());
        }
        if self.has_restarted() {
            return Err(TargetError::Restarted);
        }
        self.lost_at = None;
        Ok(())
    }
}

impl<C: AnyCaller + ?Sized> Target for RpcTarget<C> {
    #[inline]
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        let (request, is_read) = match request {
            Request::Get { key } => (KvRequest::Get { key }, true),
            Request::Put { key, value } => {
                (KvRequest::Put { key, value, flags: 0, ttl_ms: 0, mode: PutMode::Set }, false)
            }
        };
        self.payload.clear();
        request.encode(&mut self.payload);
        let call = self.client.submit(request.method().id(), &self.payload);
        let call = call.map_err(|error| TargetError::Protocol(error.to_string()))?;
        *Self::place(&mut self.calls, call) = (slot, is_read);
        Ok(())
    }

    #[inline]
    fn flush(&mut self) -> Result<(), TargetError> {
        self.client.flush();
        Ok(())
    }

    #[inline]
    fn poll(&mut self, mut done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        self.client.progress();
        while let Some(completion) = self.client.next_completion() {
            let (slot, is_read) = *Self::place(&mut self.calls, completion.call);
            done(slot, outcome(&completion.result, is_read)?);
        }
        if !self.has_restarted() && self.client.is_connected() && self.lost_at.is_none() {
            return Ok(());
        }
        self.watch()
    }
}

/// Converts the result of a call to an outcome.
#[inline]
fn outcome<'a>(result: &Result<&'a [u8], CallError>, is_read: bool) -> Result<Outcome<'a>, TargetError> {
    let broken = |error: farcall_kv::wire::ReplyError| TargetError::Protocol(error.to_string());
    match result {
        Ok(reply) if is_read => {
            Ok(decode_item(reply).map_err(broken)?.map_or(Outcome::Absent, |item| Outcome::Value(item.value)))
        }
        Ok(reply) => match decode_version(reply).map_err(broken)? {
            (Status::Ok, _) => Ok(Outcome::Stored),
            _ => Ok(Outcome::Refused),
        },
        Err(error) => failed_call(error),
    }
}

/// Converts the error of a call to an outcome.
pub(super) fn failed_call(error: &CallError) -> Result<Outcome<'static>, TargetError> {
    match error {
        // The client has stopped trying to connect.
        CallError::NotSent(why) | CallError::OutcomeUnknown(UnknownBecause::Disconnected(why)) => {
            Err(TargetError::Lost(why.to_string()))
        }
        error if error.executed() == Executed::Unknown => Ok(Outcome::Unknown),
        _ => Ok(Outcome::Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_r_and_f_as_ranges() {
        assert_eq!(tuning_condition(std::iter::empty(), None), None);
        let same = tuning_condition([(5, 256), (5, 128)].into_iter(), None).unwrap();
        assert!(same.starts_with("R 5, F 128 to 256 B"), "{same}");
    }
}
