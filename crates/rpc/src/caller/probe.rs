//! The one-time probe of the link: how long READs take, by size.

use std::time::Duration;

use farcall_link::{Piece, Remote};
use farcall_verbs::{Clock, Nanos};

use super::{Caller, Path};
use crate::tune::LinkProfile;

const SIZES: [u32; 8] = [64, 128, 256, 512, 1_024, 2_048, 3_072, 4_096];

impl<P: Path> Caller<P> {
    /// READs pieces of the server's response slots and gives the times to the tuner. Takes some hundred READs; does nothing
    /// without a connection or with calls outstanding.
    pub fn probe(&mut self, clock: &impl Clock, patience: Duration) {
        if self.link.is_none() || !self.frames.is_empty() || !P::FETCHES {
            return;
        }
        let slot_bytes = self.config.plan.geometry.response_slot_bytes;
        let sizes: Vec<u32> = SIZES.into_iter().filter(|size| *size <= slot_bytes).collect();
        let profile = LinkProfile::measure(&sizes, |bytes| self.timed_read(bytes, clock), patience);
        if self.link.is_some() {
            self.tuner.set_profile(profile);
        }
    }

    fn timed_read(&mut self, bytes: u32, clock: &impl Clock) -> Duration {
        const GIVE_UP: Duration = Duration::from_millis(100);
        let start = clock.now();
        let Some(link) = self.link.as_mut() else { return GIVE_UP };
        let len_bytes = bytes as usize;
        let piece = Piece { region: link.local_id, offset: link.fetch_base, len_bytes };
        let from = Remote { grant: &link.welcome.grants.results, offset: 0 };
        let Ok(ticket) = link.peer.read(piece, from, 0) else { return GIVE_UP };
        loop {
            self.poll_completions();
            let now: Nanos = clock.now();
            let waited = now.since(start);
            match &self.link {
                Some(link) if !link.peer.is_done(ticket) && waited < GIVE_UP => {}
                Some(_) => return waited,
                None => return GIVE_UP,
            }
        }
    }
}
