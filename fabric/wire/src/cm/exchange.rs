//! Reliable exchange of messages over a lossy transport: a request is resent until its reply arrives (volume 1, section
//! 12.9.8).

use std::time::Duration;

use crate::cm::mad::Mad;
use crate::cm::message::Message;

/// Initial retransmission timeout of a request. It is shorter than the response timeout in the REQ, so that a loss on a
/// local network is repaired soon; it is doubled each time.
const TIMEOUT_MIN: Duration = Duration::from_millis(250);
/// Maximum retransmission timeout.
const TIMEOUT_MAX: Duration = Duration::from_secs(4);
/// Maximum number of transmissions of a request; with the timeouts above this takes more than 40 seconds.
const TRANSMISSIONS_MAX: u32 = 15;

/// State of the messages that one end of a connection has sent and received. The caller provides the time.
#[derive(Debug, Default)]
pub struct Exchange {
    request: Option<PendingRequest>,
    /// The last message received, and the reply to it.
    last_received: Option<Mad>,
    last_reply: Option<Mad>,
}

#[derive(Debug)]
struct PendingRequest {
    mad: Mad,
    sent: u32,
    due: Duration,
}

/// Classification of a received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageClass {
    /// A new message for the connection.
    New,
    /// A duplicate: its sender has not received the reply, which may be resent.
    Duplicate(Option<Mad>),
}

/// Action of the retransmission timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimerAction {
    /// Nothing is due.
    Nothing,
    /// The request must be resent.
    Resend(Mad),
    /// The request was sent the maximum number of times.
    Unanswered,
}

impl Exchange {
    /// Creates the state of the end that received a request.
    #[must_use]
    pub fn for_request(request: Mad) -> Self {
        Self { last_received: Some(request), ..Self::default() }
    }

    /// Records a message that is sent.
    pub fn sent(&mut self, mad: &Mad, now: Duration) {
        let is_request = matches!(
            mad.message,
            Message::Req(_) | Message::Rep(_) | Message::Dreq { .. } | Message::SidrReq(_)
        );
        self.request =
            is_request.then(|| PendingRequest { mad: mad.clone(), sent: 1, due: now + TIMEOUT_MIN });
        self.last_reply = Some(mad.clone());
    }

    /// Classifies a received message of the connection.
    pub fn received(&mut self, mad: &Mad, now: Duration) -> MessageClass {
        if let Message::Mra { service_timeout, .. } = mad.message {
            if let Some(request) = &mut self.request {
                // 4.096 µs × 2 to the power.
                let longer = Duration::from_nanos(4_096 << service_timeout.min(24));
                request.due = request.due.max(now + longer);
            }
            return MessageClass::New;
        }
        if self.last_received.as_ref() == Some(mad) {
            return MessageClass::Duplicate(self.last_reply.clone());
        }
        self.request = None;
        self.last_reply = None;
        self.last_received = Some(mad.clone());
        MessageClass::New
    }

    /// Returns whether a request is the one that this end received last.
    #[must_use]
    pub fn is_last_request(&self, request: &Mad) -> bool {
        self.last_received.as_ref() == Some(request)
    }

    /// Returns the time at which the timer expires.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        self.request.as_ref().map(|request| request.due)
    }

    /// Returns the due action.
    pub fn tick(&mut self, now: Duration) -> TimerAction {
        let Some(request) = self.request.as_mut().filter(|request| request.due <= now) else {
            return TimerAction::Nothing;
        };
        if request.sent == TRANSMISSIONS_MAX {
            self.request = None;
            return TimerAction::Unanswered;
        }
        request.due = now + (TIMEOUT_MIN * 2_u32.pow(request.sent.min(4))).min(TIMEOUT_MAX);
        request.sent += 1;
        TimerAction::Resend(request.mad.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::message::RejectedMessage;

    fn mad(transaction_id: u64, message: Message) -> Mad {
        Mad { transaction_id, local_comm_id: 1, remote_comm_id: 2, message }
    }

    fn dreq() -> Mad {
        mad(1, Message::Dreq { remote_qp_num: 3 })
    }

    #[test]
    fn resends_a_request_until_its_reply_or_the_limit() {
        let mut exchange = Exchange::default();
        exchange.sent(&dreq(), Duration::ZERO);
        let mut times = 1;
        let mut before = Duration::ZERO;
        let last = loop {
            let due = exchange.due().unwrap();
            assert_eq!(exchange.tick(due - Duration::from_nanos(1)), TimerAction::Nothing);
            assert!(due - before <= TIMEOUT_MAX);
            before = due;
            match exchange.tick(due) {
                TimerAction::Resend(again) => assert_eq!(again, dreq()),
                other => break other,
            }
            times += 1;
        };
        assert_eq!((last, times, exchange.due()), (TimerAction::Unanswered, TRANSMISSIONS_MAX, None));

        exchange.sent(&dreq(), Duration::ZERO);
        assert_eq!(exchange.received(&mad(1, Message::Drep), Duration::ZERO), MessageClass::New);
        assert_eq!(exchange.due(), None);
        exchange.sent(&mad(1, Message::Rtu), Duration::ZERO);
        assert_eq!(exchange.due(), None, "nobody answers to an RTU");
    }

    #[test]
    fn handles_a_duplicate_once_and_replies_twice() {
        let mut exchange = Exchange::for_request(dreq());
        assert!(exchange.is_last_request(&dreq()) && !exchange.is_last_request(&mad(2, Message::Drep)));
        assert_eq!(
            exchange.received(&dreq(), Duration::ZERO),
            MessageClass::Duplicate(None),
            "not answered yet"
        );
        exchange.sent(&mad(1, Message::Drep), Duration::ZERO);
        for _ in 0..3 {
            let again = exchange.received(&dreq(), Duration::ZERO);
            assert_eq!(again, MessageClass::Duplicate(Some(mad(1, Message::Drep))));
        }
    }

    #[test]
    fn an_mra_extends_the_timeout() {
        let mut exchange = Exchange::default();
        exchange.sent(&dreq(), Duration::ZERO);
        let receipt =
            |service_timeout| mad(1, Message::Mra { received: RejectedMessage::Other, service_timeout });
        assert_eq!(exchange.received(&receipt(20), Duration::ZERO), MessageClass::New);
        // 4.096 µs × 2^20.
        assert_eq!(exchange.due(), Some(Duration::from_nanos(4_294_967_296)));
        exchange.received(&receipt(31), Duration::ZERO);
        assert!(exchange.due().unwrap() < Duration::from_secs(70), "bounded, whatever the peer says");
    }
}
