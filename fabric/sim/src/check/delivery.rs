//! Checker of messages: that each arrives complete, as often as allowed and in order.

use std::collections::BTreeMap;

use super::Violation;

/// Delivery guarantee between two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryGuarantee {
    /// A reliable connection: every message exactly once, in order.
    Reliable,
    /// An unreliable connection: every message at most once, in order.
    InOrder,
    /// Datagrams: every message up to `copies_max` times, in any order. Packet sequence numbers are not checked: a
    /// datagram duplicated by the network is indistinguishable from two equal ones.
    Datagrams {
        /// 1, or 2 over a network that duplicates packets.
        copies_max: u32,
    },
}

#[derive(Debug)]
struct Sent {
    bytes: Vec<u8>,
    times: u32,
    is_acknowledged: bool,
}

#[derive(Debug)]
struct Flow {
    guarantee: DeliveryGuarantee,
    sent: BTreeMap<u64, Sent>,
    last: u64,
}

/// The messages of flows between queue pairs. The caller numbers the flows; the messages of a flow are numbered from 1
/// in the order of sending.
#[derive(Debug, Default)]
pub struct Deliveries {
    flows: BTreeMap<u64, Flow>,
}

impl Deliveries {
    /// Begins a flow.
    pub fn open(&mut self, flow: u64, guarantee: DeliveryGuarantee) {
        let before = self.flows.insert(flow, Flow { guarantee, sent: BTreeMap::new(), last: 0 });
        assert!(before.is_none(), "way {flow} is open already");
    }

    /// Returns whether a flow has begun and not ended.
    pub fn is_open(&self, flow: u64) -> bool {
        self.flows.contains_key(&flow)
    }

    /// Returns the number of the next message.
    ///
    /// # Panics
    /// Panics if the flow is not open.
    pub fn next_number(&self, flow: u64) -> u64 {
        self.flows[&flow].sent.last_key_value().map_or(1, |(number, _)| number + 1)
    }

    /// Records a posted message.
    ///
    /// # Panics
    /// Panics if the flow is not open.
    pub fn sent(&mut self, flow: u64, number: u64, bytes: Vec<u8>) {
        let flow = self.flows.get_mut(&flow).expect("a way that is open");
        flow.sent.insert(number, Sent { bytes, times: 0, is_acknowledged: false });
    }

    /// Checks a received message.
    ///
    /// # Errors
    /// Returns an error if the message was not sent, is incomplete, or arrives too often or out of order.
    pub fn received(&mut self, flow: u64, number: u64, bytes: &[u8]) -> Result<(), Violation> {
        let says = |what: &str| Err(Violation::new(format!("way {flow:#x}: message {number} {what}")));
        let Some(way) = self.flows.get_mut(&flow) else { return says("came over a way that is closed") };
        let Some(sent) = way.sent.get_mut(&number) else { return says("was never sent") };
        if sent.bytes != bytes {
            return says("is not what was sent");
        }
        sent.times += 1;
        let copies_max = match way.guarantee {
            DeliveryGuarantee::Datagrams { copies_max } => copies_max,
            DeliveryGuarantee::Reliable | DeliveryGuarantee::InOrder => 1,
        };
        if sent.times > copies_max {
            return says(&format!("came {} times", sent.times));
        }
        let is_in_turn = match way.guarantee {
            DeliveryGuarantee::Reliable => number == way.last + 1,
            DeliveryGuarantee::InOrder => number > way.last,
            DeliveryGuarantee::Datagrams { .. } => true,
        };
        if !is_in_turn {
            return says(&format!("came after message {}", way.last));
        }
        way.last = number;
        Ok(())
    }

    /// Records that a message of a reliable connection completed successfully at its sender.
    pub fn acknowledged(&mut self, flow: u64, number: u64) {
        let sent = self.flows.get_mut(&flow).and_then(|flow| flow.sent.get_mut(&number));
        if let Some(sent) = sent {
            sent.is_acknowledged = true;
        }
    }

    /// Returns how often a message has arrived.
    pub fn times(&self, flow: u64, number: u64) -> u32 {
        self.flows.get(&flow).and_then(|flow| flow.sent.get(&number)).map_or(0, |sent| sent.times)
    }

    /// Ends a flow, after its receiver has polled all completions.
    ///
    /// # Errors
    /// Returns an error if a message was acknowledged and never arrived.
    pub fn closed(&mut self, flow: u64) -> Result<(), Violation> {
        let Some(way) = self.flows.remove(&flow) else { return Ok(()) };
        match way.sent.iter().find(|(_, sent)| sent.is_acknowledged && sent.times == 0) {
            Some((number, _)) => {
                let what = format!("way {flow:#x}: message {number} was acknowledged and never came");
                Err(Violation::new(what))
            }
            None => Ok(()),
        }
    }

    /// Ends a flow whose receiver has crashed, without checks.
    pub fn forgotten(&mut self, flow: u64) {
        self.flows.remove(&flow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether messages 1 to 3, of one byte each, may arrive in this sequence.
    fn may_come(guarantee: DeliveryGuarantee, list: &[u64]) -> bool {
        let mut messages = Deliveries::default();
        messages.open(7, guarantee);
        for number in 1..=3 {
            assert_eq!(messages.next_number(7), number);
            messages.sent(7, number, vec![number as u8]);
        }
        list.iter().try_for_each(|number| messages.received(7, *number, &[*number as u8])).is_ok()
    }

    #[test]
    fn checks_each_delivery_guarantee() {
        use DeliveryGuarantee::{Datagrams, InOrder, Reliable};
        assert!(may_come(Reliable, &[1, 2, 3]) && may_come(Reliable, &[1]));
        assert!(!may_come(Reliable, &[1, 3]), "lost");
        assert!(!may_come(Reliable, &[1, 1]), "twice");
        assert!(may_come(InOrder, &[2, 3]) && may_come(InOrder, &[]));
        assert!(!may_come(InOrder, &[2, 1]), "out of order");
        assert!(!may_come(InOrder, &[2, 2]), "twice");
        assert!(may_come(Datagrams { copies_max: 1 }, &[3, 1]));
        assert!(!may_come(Datagrams { copies_max: 1 }, &[3, 1, 3]), "twice");
        assert!(may_come(Datagrams { copies_max: 2 }, &[3, 1, 3]));
        assert!(!may_come(Datagrams { copies_max: 2 }, &[3, 3, 3]), "three times");
        assert!(!may_come(InOrder, &[4]), "never sent");
    }

    #[test]
    fn detects_torn_and_lost_acknowledged_messages() {
        let mut messages = Deliveries::default();
        messages.open(1, DeliveryGuarantee::Reliable);
        messages.sent(1, 1, vec![1, 2, 3]);
        assert!(messages.received(1, 1, &[1, 2, 0]).is_err(), "torn");
        assert!(messages.received(1, 1, &[1, 2]).is_err(), "cut");
        messages.acknowledged(1, 1);
        assert!(messages.closed(1).is_err(), "acknowledged and lost");
        assert!(messages.received(1, 1, &[1, 2, 3]).is_err(), "over a way that is closed");
        messages.open(1, DeliveryGuarantee::Reliable);
        messages.sent(1, 1, Vec::new());
        assert!(messages.received(1, 1, &[]).is_ok());
        messages.acknowledged(1, 1);
        assert_eq!((messages.times(1, 1), messages.closed(1)), (1, Ok(())));
    }
}
