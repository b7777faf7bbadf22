//! Rules by which a client without a configured preset is set up.
//!
//! | what | with a profile | without one, software RNIC | without one, RNIC |
//! |---|---|---|---|
//! | preset | what costs the server less: `rf-rpc` if a READ does, else `server-reply` | `server-reply` | `rf-rpc` |
//! | R, F | N and L of the profile, then by enumeration | a probe, then the same | a probe, then the same |
//! | batches | none | none | none |
//! | waiting | polls as long as a wake-up takes, then sleeps | 2,000 turns, then sleeps | as before |
//! | inline limit | the largest size that is no slower inline | 256 B | 256 B |
//! | signalled | the smallest interval that costs next to nothing | one in 8 | one in 8 |
//!
//! Fields of the plan that differ from the default are kept, because the user has set them. Under `rf-rpc` each method
//! still adapts: it switches to server-reply and back according to its processing times (RF-RPC, section 3.2).

use std::fmt;

use farcall_link::{MemoryPolicy, Plan, WaitStrategy};

use super::{LinkProfile, Posting};

/// The plan chosen for a client, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The plan.
    pub plan: Plan,
    /// The measured costs, if there are any.
    pub profile: Option<LinkProfile>,
    /// The rule, and the source of its numbers, as text.
    pub because: String,
}

/// Name of the provider whose READs and WRITEs are copies by the posting processor.
const SOFTWARE_RNIC: &str = "softnic";

/// Cost of one result at the server, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResultCost {
    /// Cost of a READ at full rate, of the largest size for which READs are as fast as possible.
    read_ns: u64,
    /// Cost of posting a reply.
    reply_ns: u64,
}

impl ResultCost {
    /// As measured by `farcall tune` between two processes. Both numbers vary proportionally between machines.
    const SOFTWARE_RNIC: Self = Self { read_ns: 38, reply_ns: 31 };
    /// RF-RPC, section 2.2: 11.26 million READs in-bound a second, 2.11 million WRITEs out-bound (ConnectX-3).
    const RNIC: Self = Self { read_ns: 89, reply_ns: 474 };

    fn of(provider: &str, profile: Option<&LinkProfile>) -> Self {
        match profile {
            Some(profile) => {
                Self { read_ns: profile.read(profile.low_bytes()).each_ns, reply_ns: profile.reply_ns() }
            }
            None if provider == SOFTWARE_RNIC => Self::SOFTWARE_RNIC,
            None => Self::RNIC,
        }
    }

    const fn preset(self) -> &'static str {
        if self.read_ns < self.reply_ns { "rf-rpc" } else { "server-reply" }
    }
}

/// Applies the rules to the plan that the client requests. `source` states the source of the profile, or why there is
/// none.
pub(crate) fn choose(wished: &Plan, provider: &str, profile: Option<LinkProfile>, source: &str) -> Decision {
    let cost = ResultCost::of(provider, profile.as_ref());
    let preset = Plan::named(cost.preset()).unwrap_or_default();
    let plan = Plan {
        request: preset.request,
        response: preset.response,
        transport: preset.transport,
        ..with_posting(*wished, profile.as_ref().and_then(LinkProfile::posting))
    };
    let ResultCost { read_ns, reply_ns } = cost;
    let verb = if read_ns < reply_ns { "costs a server more than" } else { "costs a server no more than" };
    let because = format!("a reply ({reply_ns} ns) {verb} a READ of its result ({read_ns} ns): {source}");
    Decision { plan, profile, because }
}

/// Sets inline limit, signalling and waiting where the plan has the default values.
fn with_posting(wished: Plan, posting: Option<Posting>) -> Plan {
    let Some(posting) = posting else { return wished };
    let usual = Plan::default();
    let MemoryPolicy { inline_max_bytes, signal_every } = wished.memory;
    let memory = MemoryPolicy {
        inline_max_bytes: unless_set(
            inline_max_bytes,
            usual.memory.inline_max_bytes,
            posting.inline_max_bytes,
        ),
        signal_every: unless_set(signal_every, usual.memory.signal_every, posting.signal_every),
    };
    // Polling for the duration of a wake-up waits at most twice as long as the optimum with known waiting times.
    let turns = (posting.wake_ns / posting.idle_turn_ns).clamp(TURNS_MIN, TURNS_MAX);
    let waiting =
        unless_set(wished.waiting, usual.waiting, WaitStrategy::Adaptive { max_retry: turns as u32 });
    Plan { memory, waiting, ..wished }
}

/// Limits of the empty turns before a client sleeps: neither immediately nor after seconds, for any profile.
const TURNS_MIN: u64 = 64;
const TURNS_MAX: u64 = 1_000_000;

fn unless_set<T: PartialEq>(wished: T, usual: T, chosen: T) -> T {
    if wished == usual { chosen } else { wished }
}

impl Decision {
    /// Returns the preset's name.
    pub fn preset(&self) -> &'static str {
        self.plan.preset().map_or("none", |preset| preset.name)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.preset(), self.because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::ReadCost;
    use farcall_link::PRESETS;

    fn profile(reads: &[(u32, u64, u64)], reply_ns: u64) -> LinkProfile {
        let cost = |&(len_bytes, alone_ns, each_ns)| ReadCost { len_bytes, alone_ns, each_ns };
        LinkProfile::new(reads.iter().map(cost).collect(), reply_ns).unwrap()
    }

    /// HERD, section 3.2: 26 million READs in-bound a second up to 128 B; small inlined WRITEs out-bound are
    /// significantly faster than READs, as in-bound ones (35 million) are.
    fn of_herd() -> LinkProfile {
        profile(&[(64, 1_800, 38), (128, 1_800, 38)], 29)
    }

    /// `farcall tune` on two cores of a virtual AMD EPYC, 2026-11-23.
    fn of_softnic() -> LinkProfile {
        profile(&[(64, 50, 37), (512, 52, 39), (1_024, 57, 44), (4_096, 90, 77)], 31)
    }

    #[test]
    fn the_preset_is_what_costs_the_server_less() {
        for (profile, preset) in [
            (LinkProfile::of_connectx3(), "rf-rpc"),
            (of_herd(), "server-reply"),
            (of_softnic(), "server-reply"),
            // As expensive as a READ: `server-reply`, because it has no READs without a result, and a single round
            // trip.
            (profile(&[(64, 100, 50)], 50), "server-reply"),
            (profile(&[(64, 100, 50)], 51), "rf-rpc"),
        ] {
            for provider in ["softnic", "ibv", "sim"] {
                let decision = choose(&Plan::default(), provider, Some(profile.clone()), "here");
                assert_eq!(decision.preset(), preset, "{decision}");
                assert_eq!(decision.profile.as_ref(), Some(&profile));
                assert_eq!(decision.plan.memory, Plan::default().memory);
            }
        }
        for (provider, preset) in [("softnic", "server-reply"), ("ibv", "rf-rpc"), ("sim", "rf-rpc")] {
            let decision = choose(&Plan::default(), provider, None, "there is no profile");
            assert_eq!(decision.preset(), preset);
            assert!(decision.to_string().contains("there is no profile"), "{decision}");
        }
    }

    #[test]
    fn follows_the_profile_where_posting_and_waiting_are_unset() {
        let posting = Posting { inline_max_bytes: 128, signal_every: 32, idle_turn_ns: 25, wake_ns: 50_000 };
        let known = of_softnic().with_posting(posting).unwrap();
        let chosen = |wished: &Plan| choose(wished, "softnic", Some(known.clone()), "").plan;
        let plan = chosen(&Plan::default());
        assert_eq!(plan.memory, MemoryPolicy { inline_max_bytes: 128, signal_every: 32 });
        assert_eq!(plan.waiting, WaitStrategy::Adaptive { max_retry: 2_000 });
        assert_eq!((plan.batching, plan.geometry), (Plan::default().batching, Plan::default().geometry));
        let memory = MemoryPolicy { inline_max_bytes: 0, signal_every: 1 };
        let own = Plan { waiting: WaitStrategy::Busy, memory, ..Plan::default() };
        assert_eq!((chosen(&own).waiting, chosen(&own).memory), (WaitStrategy::Busy, memory));
        for (wake_ns, turns) in [(1, TURNS_MIN), (1_000_000_000, TURNS_MAX)] {
            let known = of_softnic().with_posting(Posting { idle_turn_ns: 1, wake_ns, ..posting }).unwrap();
            let plan = choose(&Plan::default(), "softnic", Some(known), "").plan;
            assert_eq!(plan.waiting, WaitStrategy::Adaptive { max_retry: turns as u32 });
        }
    }

    #[test]
    fn every_rule_leads_to_a_preset() {
        for preset in [ResultCost::SOFTWARE_RNIC, ResultCost::RNIC].map(ResultCost::preset) {
            assert!(PRESETS.iter().any(|known| known.name == preset), "{preset}");
        }
    }
}
