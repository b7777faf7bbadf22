//! R and F: how many fetches may fail, and how many bytes each fetches (RF-RPC, section 3.2, equations 1 and 2).
//!
//! A one-time probe of the connection ([`LinkProfile::measure`]) measures latency and rate of READs by size, and the
//! cost of a reply. The range [L, H] of F and the bound N of R are derived from these. Results are sampled while the
//! client runs; periodically, R and F are chosen by enumeration over the samples.
//!
//! [`choose`] contains the rules by which a client without a configured preset selects one. [`ProfileFile`] stores the
//! results of a longer probe for these rules.

mod batch_size;
pub mod choose;
mod enumerate;
mod profile;
mod profile_file;

use std::time::Duration;

use crate::wire::{ResponseHeader, TIME_UNIT_NS};
pub(crate) use batch_size::BatchSize;
pub use choose::Decision;
pub use enumerate::{Choice, Chooser, Sample};
pub use profile::{BURST_LEN, InvalidProfile, LinkProfile, Posting, Probe, ReadCost, TIME_NS_MAX};
pub(crate) use profile_file::find_profile;
pub use profile_file::{Peer, ProfileError, ProfileFile, Scope};

/// Number of retained samples; new samples replace the oldest.
const SAMPLES: usize = 128;
/// Number of calls before the first choice. The choice is repeated when the number has doubled, and at least every
/// million calls.
const FIRST_CHOICE: u64 = 512;
const CHOICE_EVERY_MAX: u64 = 1 << 20;
/// Time for which a client fetches without a pause: that of the paper's client before it switches to server-reply.
const FETCHING_NS: u64 = Duration::from_micros(7).as_nanos() as u64;

/// Samples calls and adapts R and F.
#[derive(Debug)]
pub struct Tuner {
    profile: Option<LinkProfile>,
    samples: Vec<Sample>,
    seen: u64,
    next_choice: u64,
    choice: Choice,
    chooser: Chooser,
    slot_bytes: u32,
    /// `true` if R and F are adapted while calls run.
    pub while_running: bool,
}

/// Assumed latency of a READ before the connection is probed, in nanoseconds.
const READ_NS_UNPROBED: u64 = 200;

impl Tuner {
    /// Creates a tuner with initial R and F; F is limited to a slot.
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
        }
    }

    /// Uses the measurements of a probe. R and F are set to its bounds N and L.
    pub fn set_profile(&mut self, profile: LinkProfile) {
        self.choice = Choice {
            retries_max: profile.retries_bound,
            fetch_bytes: clamp_fetch(profile.low_bytes, self.slot_bytes),
        };
        self.profile = Some(profile);
    }

    /// Returns F.
    #[inline]
    pub const fn fetch_bytes(&self) -> usize {
        self.choice.fetch_bytes as usize
    }

    /// Returns R and F.
    pub const fn choice(&self) -> Choice {
        self.choice
    }

    /// Returns whether a call was slow: more than R fetches failed, and not because of the request's latency or
    /// queueing.
    #[inline]
    pub fn is_slow(&self, failed_fetches: u32, time_ns: Option<u64>) -> bool {
        failed_fetches > self.choice.retries_max && !time_ns.is_some_and(|time_ns| self.is_short(time_ns))
    }

    /// Returns whether a processing time is short: at most R fetches fail during it. Times up to the unit of the
    /// header's field are always short, because the header cannot express shorter ones.
    #[inline]
    pub fn is_short(&self, time_ns: u64) -> bool {
        time_ns <= (u64::from(self.choice.retries_max) * self.read_ns()).max(TIME_UNIT_NS)
    }

    /// Returns how many fetches of a result may fail before the client pauses between them: R, or more if they take
    /// less than 7 µs together.
    #[inline]
    pub fn fetches_without_pause(&self) -> u32 {
        let in_time = self.profile.as_ref().map_or(0, |_| FETCHING_NS / self.read_ns());
        self.choice.retries_max.max(in_time as u32)
    }

    fn read_ns(&self) -> u64 {
        self.profile.as_ref().map_or(READ_NS_UNPROBED, |p| p.read(self.choice.fetch_bytes).alone_ns)
    }

    /// Samples a result's size and processing time.
    #[inline]
    pub fn sample(&mut self, header: &ResponseHeader) {
        if let Some(time_ns) = header.time_ns()
            && self.while_running
        {
            self.sample_timed(header.total_len_bytes, time_ns);
        }
    }

    fn sample_timed(&mut self, result_bytes: u32, time_ns: u64) {
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
        let times = [(64, 100), (256, 100), (512, 130), (1_024, 190), (2_048, 380)];
        tuner.set_profile(LinkProfile::of_times(&times, 550));
        assert_eq!(tuner.choice(), Choice { retries_max: 5, fetch_bytes: 256 });
        for _ in 0..FIRST_CHOICE {
            tuner.sample_timed(600, 50);
        }
        assert!(tuner.fetch_bytes() >= 632, "header and tail included: {}", tuner.fetch_bytes());
        for _ in 0..2 * FIRST_CHOICE {
            tuner.sample_timed(32, 50);
        }
        assert_eq!(tuner.fetch_bytes(), 256);
    }

    #[test]
    fn fetches_that_fail_in_any_call_make_none_slow() {
        let mut tuner = Tuner::new(1, 256, 4_224);
        tuner.set_profile(LinkProfile::of_times(&[(64, 100)], 250));
        assert_eq!(tuner.choice().retries_max, 2);
        assert!(!tuner.is_slow(50, Some(192)), "requests travel, servers have others to look at");
        assert!(!tuner.is_slow(2, Some(5_000)), "no more than R failed");
        assert!(tuner.is_slow(3, Some(256)) && tuner.is_slow(3, None));
        assert!(tuner.is_short(200) && !tuner.is_short(201));
        // READs shorter than the unit of processing times: a call that takes no time remains short.
        tuner.set_profile(LinkProfile::of_times(&[(64, 10)], 10));
        assert!(tuner.is_short(64) && !tuner.is_short(128));
    }

    #[test]
    fn a_client_fetches_for_a_while_before_it_pauses() {
        let mut tuner = Tuner::new(32, 256, 4_224);
        assert_eq!(tuner.fetches_without_pause(), 32);
        tuner.set_profile(LinkProfile::of_times(&[(64, 100)], 250));
        assert_eq!((tuner.choice().retries_max, tuner.fetches_without_pause()), (2, 70));
        tuner.set_profile(LinkProfile::of_times(&[(64, 5_000)], 50_000));
        assert_eq!((tuner.choice().retries_max, tuner.fetches_without_pause()), (9, 9));
    }
}
