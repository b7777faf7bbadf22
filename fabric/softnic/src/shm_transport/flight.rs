//! Events of the flight recorders of queue pairs, and their textual form.

use farcall_verbs::{QpState, WcStatus, WrOpcode};

/// Number of events stored for each queue pair.
pub(crate) const FLIGHT_RECORDS: usize = 32;

/// Kind of event; its argument is given in parentheses. Other builds read the recorders, so numbers never change
/// meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Event {
    /// The state changed (new state).
    State = 1,
    /// A request began to wait, after a period without waiting (reason: number of a `WaitReason`).
    Wait = 2,
    /// A send request failed (completion status).
    SendFailed = 3,
    /// A receive failed (completion status).
    ReceiveFailed = 4,
    /// The connection to the peer was established (queue pair number of the peer).
    Connected = 5,
    /// A request over an unreliable transport was dropped (opcode).
    Dropped = 6,
    /// A ring for datagrams was requested from a destination (its queue pair number).
    Asked = 7,
    /// A ring for datagrams was granted to a sender (its queue pair number).
    Opened = 8,
    /// The ring of a sender was revoked in favour of other senders (queue pair number of the sender).
    Evicted = 9,
}

impl Event {
    fn of(code: u64) -> Option<Self> {
        use Event::{Asked, Connected, Dropped, Evicted, Opened, ReceiveFailed, SendFailed, State, Wait};
        [State, Wait, SendFailed, ReceiveFailed, Connected, Dropped, Asked, Opened, Evicted]
            .into_iter()
            .find(|event| *event as u64 == code)
    }
}

/// Textual form of an event of a queue pair's flight recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightEvent {
    /// Name of the event, for programs to match.
    pub event: &'static str,
    /// The argument: a state, a completion status, an opcode, a queue pair's number.
    pub about: String,
    /// Event and argument as a sentence for users.
    pub text: String,
}

/// Returns name and description of a wait reason, by its number in the recorder.
fn awaited(number: u64) -> Option<(&'static str, &'static str)> {
    match number {
        0 => Some(("receiver", "for a receive, or room at the receiver")),
        1 => Some(("peer", "for the peer to be there")),
        2 => Some(("target", "for the target to take what was sent")),
        3 => Some(("answer", "for an answer of the target's process")),
        _ => None,
    }
}

fn opcode(number: u32) -> Option<&'static str> {
    Some(match WrOpcode(number) {
        WrOpcode::WRITE => "RDMA_WRITE",
        WrOpcode::WRITE_WITH_IMM => "RDMA_WRITE_WITH_IMM",
        WrOpcode::SEND => "SEND",
        WrOpcode::SEND_WITH_IMM => "SEND_WITH_IMM",
        WrOpcode::READ => "RDMA_READ",
        WrOpcode::ATOMIC_CMP_AND_SWP => "ATOMIC_CMP_AND_SWP",
        WrOpcode::ATOMIC_FETCH_AND_ADD => "ATOMIC_FETCH_AND_ADD",
        _ => return None,
    })
}

impl FlightEvent {
    /// Returns the textual form of a code and an argument from a block whose label begins with `softnic`; `None` if
    /// this version does not know the event.
    pub fn of(code: u64, argument: u64) -> Option<Self> {
        let made = |event, about: String, text| Some(Self { event, about, text });
        let number = u32::try_from(argument).ok()?;
        let failed = |event, whose: &str| {
            let status = WcStatus(number);
            let text = format!("{whose} failed: {}, {}", status.name(), status.meaning());
            made(event, status.name().into(), text)
        };
        let of_pair = |event, what: &str| {
            let about = format!("{argument:#08x}");
            let text = format!("{what} qp {about}");
            made(event, about, text)
        };
        match Event::of(code)? {
            Event::State => {
                let state = QpState::from_raw(number)?;
                made("state", state.to_string(), format!("state {state}"))
            }
            Event::Wait => {
                let (word, text) = awaited(argument)?;
                made("wait", word.into(), format!("a request waits {text}"))
            }
            Event::SendFailed => failed("send_failed", "a send request"),
            Event::ReceiveFailed => failed("receive_failed", "a receive"),
            Event::Connected => of_pair("connected", "reached the peer,"),
            Event::Dropped => {
                let opcode = opcode(number)?;
                made(
                    "dropped",
                    opcode.into(),
                    format!("a {opcode} was dropped: the target could not take it"),
                )
            }
            Event::Asked => of_pair("asked", "asks for a way to"),
            Event::Opened => of_pair("opened", "opened a way from"),
            Event::Evicted => of_pair("evicted", "took the way back from"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(event: Event, argument: u64) -> (&'static str, String) {
        let words = FlightEvent::of(event as u64, argument).unwrap();
        assert!(words.text.len() > words.about.len(), "{words:?}");
        (words.event, words.about)
    }

    #[test]
    fn every_event_has_words() {
        assert_eq!(words(Event::State, QpState::Err as u64), ("state", "ERR".into()));
        assert_eq!(words(Event::State, QpState::Reset as u64), ("state", "RESET".into()));
        assert_eq!(words(Event::Wait, 0), ("wait", "receiver".into()));
        assert_eq!(words(Event::SendFailed, 13), ("send_failed", "RNR_RETRY_EXC_ERR".into()));
        assert_eq!(words(Event::ReceiveFailed, 1), ("receive_failed", "LOC_LEN_ERR".into()));
        assert_eq!(words(Event::Dropped, 2), ("dropped", "SEND".into()));
        for (event, word) in [
            (Event::Connected, "connected"),
            (Event::Asked, "asked"),
            (Event::Opened, "opened"),
            (Event::Evicted, "evicted"),
        ] {
            assert_eq!(words(event, 0x12), (word, "0x000012".into()));
        }
    }

    #[test]
    fn what_this_version_does_not_know_has_none() {
        for (code, argument) in [(0, 0), (10, 0), (1, 99), (2, 4), (6, 1 << 40), (3, 1 << 40)] {
            assert_eq!(FlightEvent::of(code, argument), None);
        }
    }
}
