//! The one-time probe of a connection: time and rate of READs, by size, and what a reply costs who posts it.

use std::time::Duration;

use farcall_link::{Piece, Remote, Ticket};
use farcall_verbs::{Clock, Nanos};

use super::{Caller, CallerState, ClientEnd};
use crate::paths::{Path, ResponsePath};
use crate::tune::{IN_A_ROW, LinkProfile, Probe};

/// What takes longer tells nothing.
const GIVE_UP: Duration = Duration::from_millis(100);
/// READs one after the other: one alone may be shorter than what the clock can tell apart.
const ONE_BY_ONE: u32 = 8;
/// Each figure is the best of so many or more.
const ROUNDS_MIN: u32 = 16;
/// Bytes of the reply that is measured: a small result.
const REPLY_BYTES: usize = 64;

const READ_SIZES: [u32; 8] = [64, 128, 256, 512, 1_024, 2_048, 3_072, 4_096];

impl<P: Path> Caller<P> {
    /// Measures READs and WRITEs of this connection, and gives the times to the tuner. Takes about three thousand READs
    /// and three hundred WRITEs; does nothing where results are never fetched, without a connection, or with calls
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
    /// Measures READs and WRITEs of this connection, at least so long. `None` without a connection, or with calls
    /// outstanding.
    pub fn measure(&mut self, at_least: Duration, clock: &impl Clock) -> Option<LinkProfile> {
        if self.end.is_none() || !self.messages.is_empty() {
            return None;
        }
        let slot_bytes = self.config.plan.geometry.response_slot_bytes;
        let sizes: Vec<u32> = READ_SIZES.into_iter().filter(|size| *size <= slot_bytes).collect();
        let probe = |probe| match probe {
            Probe::Read { len_bytes } => self.one_by_one(len_bytes, clock),
            Probe::Reads { len_bytes } => self
                .together(IN_A_ROW - 1, len_bytes, clock, |end| post_read(end, len_bytes as usize).is_some()),
            Probe::Replies => self.replies(clock),
        };
        let start = clock.now();
        let again = |rounds| rounds < ROUNDS_MIN || clock.now().since(start) < at_least;
        let profile = LinkProfile::measure(&sizes, again, probe).ok();
        profile.filter(|_| self.end.is_some())
    }

    /// The mean of a few READs, one after the other.
    fn one_by_one(&mut self, len_bytes: u32, clock: &impl Clock) -> Duration {
        let start = clock.now();
        for _ in 0..ONE_BY_ONE {
            if !self.read_and_wait(len_bytes, start, clock) {
                return GIVE_UP;
            }
        }
        clock.now().since(start) / ONE_BY_ONE
    }

    fn replies(&mut self, clock: &impl Clock) -> Duration {
        // The last message sent, or an empty slot, once more into the slot where it is: nothing changes there.
        let seq = self.messages.next.before();
        self.together(IN_A_ROW, READ_SIZES[0], clock, |end| {
            let offset = end.requests.offset(seq);
            let piece = Piece { region: end.local_id, offset, len_bytes: REPLY_BYTES };
            let to = Remote { grant: &end.welcome.grants.messages, offset };
            end.connection.write(piece, to).is_ok()
        })
    }

    /// The time of `count` requests posted together, and of a READ behind them: it ends when they have ended.
    fn together(
        &mut self,
        count: u32,
        len_bytes: u32,
        clock: &impl Clock,
        mut post: impl FnMut(&mut ClientEnd) -> bool,
    ) -> Duration {
        let start = clock.now();
        for _ in 0..count {
            if !self.end.as_mut().is_some_and(&mut post) {
                return GIVE_UP;
            }
        }
        match self.read_and_wait(len_bytes, start, clock) {
            true => clock.now().since(start),
            false => GIVE_UP,
        }
    }

    /// One READ; whether it came in time.
    fn read_and_wait(&mut self, len_bytes: u32, start: Nanos, clock: &impl Clock) -> bool {
        let posted = self.end.as_mut().and_then(|end| post_read(end, len_bytes as usize));
        let Some(ticket) = posted else { return false };
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

/// Posts a READ of the results' first bytes.
fn post_read(end: &mut ClientEnd, len_bytes: usize) -> Option<Ticket> {
    let piece = Piece { region: end.local_id, offset: end.fetch_base, len_bytes };
    let from = Remote { grant: &end.welcome.grants.results, offset: 0 };
    end.connection.read(piece, from, 0).ok()
}
