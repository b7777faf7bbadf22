//! R and F: how many fetches may fail, and how many bytes each fetches (RF-RPC, section 3.2, equations 1 and 2).
//!
//! A one-time probe of the connection ([`LinkProfile::measure`]) gives the time of READs by size and the cost of a
//! reply, and from them the range [L, H] of F and the bound N of R. Results are sampled while the client runs; from
//! time to time R and F are chosen by enumeration over the samples.

mod choose;
mod profile;

use crate::wire::ResponseHeader;
pub use choose::{Choice, Chooser, Sample};
pub use profile::{LinkProfile, Probe};

/// Samples kept; old ones make room.
const SAMPLES: usize = 128;
/// Calls before the first choice; it is repeated each time their number has doubled, up to every million calls.
const FIRST_CHOICE: u64 = 512;
const CHOICE_EVERY_MAX: u64 = 1 << 20;
/// A new sample counts for one part in so many of [`Tuner::travel_fetches`].
const TRAVEL_WEIGHT: u32 = 16;

/// Samples calls and keeps R and F.
#[derive(Debug)]
pub struct Tuner {
    profile: Option<LinkProfile>,
    samples: Vec<Sample>,
    seen: u64,
    next_choice: u64,
    choice: Choice,
    chooser: Chooser,
    slot_bytes: u32,
    /// Whether R and F follow the calls.
    pub while_running: bool,
    /// [`TRAVEL_WEIGHT`] times the fetches that fail in a call although its handler takes no time: requests travel, and
    /// servers have others to look at.
    travel_fetches: u32,
}

/// What a READ is taken to cost before the connection was probed, in nanoseconds.
const READ_NS_UNPROBED: u64 = 200;

impl Tuner {
    /// Starts with given R and F; F is kept within a slot.
    pub fn new(retries_max: u32, fetch_bytes: u32, slot_bytes: u32) -> Self {
        Self {
            profile: None,
            samples: Vec::with_capacity(SAMPLES),
            seen: 0,
            next_choice: FIRST_CHOICE,
            choice: Choice { retries_max, fetch_bytes: clamp_fetch(fetch_bytes, slot_bytes) },
            chooser: Chooser::new(SAMPLES),
            slot_bytes,
            while_running: true,
            travel_fetches: 0,
        }
    }

    /// Takes over what a probe measured. R and F begin at its bounds N and L.
    pub fn set_profile(&mut self, profile: LinkProfile) {
        self.choice = Choice {
            retries_max: profile.retries_bound,
            fetch_bytes: clamp_fetch(profile.low_bytes, self.slot_bytes),
        };
        self.profile = Some(profile);
    }

    /// R.
    #[inline]
    pub const fn retries_max(&self) -> u32 {
        self.choice.retries_max
    }

    /// F.
    #[inline]
    pub const fn fetch_bytes(&self) -> usize {
        self.choice.fetch_bytes as usize
    }

    /// Whether so many failed fetches make a call a slow one: more than R, besides those that any call has.
    #[inline]
    pub const fn is_slow(&self, failed_fetches: u32) -> bool {
        failed_fetches > self.choice.retries_max.saturating_add(self.travel_fetches / TRAVEL_WEIGHT)
    }

    /// What counts as a short processing time: R fetches would not fail during it.
    #[inline]
    pub fn short_time_ns(&self) -> u64 {
        u64::from(self.choice.retries_max) * self.read_ns()
    }

    fn read_ns(&self) -> u64 {
        self.profile.as_ref().map_or(READ_NS_UNPROBED, |p| p.read_ns(self.choice.fetch_bytes))
    }

    /// Takes a result's size and processing time into account, and how many fetches failed if it was fetched.
    #[inline]
    pub fn sample(&mut self, header: &ResponseHeader, failed_fetches: Option<u32>) {
        if let Some(time_ns) = header.time_ns()
            && self.while_running
        {
            self.sample_timed(header.total_len_bytes, time_ns, failed_fetches);
        }
    }

    fn sample_timed(&mut self, result_bytes: u32, time_ns: u64, failed_fetches: Option<u32>) {
        if let Some(failed) = failed_fetches {
            let while_handled = (time_ns / self.read_ns()).min(u64::from(u32::MAX)) as u32;
            // An unexpectedly long call is no reason to expect that of all.
            let bound = self.profile.as_ref().map_or(self.choice.retries_max, |p| p.retries_bound);
            let travel = failed.saturating_sub(while_handled).min(bound);
            self.travel_fetches =
                (self.travel_fetches - self.travel_fetches / TRAVEL_WEIGHT).saturating_add(travel);
        }
        let sample = Sample { result_bytes, time_ns };
        if self.samples.len() < SAMPLES {
            self.samples.push(sample);
        } else {
            self.samples[self.seen as usize % SAMPLES] = sample;
        }
        self.seen += 1;
        if self.seen == self.next_choice {
            self.choose_again();
        }
    }

    #[cold]
    fn choose_again(&mut self) {
        self.next_choice += self.seen.min(CHOICE_EVERY_MAX);
        if let Some(profile) = &self.profile {
            let choice = self.chooser.choose(profile, &self.samples);
            let fetch_bytes = clamp_fetch(choice.fetch_bytes, self.slot_bytes);
            self.choice = Choice { fetch_bytes, ..choice };
        }
    }
}

fn clamp_fetch(fetch_bytes: u32, slot_bytes: u32) -> u32 {
    fetch_bytes.next_multiple_of(8).clamp(64, slot_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f_follows_the_results_while_running() {
        let mut tuner = Tuner::new(5, 64, 4_224);
        tuner.set_profile(LinkProfile::of_connectx3());
        assert_eq!((tuner.retries_max(), tuner.fetch_bytes()), (5, 256));
        for _ in 0..FIRST_CHOICE {
            tuner.sample_timed(600, 300, None);
        }
        assert!(tuner.fetch_bytes() >= 632, "header and tail included: {}", tuner.fetch_bytes());
        for _ in 0..2 * FIRST_CHOICE {
            tuner.sample_timed(32, 300, None);
        }
        assert_eq!(tuner.fetch_bytes(), 256);
    }

    #[test]
    fn fetches_that_fail_in_any_call_make_none_slow() {
        let mut tuner = Tuner::new(1, 256, 4_224);
        tuner.set_profile(LinkProfile::from_times(vec![(64, 100)], 250));
        // A handler of 320 ns among short ones: R comes to lie below its fetches.
        for n in 0..FIRST_CHOICE {
            tuner.sample_timed(8, if n % 2 == 0 { 64 } else { 320 }, Some(5));
        }
        assert_eq!(tuner.retries_max(), 2);
        assert!(!tuner.is_slow(5) && tuner.is_slow(9), "{tuner:?}");
        assert!(tuner.short_time_ns() >= 64, "a short handler stays one that is fetched from");
    }
}
