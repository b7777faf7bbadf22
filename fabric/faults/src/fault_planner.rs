//! Fault decisions for send requests.

use std::time::Duration;

use farcall_verbs::{QpAttr, QpType, RnrTimer, WcStatus, WrOpcode};

use crate::plan::{Kind, Plan};
use crate::spec::Chance;

/// The decision about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The request is executed unchanged.
    Pass,
    /// The request is refused, as if the queue were full.
    Refuse,
    /// The connection breaks: the request fails with this status after this delay.
    Break(Kind, WcStatus, Duration),
    /// The queue pair enters the error state.
    Fatal(Kind),
    /// The request is executed, but its message is lost.
    Lose,
    /// The request is executed, and completes with this delay.
    Late(Kind, Duration),
}

/// Retry parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    /// The local timer code. The peer's, which is the one that applies, is not known here and usually has the same
    /// value.
    min_rnr_timer: RnrTimer,
    rnr_retry: u8,
    timeout: u8,
    retry_cnt: u8,
}

/// Value of `rnr_retry` for unlimited retries.
const UNLIMITED_RETRIES: u8 = 7;

/// Maximum number of consecutive failures of a request with unlimited retries.
const TRIES_MAX: u64 = 64;

impl Retries {
    /// Parameters before a connection is established.
    pub(crate) const NONE: Self = Self { min_rnr_timer: RnrTimer(0), rnr_retry: 0, timeout: 0, retry_cnt: 0 };

    /// Applies the changed attributes.
    pub(crate) fn modify(&mut self, attr: &QpAttr) {
        self.min_rnr_timer = attr.min_rnr_timer.unwrap_or(self.min_rnr_timer);
        self.rnr_retry = attr.rnr_retry.unwrap_or(self.rnr_retry);
        self.timeout = attr.timeout.unwrap_or(self.timeout);
        self.retry_cnt = attr.retry_cnt.unwrap_or(self.retry_cnt);
    }

    /// Returns the acknowledgement timeout; `None` means infinite.
    fn ack_timeout(&self) -> Option<Duration> {
        (self.timeout != 0).then(|| Duration::from_nanos(4096 << (self.timeout & 31)))
    }
}

/// Makes the decisions about the requests of one queue pair.
pub(crate) struct FaultPlanner {
    pub(crate) qp_type: QpType,
    /// Index of the queue pair in the process's order of creation.
    pub(crate) index: u64,
    pub(crate) retries: Retries,
}

impl FaultPlanner {
    /// Returns how often in succession a fault happens to one request.
    fn times(&self, plan: &Plan, kind: Kind, chance: Chance, number: u64) -> u32 {
        let tries = 0..TRIES_MAX;
        let happens = |n: &u64| {
            let at = number.wrapping_mul(TRIES_MAX).wrapping_add(*n);
            chance.is_possible() && chance.hits(plan.bits(kind, self.index, at))
        };
        tries.take_while(happens).count() as u32
    }

    /// Decides about the request with index `number` of the queue pair, from 0.
    pub(crate) fn decide(&self, plan: &Plan, opcode: WrOpcode, number: u64) -> Decision {
        let spec = &plan.spec;
        let hits = |kind, chance: Chance| chance.hits(plan.bits(kind, self.index, number));
        if hits(Kind::PostFull, spec.post_full) {
            return Decision::Refuse;
        }
        if hits(Kind::QpFatal, spec.qp_fatal) {
            return Decision::Fatal(Kind::QpFatal);
        }
        let is_reliable = self.qp_type == QpType::Rc;
        if hits(Kind::KillQp, spec.kill_qp) {
            // Without acknowledgements the sender cannot detect that the peer has failed.
            let broken = Decision::Break(Kind::KillQp, WcStatus::RETRY_EXC_ERR, Duration::ZERO);
            return if is_reliable { broken } else { Decision::Fatal(Kind::KillQp) };
        }
        if !is_reliable {
            return if hits(Kind::Drop, spec.drop) { Decision::Lose } else { Decision::Pass };
        }
        if opcode.consumes_receive() {
            let times = self.times(plan, Kind::Rnr, spec.rnr, number);
            let timer = self.retries.min_rnr_timer.duration();
            let allowed = if self.retries.rnr_retry >= UNLIMITED_RETRIES {
                u32::MAX
            } else {
                self.retries.rnr_retry.into()
            };
            if times > allowed {
                return Decision::Break(Kind::Rnr, WcStatus::RNR_RETRY_EXC_ERR, timer * allowed);
            }
            if times > 0 {
                return Decision::Late(Kind::Rnr, timer * times);
            }
        }
        let Some(timeout) = self.retries.ack_timeout() else { return Decision::Pass };
        let (times, allowed) =
            (self.times(plan, Kind::Drop, spec.drop, number), u32::from(self.retries.retry_cnt));
        if times > allowed {
            return Decision::Break(Kind::Drop, WcStatus::RETRY_EXC_ERR, timeout * (allowed + 1));
        }
        if times > 0 { Decision::Late(Kind::Drop, timeout * times) } else { Decision::Pass }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Faults;

    fn decide(text: &str, qp_type: QpType, opcode: WrOpcode, rnr_retry: u8) -> Decision {
        let faults = Faults::new(text.parse().unwrap(), None);
        let retries = Retries { min_rnr_timer: RnrTimer(12), rnr_retry, timeout: 1, retry_cnt: 2 };
        FaultPlanner { qp_type, index: 0, retries }.decide(faults.plan(), opcode, 5)
    }

    #[test]
    fn a_receiver_that_is_never_ready() {
        let timer = RnrTimer(12).duration();
        let decision = |retry| decide("seed=1,rnr=1", QpType::Rc, WrOpcode::SEND, retry);
        assert_eq!(decision(0), Decision::Break(Kind::Rnr, WcStatus::RNR_RETRY_EXC_ERR, Duration::ZERO));
        assert_eq!(decision(3), Decision::Break(Kind::Rnr, WcStatus::RNR_RETRY_EXC_ERR, timer * 3));
        assert_eq!(decision(7), Decision::Late(Kind::Rnr, timer * 64), "for ever has an end");
        assert_eq!(decide("seed=1,rnr=1", QpType::Rc, WrOpcode::WRITE, 0), Decision::Pass);
        assert_eq!(decide("seed=1,rnr=1", QpType::Ud, WrOpcode::SEND, 0), Decision::Pass);
    }

    #[test]
    fn loses_or_retransmits_a_lost_message() {
        for qp_type in [QpType::Uc, QpType::Ud] {
            assert_eq!(decide("seed=1,drop=1", qp_type, WrOpcode::SEND, 7), Decision::Lose);
        }
        let timeout = Duration::from_nanos(8192);
        let decision = decide("seed=1,drop=1", QpType::Rc, WrOpcode::READ, 7);
        assert_eq!(decision, Decision::Break(Kind::Drop, WcStatus::RETRY_EXC_ERR, timeout * 3));
    }

    #[test]
    fn a_broken_connection_and_a_broken_queue_pair() {
        let broken = Decision::Break(Kind::KillQp, WcStatus::RETRY_EXC_ERR, Duration::ZERO);
        assert_eq!(decide("seed=1,kill_qp=1", QpType::Rc, WrOpcode::WRITE, 7), broken);
        assert_eq!(decide("seed=1,kill_qp=1", QpType::Ud, WrOpcode::SEND, 7), Decision::Fatal(Kind::KillQp));
        let both = decide("seed=1,kill_qp=1,qp_fatal=1,post_full=1", QpType::Rc, WrOpcode::WRITE, 7);
        assert_eq!(both, Decision::Refuse);
    }
}
