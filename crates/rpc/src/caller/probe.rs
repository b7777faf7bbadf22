//! The one-time probe of a connection: how long READs take, by size, and what a reply costs who posts it.

use std::time::Duration;

use farcall_link::{Piece, Remote};
use farcall_verbs::{Clock, Nanos};

use super::{Caller, CallerState};
use crate::paths::{Path, ResponsePath};
use crate::tune::{LinkProfile, Probe};

/// What takes longer tells nothing.
const GIVE_UP: Duration = Duration::from_millis(100);
/// One alone may be shorter than what the clock can tell apart.
const IN_A_ROW: u32 = 8;
/// Bytes of the reply that is measured: a small result.
const REPLY_BYTES: usize = 64;

const READ_SIZES: [u32; 8] = [64, 128, 256, 512, 1_024, 2_048, 3_072, 4_096];

impl<P: Path> Caller<P> {
    /// Measures READs and WRITEs of this connection, and gives the times to the tuner. Takes about a thousand READs and
    /// a hundred WRITEs; does nothing where results are never fetched, without a connection, or with calls outstanding.
    pub fn probe(&mut self, clock: &impl Clock) {
        if P::Response::FETCHES {
            self.state.measure(clock);
        }
    }
}

impl CallerState {
    fn measure(&mut self, clock: &impl Clock) {
        if self.end.is_none() || !self.messages.is_empty() {
            return;
        }
        let slot_bytes = self.config.plan.geometry.response_slot_bytes;
        let sizes: Vec<u32> = READ_SIZES.into_iter().filter(|size| *size <= slot_bytes).collect();
        let measure = |probe| match probe {
            Probe::Read { bytes } => self.timed_reads(bytes, clock),
            Probe::Reply => self.timed_writes(clock),
        };
        let profile = LinkProfile::measure(&sizes, measure);
        if self.end.is_some() {
            self.tuner.set_profile(profile);
        }
    }

    /// The mean of a few READs, one after the other.
    fn timed_reads(&mut self, bytes: u32, clock: &impl Clock) -> Duration {
        let start = clock.now();
        for _ in 0..IN_A_ROW {
            if !self.read_and_wait(bytes, start, clock) {
                return GIVE_UP;
            }
        }
        clock.now().since(start) / IN_A_ROW
    }

    /// The mean of a few WRITEs posted together: a READ behind them ends when they have ended, and is measured alone
    /// first.
    fn timed_writes(&mut self, clock: &impl Clock) -> Duration {
        let start = clock.now();
        if !self.read_and_wait(REPLY_BYTES as u32, start, clock) {
            return GIVE_UP;
        }
        let read = clock.now().since(start);
        let start = clock.now();
        for _ in 0..IN_A_ROW {
            // The last message sent, or an empty slot, once more into the slot where it is: nothing changes there.
            let Some(end) = self.end.as_mut() else { return GIVE_UP };
            let offset = end.requests.offset(self.messages.next.before());
            let piece = Piece { region: end.local_id, offset, len_bytes: REPLY_BYTES };
            let to = Remote { grant: &end.welcome.grants.messages, offset };
            if end.connection.write(piece, to).is_err() {
                return GIVE_UP;
            }
        }
        if !self.read_and_wait(REPLY_BYTES as u32, start, clock) {
            return GIVE_UP;
        }
        clock.now().since(start).saturating_sub(read) / IN_A_ROW
    }

    /// One READ; whether it came in time.
    fn read_and_wait(&mut self, bytes: u32, start: Nanos, clock: &impl Clock) -> bool {
        let Some(end) = self.end.as_mut() else { return false };
        let piece = Piece { region: end.local_id, offset: end.fetch_base, len_bytes: bytes as usize };
        let from = Remote { grant: &end.welcome.grants.results, offset: 0 };
        let Ok(ticket) = end.connection.read(piece, from, 0) else { return false };
        loop {
            self.poll_completions();
            match &self.end {
                Some(end) if end.connection.is_done(ticket) => return true,
                Some(_) if clock.now().since(start) < GIVE_UP => {}
                _ => return false,
            }
        }
    }
}
