//! One-time measurement of a connection: latency and rate of READs by size, and the cost of posting a reply.

use std::time::Duration;

use farcall_link::{LocalSlice, Remote};
use farcall_verbs::{Clock, Nanos};

use super::{Caller, CallerState, ClientConnection};
use crate::paths::{Path, ResponsePath};
use crate::tune::{BURST_LEN, LinkProfile, Probe};

/// Timeout of one measurement; also its result if a request cannot be posted or does not complete in time.
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
/// Number of consecutive READs averaged into one latency sample. A single READ may be shorter than the clock
/// resolution.
const READS_PER_SAMPLE: u32 = 8;
/// Minimum number of rounds. Each result is the shortest time of all rounds.
const ROUNDS_MIN: u32 = 16;
/// Length of the measured reply in bytes; represents a small result.
const REPLY_BYTES: usize = 64;

const READ_SIZES: [u32; 8] = [64, 128, 256, 512, 1_024, 2_048, 3_072, 4_096];

impl<P: Path> Caller<P> {
    /// Measures READs and WRITEs on this connection and passes the profile to the tuner. Issues about 3,000 READs and
    /// 300 WRITEs. Does nothing if the response path never fetches results, if there is no connection, or if calls are
    /// outstanding.
    pub fn probe(&mut self, clock: &impl Clock) {
        if P::Response::FETCHES
            && let Some(profile) = self.state.measure(Duration::ZERO, clock)
        {
            self.state.tuner.set_profile(profile);
        }
    }
}

impl CallerState {
    /// Measures READs and WRITEs on this connection for at least `min_duration`. Returns `None` if there is no
    /// connection, if calls are outstanding, if the connection is lost during the measurement, or if the times do not
    /// form a valid profile.
    pub fn measure(&mut self, min_duration: Duration, clock: &impl Clock) -> Option<LinkProfile> {
        if self.end.is_none() || !self.messages.is_empty() {
            return None;
        }
        let slot_bytes = self.config.plan.geometry.response_slot_bytes;
        let sizes: Vec<u32> = READ_SIZES.into_iter().filter(|size| *size <= slot_bytes).collect();
        let probe = |probe| match probe {
            Probe::Read { len_bytes } => self.read_latency(len_bytes, clock),
            Probe::Reads { len_bytes } => self.burst_time(BURST_LEN - 1, len_bytes, clock, |end| {
                end.read_responses(0, len_bytes as usize, 0).is_ok()
            }),
            Probe::Replies => self.reply_burst(clock),
        };
        let start = clock.now();
        let more_rounds = |rounds| rounds < ROUNDS_MIN || clock.now().since(start) < min_duration;
        let profile = LinkProfile::measure(&sizes, more_rounds, probe).ok();
        profile.filter(|_| self.end.is_some())
    }

    /// Returns the mean latency of [`READS_PER_SAMPLE`] consecutive READs.
    fn read_latency(&mut self, len_bytes: u32, clock: &impl Clock) -> Duration {
        let start = clock.now();
        for _ in 0..READS_PER_SAMPLE {
            if !self.read_and_wait(len_bytes, start, clock) {
                return PROBE_TIMEOUT;
            }
        }
        clock.now().since(start) / READS_PER_SAMPLE
    }

    fn reply_burst(&mut self, clock: &impl Clock) -> Duration {
        // Rewrite the slot of the last message (empty if there was none) with its own bytes, so that the server's
        // memory does not change.
        let seq = self.messages.next().before();
        self.burst_time(BURST_LEN, READ_SIZES[0], clock, |end| {
            let offset = end.requests.offset(seq);
            let piece = LocalSlice { region: end.local_id, offset, len_bytes: REPLY_BYTES };
            let to = Remote { grant: &end.welcome.grants.messages, offset };
            end.connection.write(piece, to).is_ok()
        })
    }

    /// Returns the time from posting `count` requests back to back until a READ posted after them completes. Requests
    /// of a queue pair complete in order, so all of them have completed by then.
    fn burst_time(
        &mut self,
        count: u32,
        len_bytes: u32,
        clock: &impl Clock,
        mut post: impl FnMut(&mut ClientConnection) -> bool,
    ) -> Duration {
        let start = clock.now();
        for _ in 0..count {
            if !self.end.as_mut().is_some_and(&mut post) {
                return PROBE_TIMEOUT;
            }
        }
        match self.read_and_wait(len_bytes, start, clock) {
            true => clock.now().since(start),
            false => PROBE_TIMEOUT,
        }
    }

    /// Posts one READ and polls for its completion. Returns whether it completed within [`PROBE_TIMEOUT`] of `start`.
    fn read_and_wait(&mut self, len_bytes: u32, start: Nanos, clock: &impl Clock) -> bool {
        let posted = self.end.as_mut().map(|end| end.read_responses(0, len_bytes as usize, 0));
        let Some(Ok(ticket)) = posted else { return false };
        loop {
            self.poll_completions();
            match &self.end {
                Some(end) if end.connection.is_done(ticket) => return true,
                Some(_) if clock.now().since(start) < PROBE_TIMEOUT => {}
                _ => return false,
            }
        }
    }
}
