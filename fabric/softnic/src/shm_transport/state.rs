//! State machine of a queue pair: states, transitions, and which thread may make each.
//!
//! The specification's states are subdivided by what other threads must know: whether a reset is in progress, whether a
//! message arrived in RTR, and whether the peer's access to a queue pair in error has been revoked.

use std::sync::atomic::{AtomicU32, Ordering};

use farcall_verbs::{QpState, QpType, Transition};

/// The order allows the comparisons of the hot paths: the states that are reported as ERR are last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// Reported as RESET. The queues of the previous incarnation are being discarded; failures there are ignored.
    Resetting = 0,
    Reset = 1,
    Init = 2,
    Rtr = 3,
    /// Reported as RTR. A message has arrived (IBA 11.6.3.1: communication established).
    Established = 4,
    Rts = 5,
    Sqd = 6,
    Sqe = 7,
    /// Reported as ERR. The peer may still have access, so receives that it could write to cannot be flushed yet.
    Failing = 8,
    Err = 9,
}

/// Cause of a transition, and the thread that applies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateEvent {
    /// Application thread, by `modify_qp`. A transition to ERR is completed by `PeerAccessRevoked`. Not used for RESET.
    Modify(QpState),
    /// Application thread, by `modify_qp` or destruction.
    BeginReset,
    /// Application thread, when no other thread works on the queues of the previous incarnation.
    EndReset,
    /// Polling thread or service thread: the first message has arrived.
    MessageReceived,
    /// Thread that executes sends of UC or UD.
    SendFailed,
    /// Thread that finds an RC or UC queue pair unable to continue.
    Fail,
    /// Thread that applied the failure, after the peer's access was revoked.
    PeerAccessRevoked,
    /// A forked child, to which the pair does not belong.
    Inherit,
}

impl State {
    #[inline]
    const fn of(word: u32) -> Self {
        match word {
            0 => Self::Resetting,
            1 => Self::Reset,
            2 => Self::Init,
            3 => Self::Rtr,
            4 => Self::Established,
            5 => Self::Rts,
            6 => Self::Sqd,
            7 => Self::Sqe,
            8 => Self::Failing,
            _ => Self::Err,
        }
    }

    /// Returns the state as the specification names it.
    #[inline]
    pub(crate) const fn qp_state(self) -> QpState {
        match self {
            Self::Resetting | Self::Reset => QpState::Reset,
            Self::Init => QpState::Init,
            Self::Rtr | Self::Established => QpState::Rtr,
            Self::Rts => QpState::Rts,
            Self::Sqd => QpState::Sqd,
            Self::Sqe => QpState::Sqe,
            Self::Failing | Self::Err => QpState::Err,
        }
    }

    /// Transition table: returns the next state; `None` if `event` is illegal in this state.
    const fn next(self, event: StateEvent, qp_type: QpType) -> Option<Self> {
        use State::{Err, Established, Failing, Init, Reset, Resetting, Rtr, Rts, Sqd, Sqe};
        Some(match (self, event) {
            (_, StateEvent::Inherit | StateEvent::BeginReset) => Resetting,
            (Resetting, StateEvent::EndReset) => Reset,
            // A failure during a reset, or a second failure, changes nothing.
            (Resetting | Failing | Err, _) => match event {
                StateEvent::PeerAccessRevoked if matches!(self, Failing) => Err,
                _ => return None,
            },
            (_, StateEvent::Modify(QpState::Err)) => Failing,
            (_, StateEvent::Modify(QpState::Reset | QpState::Sqe)) => return None,
            (_, StateEvent::Modify(to)) => match (Transition::of(qp_type, self.qp_state(), to), to) {
                (None, _) => return None,
                (Some(_), QpState::Init) => Init,
                (Some(_), QpState::Rtr) => Rtr,
                (Some(_), QpState::Rts) => Rts,
                (Some(_), _) => Sqd,
            },
            (Rtr, StateEvent::MessageReceived) => Established,
            (Rts, StateEvent::SendFailed) => match qp_type {
                QpType::Rc => return None,
                _ => Sqe,
            },
            (Rtr | Established | Rts | Sqd | Sqe, StateEvent::Fail) => Failing,
            _ => return None,
        })
    }
}

/// State of one queue pair. Several threads change it.
pub(crate) struct StateCell(AtomicU32);

impl StateCell {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(State::Reset as u32))
    }

    #[inline]
    pub(crate) fn get(&self) -> State {
        State::of(self.0.load(Ordering::Acquire))
    }

    /// Applies an event. Returns the states before and after it; `None` if the event is illegal in this state.
    #[cold]
    pub(crate) fn apply(&self, event: StateEvent, qp_type: QpType) -> Option<(State, State)> {
        let next = |word| State::of(word).next(event, qp_type).map(|to| to as u32);
        let from = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
        Some((State::of(from), State::of(next(from)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::{Err, Established, Failing, Init, Reset, Resetting, Rtr, Rts, Sqd, Sqe};

    const STATES: [State; 10] = [Resetting, Reset, Init, Rtr, Established, Rts, Sqd, Sqe, Failing, Err];
    const QP_STATES: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

    fn events() -> Vec<StateEvent> {
        let mut events: Vec<StateEvent> = QP_STATES.map(StateEvent::Modify).to_vec();
        events.extend([
            StateEvent::BeginReset,
            StateEvent::EndReset,
            StateEvent::MessageReceived,
            StateEvent::SendFailed,
        ]);
        events.extend([StateEvent::Fail, StateEvent::PeerAccessRevoked, StateEvent::Inherit]);
        events
    }

    /// Lists all legal transitions of RC; every other one must be refused.
    #[test]
    fn the_table_has_these_transitions_and_no_others() {
        let to = StateEvent::Modify;
        let mut legal = vec![
            (Resetting, StateEvent::EndReset, Reset),
            (Reset, to(QpState::Init), Init),
            (Init, to(QpState::Init), Init),
            (Init, to(QpState::Rtr), Rtr),
            (Rtr, StateEvent::MessageReceived, Established),
            (Rtr, to(QpState::Rts), Rts),
            (Established, to(QpState::Rts), Rts),
            (Rts, to(QpState::Rts), Rts),
            (Rts, to(QpState::Sqd), Sqd),
            (Sqd, to(QpState::Sqd), Sqd),
            (Sqd, to(QpState::Rts), Rts),
            (Failing, StateEvent::PeerAccessRevoked, Err),
        ];
        legal.extend(STATES.map(|state| (state, StateEvent::BeginReset, Resetting)));
        legal.extend(STATES.map(|state| (state, StateEvent::Inherit, Resetting)));
        legal.extend([Reset, Init, Rtr, Established, Rts, Sqd, Sqe].map(|s| (s, to(QpState::Err), Failing)));
        legal.extend([Rtr, Established, Rts, Sqd, Sqe].map(|state| (state, StateEvent::Fail, Failing)));
        for state in STATES {
            for event in events() {
                let expected = legal.iter().find(|(from, by, _)| (*from, *by) == (state, event));
                let expected = expected.map(|(_, _, to)| *to);
                assert_eq!(state.next(event, QpType::Rc), expected, "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn other_transports_stop_sending_where_rc_fails() {
        for qp_type in [QpType::Uc, QpType::Ud] {
            assert_eq!(Rts.next(StateEvent::SendFailed, qp_type), Some(Sqe));
            assert_eq!(Sqe.next(StateEvent::Modify(QpState::Rts), qp_type), Some(Rts));
            for state in STATES {
                for event in events() {
                    let is_other = state.next(event, qp_type) != state.next(event, QpType::Rc);
                    let differs = [(Rts, StateEvent::SendFailed), (Sqe, StateEvent::Modify(QpState::Rts))]
                        .contains(&(state, event));
                    assert_eq!(is_other, differs, "{qp_type:?} {state:?} {event:?}");
                }
            }
        }
    }

    /// The transitions open to a program are those of `Transition`; the states here only subdivide them.
    #[test]
    fn a_program_changes_states_as_the_verbs_say() {
        for (qp_type, state, to) in [QpType::Rc, QpType::Uc, QpType::Ud]
            .into_iter()
            .flat_map(|qp_type| STATES.map(|state| (qp_type, state)))
            .flat_map(|(qp_type, state)| QP_STATES.map(|to| (qp_type, state, to)))
        {
            let may = Transition::of(qp_type, state.qp_state(), to).is_some();
            let event = if to == QpState::Reset { StateEvent::BeginReset } else { StateEvent::Modify(to) };
            let ends = match state.next(event, qp_type) {
                Some(next) => next.qp_state() == to,
                // No transition is needed, or the state is one that a program never observes.
                None if state.qp_state() == to && to == QpState::Err => true,
                None => matches!(state, Resetting) || !may,
            };
            assert!(ends, "{qp_type:?} {state:?} to {to}");
        }
    }

    #[test]
    fn words_and_states_are_the_same() {
        for state in STATES {
            assert_eq!(State::of(state as u32), state);
        }
        let cell = StateCell::new();
        assert_eq!(cell.apply(StateEvent::Modify(QpState::Init), QpType::Rc), Some((Reset, Init)));
        assert_eq!((cell.apply(StateEvent::Fail, QpType::Rc), cell.get()), (None, Init));
    }
}
