//! The one-time probe of the link: how long READs take, by size.

use std::time::Duration;

use farcall_link::{Piece, Remote};
use farcall_verbs::{Clock, Nanos};

use super::{Caller, Path};
use crate::tune::LinkProfile;

/// READs that take longer tell nothing.
const GIVE_UP: Duration = Duration::from_millis(100);

const SIZES: [u32; 8] = [64, 128, 256, 512, 1_024, 2_048, 3_072, 4_096];

impl<P: Path> Caller<P> {
    /// READs pieces of the server's response slots and gives the times to the tuner. Takes about a thousand READs; does nothing
    /// without a connection or with calls outstanding.
    pub fn probe(&mut self, clock: &impl Clock, patience: Duration) {
        if self.link.is_none() || !self.frames.is_empty() || !P::FETCHES {
            return;
        }
        let slot_bytes = self.config.plan.geometry.response_slot_bytes;
        let sizes: Vec<u32> = SIZES.into_iter().filter(|size| *size <= slot_bytes).collect();
        let profile = LinkProfile::measure(&sizes, |bytes| self.timed_reads(bytes, clock), patience);
        if self.link.is_some() {
            self.tuner.set_profile(profile);
        }
    }

    /// The mean of a few READs in a row: one alone may be shorter than what the clock can tell apart.
    fn timed_reads(&mut self, bytes: u32, clock: &impl Clock) -> Duration {
        const IN_A_ROW: u32 = 8;
        let start = clock.now();
        for _ in 0..IN_A_ROW {
            if !self.read_and_wait(bytes, start, clock) {
                return GIVE_UP;
            }
        }
        clock.now().since(start) / IN_A_ROW
    }

    /// One READ; whether it came in time.
    fn read_and_wait(&mut self, bytes: u32, start: Nanos, clock: &impl Clock) -> bool {
        let Some(link) = self.link.as_mut() else { return false };
        let piece = Piece { region: link.local_id, offset: link.fetch_base, len_bytes: bytes as usize };
        let from = Remote { grant: &link.welcome.grants.results, offset: 0 };
        let Ok(ticket) = link.peer.read(piece, from, 0) else { return false };
        loop {
            self.poll_completions();
            match &self.link {
                Some(link) if link.peer.is_done(ticket) => return true,
                Some(_) if clock.now().since(start) < GIVE_UP => {}
                _ => return false,
            }
        }
    }
}
