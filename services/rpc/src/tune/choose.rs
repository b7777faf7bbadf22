//! What a client takes that was told nothing: the rules.
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
//! What a plan holds that is not the default stays: somebody chose it. Under `rf-rpc` each method goes on adapting: it
//! turns to server-reply, and back, by its processing times (RF-RPC, section 3.2).

use std::fmt;

use farcall_link::{MemoryPolicy, Plan, Waiting};

use super::{LinkProfile, Posting};

/// What was chosen for a client, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What it uses.
    pub plan: Plan,
    /// The costs that were known.
    pub profile: Option<LinkProfile>,
    /// The rule and where its numbers come from, in words.
    pub because: String,
}

/// The provider whose READs and WRITEs are copies by the processor that posts them.
const SOFTWARE_RNIC: &str = "softnic";

/// Nanoseconds of the server's side that one result takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResultCost {
    /// A READ at full rate, of the size below which READs get no faster.
    read_ns: u64,
    /// A reply, by who posts it.
    reply_ns: u64,
}

impl ResultCost {
    /// As `farcall tune` finds it between two processes; the two numbers move together from machine to machine.
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

/// Applies the rules to what a client wishes. `source` says where the profile comes from, or why there is none.
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

/// Inline limit, signalling and waiting, where the plan has the default's.
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
    // Who polls as long as a wake-up takes waits at most twice as long as who knew how long it will be.
    let turns = (posting.wake_ns / posting.idle_turn_ns).clamp(TURNS_MIN, TURNS_MAX);
    let waiting = unless_set(wished.waiting, usual.waiting, Waiting::Adaptive { max_retry: turns as u32 });
    Plan { memory, waiting, ..wished }
}

/// Turns in vain before a client sleeps: not at once, and not after seconds, whatever a profile says.
const TURNS_MIN: u64 = 64;
const TURNS_MAX: u64 = 1_000_000;

fn unless_set<T: PartialEq>(wished: T, usual: T, chosen: T) -> T {
    if wished == usual { chosen } else { wished }
}

impl Decision {
    /// The preset's name.
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
            // As much as a READ: no READ that finds nothing, and one round trip.
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
    fn posting_and_waiting_follow_the_profile_where_nobody_chose_them() {
        let posting = Posting { inline_max_bytes: 128, signal_every: 32, idle_turn_ns: 25, wake_ns: 50_000 };
        let known = of_softnic().with_posting(posting).unwrap();
        let chosen = |wished: &Plan| choose(wished, "softnic", Some(known.clone()), "").plan;
        let plan = chosen(&Plan::default());
        assert_eq!(plan.memory, MemoryPolicy { inline_max_bytes: 128, signal_every: 32 });
        assert_eq!(plan.waiting, Waiting::Adaptive { max_retry: 2_000 });
        assert_eq!((plan.batching, plan.geometry), (Plan::default().batching, Plan::default().geometry));
        let memory = MemoryPolicy { inline_max_bytes: 0, signal_every: 1 };
        let own = Plan { waiting: Waiting::Busy, memory, ..Plan::default() };
        assert_eq!((chosen(&own).waiting, chosen(&own).memory), (Waiting::Busy, memory));
        for (wake_ns, turns) in [(1, TURNS_MIN), (1_000_000_000, TURNS_MAX)] {
            let known = of_softnic().with_posting(Posting { idle_turn_ns: 1, wake_ns, ..posting }).unwrap();
            let plan = choose(&Plan::default(), "softnic", Some(known), "").plan;
            assert_eq!(plan.waiting, Waiting::Adaptive { max_retry: turns as u32 });
        }
    }

    #[test]
    fn every_rule_leads_to_a_preset() {
        for preset in [ResultCost::SOFTWARE_RNIC, ResultCost::RNIC].map(ResultCost::preset) {
            assert!(PRESETS.iter().any(|known| known.name == preset), "{preset}");
        }
    }
}
