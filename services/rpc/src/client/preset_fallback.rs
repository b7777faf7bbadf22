//! Presets that a client without a configured preset tries in sequence.

use farcall_link::bootstrap::{BootstrapError, Hello, RefusalKind};
use farcall_link::{Nic, PRESETS, Plan, Preset};
use farcall_verbs::{Error, with_sources};

use super::options::{ClientOptions, Verbs};
use crate::error::ConnectError;
use crate::tune::choose::choose;
use crate::tune::{Decision, Peer, Scope, find_profile};

/// The current options, and the presets to try if the server does not offer the current one.
pub(super) struct PresetFallback {
    options: ClientOptions,
    decision: Option<Decision>,
    /// Nearest first.
    left: std::vec::IntoIter<&'static Preset>,
}

impl PresetFallback {
    /// Selects the first preset if the options do not specify one.
    ///
    /// # Errors
    /// Returns an error if the profile that the options name is invalid.
    pub fn new(nic: &Nic, address: &str, options: ClientOptions) -> Result<Self, Error> {
        let mut presets = Self { options, decision: None, left: Vec::new().into_iter() };
        if presets.options.verbs == Verbs::OfPlan {
            return Ok(presets);
        }
        let (profile, source) = match presets.options.profile.take() {
            Some(given) => (Some(given), "the costs of the profile given".to_owned()),
            None => find_profile(&Scope::of(nic, Peer::at(address))),
        };
        let decision = choose(&presets.options.config.plan, nic.provider(), profile, &source);
        presets.left = others_by_distance(&decision.plan).into_iter();
        presets.decide(decision);
        Ok(presets)
    }

    /// Calls `connect` with one preset after another until it succeeds.
    pub fn run<T>(
        mut self,
        mut connect: impl FnMut(ClientOptions) -> Result<T, ConnectError>,
    ) -> Result<(T, Option<Decision>), ConnectError> {
        loop {
            match connect(self.options()) {
                Ok(connected) => return Ok((connected, self.decision())),
                Err(error) if self.select_next(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn options(&self) -> ClientOptions {
        self.options.clone()
    }

    pub fn decision(self) -> Option<Decision> {
        self.decision
    }

    /// Selects the next preset, if there is one and `error` is due to the preset.
    pub fn select_next(&mut self, error: &ConnectError) -> bool {
        if names_no_thread(&self.options, error) {
            // A server of an earlier version requires that clients name a thread.
            self.options.config.thread = 0;
            return true;
        }
        if !is_of_preset(error) {
            return false;
        }
        let (Some(mut decision), Some(next)) = (self.decision.take(), self.left.next()) else { return false };
        decision.because =
            format!("{} cannot be had ({}); {}", decision.preset(), with_sources(error), decision.because);
        decision.plan = with_paths_of(next, decision.plan);
        self.decide(decision);
        true
    }

    fn decide(&mut self, decision: Decision) {
        self.options.config.plan = decision.plan;
        self.options.profile.clone_from(&decision.profile);
        self.decision = Some(decision);
    }
}

fn with_paths_of(preset: &Preset, plan: Plan) -> Plan {
    let Plan { request, response, transport, .. } = preset.plan;
    Plan { request, response, transport, ..plan }
}

/// Returns all presets except the chosen one, nearest first; equal distances in the order of the table.
fn others_by_distance(chosen: &Plan) -> Vec<&'static Preset> {
    let mut others: Vec<&Preset> = PRESETS.iter().filter(|preset| preset.plan.distance(chosen) > 0).collect();
    others.sort_by_key(|preset| preset.plan.distance(chosen));
    others
}

/// Returns whether another preset may succeed: the server does not offer this one, or the local device does not
/// support it.
fn is_of_preset(error: &ConnectError) -> bool {
    match error {
        ConnectError::Handshake(BootstrapError::Refused(refusal)) => refusal.kind == RefusalKind::Plan,
        ConnectError::Verbs(error) => matches!(error, Error::Unsupported { .. }),
        _ => false,
    }
}

/// Returns whether the server refuses clients that do not name a thread.
pub(super) fn names_no_thread(options: &ClientOptions, error: &ConnectError) -> bool {
    let ConnectError::Handshake(BootstrapError::Refused(refusal)) = error else { return false };
    refusal.kind == RefusalKind::NoSuchThread && options.config.thread == Hello::ANY_THREAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_preset_is_tried_next_and_each_once() {
        for chosen in PRESETS {
            let others = others_by_distance(&chosen.plan);
            assert_eq!(others.len(), PRESETS.len() - 1);
            assert!(others.is_sorted_by_key(|preset| preset.plan.distance(&chosen.plan)));
            assert!(others.iter().all(|preset| preset.name != chosen.name));
        }
        assert_eq!(others_by_distance(&Plan::named("herd").unwrap())[0].name, "uc-rpc");
    }
}
