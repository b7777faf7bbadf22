//! Completion queues.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use farcall_verbs::{AsyncEventKind, CompChannel, CqInitAttr, Error, Notify, RawCq, Result, Wc};

use crate::channel::{Descriptor, SimChannel};
use crate::fabric::Fabric;
use crate::packet::Node;
use crate::queue::Event;
use crate::state::State;
use crate::trace::What;

/// What polling a completion sets free in its queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frees {
    /// All sends up to the one with this ordinal.
    SendsTo(u64),
    /// One receive of the pair's own queue.
    Receive,
    /// Nothing: the receive was a shared queue's.
    Nothing,
}

/// A completion in its queue.
pub(crate) struct Entry {
    pub(crate) wc: Wc,
    pub(crate) qp: u32,
    pub(crate) frees: Frees,
}

/// A completion queue as the device knows it.
pub(crate) struct Cq {
    context: u32,
    node: Node,
    depth: u32,
    entries: VecDeque<Entry>,
    channel: Option<u32>,
    armed: Option<Notify>,
    has_overrun: bool,
}

impl Cq {
    pub(crate) fn forget(&mut self, qp: u32) {
        self.entries.retain(|entry| entry.qp != qp);
    }
}

impl State {
    /// Puts a completion into its queue.
    pub(crate) fn complete(&mut self, id: u32, entry: Entry, is_solicited: bool) {
        let wc = &entry.wc;
        let numbers = [u64::from(id), u64::from(wc.qp_num) << 32 | u64::from(wc.status.0), wc.wr_id];
        self.note(What::Complete, [numbers[0], numbers[1], numbers[2], u64::from(wc.byte_len)]);
        let Some(cq) = self.cqs.get_mut(id) else { return };
        if cq.has_overrun {
            return;
        }
        let (context, node) = (cq.context, cq.node);
        if cq.entries.len() >= cq.depth as usize {
            cq.has_overrun = true;
            self.async_event(context, AsyncEventKind::CqErr, id);
            let now_ns = self.now_ns;
            self.at(now_ns, Event::Overrun { cq: id });
            return;
        }
        let is_event = match cq.armed {
            Some(Notify::Any) => true,
            Some(Notify::Solicited) => is_solicited || !entry.wc.status.is_success(),
            None => false,
        };
        cq.entries.push_back(entry);
        if is_event {
            cq.armed = None;
            if let Some(channel) = cq.channel {
                self.tell(channel, id);
            }
        }
        self.touched(node);
    }

    fn tell(&mut self, channel: u32, cq: u32) {
        if let Some(open) = self.channels.get_mut(channel) {
            open.events.push_back(cq);
            let node = open.node;
            self.note(What::Event, [u64::from(channel), u64::from(cq), 0, 0]);
            self.ready(node, Descriptor::Channel(channel).fd());
        }
    }

    /// The queue pairs of a queue that has overrun go to the error state.
    pub(crate) fn overrun(&mut self, cq: u32) {
        let victims: Vec<u32> = self
            .qps
            .iter()
            .filter(|(_, qp)| qp.send_cq == cq || qp.recv_cq == cq)
            .map(|(id, _)| id)
            .collect();
        for id in victims {
            self.with_qp(id, |state, qp| qp.enter_error(state));
        }
    }
}

/// A completion queue as its owner has it.
pub(crate) struct SimCq {
    fabric: Arc<Fabric>,
    pub(crate) id: u32,
    /// Kept as long as the queue.
    has_channel: bool,
}

impl SimCq {
    pub(crate) fn create(
        fabric: &Arc<Fabric>,
        (context, node): (u32, Node),
        attr: &CqInitAttr<'_>,
    ) -> Result<Self> {
        const OP: &str = "create_cq";
        let channel = attr.channel.map(|channel| own_channel(fabric, channel)).transpose()?;
        let mut state = fabric.call();
        let limit = state.params.limits.cqes;
        if attr.cqe == 0 || attr.cqe > limit {
            return Err(Error::invalid(OP, format!("{} completions: 1 to {limit}", attr.cqe)));
        }
        let id = state.cqs.insert(Cq {
            context,
            node,
            depth: attr.cqe,
            entries: VecDeque::new(),
            channel,
            armed: None,
            has_overrun: false,
        });
        state.note(What::Create, [3, u64::from(id), u64::from(attr.cqe), 0]);
        drop(state);
        Ok(Self { fabric: fabric.clone(), id, has_channel: channel.is_some() })
    }
}

fn own_channel(fabric: &Arc<Fabric>, channel: &dyn CompChannel) -> Result<u32> {
    match channel.as_any().downcast_ref::<SimChannel>() {
        Some(own) if Arc::ptr_eq(&own.fabric, fabric) => Ok(own.id),
        _ => Err(Error::invalid("create_cq", "the channel is another provider's or another world's")),
    }
}

impl Drop for SimCq {
    fn drop(&mut self) {
        let mut state = self.fabric.call();
        if let Some(cq) = state.cqs.remove(self.id)
            && let Some(channel) = cq.channel.and_then(|id| state.channels.get_mut(id))
        {
            channel.events.retain(|event| *event != self.id);
        }
        state.note(What::Destroy, [3, u64::from(self.id), 0, 0]);
    }
}

impl RawCq for SimCq {
    fn id(&self) -> u32 {
        self.id
    }

    fn poll(&mut self, wc: &mut [Wc]) -> Result<usize> {
        let mut state = self.fabric.poll();
        let state = &mut *state;
        let Some(cq) = state.cqs.get_mut(self.id) else { return Ok(0) };
        if cq.has_overrun {
            return Err(Error::InvalidState {
                operation: "poll_cq",
                object: format!("completion queue {}", self.id),
                state: "overrun".into(),
                remedy: "destroy it; make it as long as all requests that may be outstanding together",
            });
        }
        let mut got = 0;
        while got < wc.len() {
            let Some(entry) = cq.entries.pop_front() else { break };
            wc[got] = entry.wc;
            got += 1;
            if let Some(qp) = state.qps.get_mut(entry.qp) {
                qp.polled(entry.frees);
            }
        }
        Ok(got)
    }

    fn req_notify(&mut self, notify: Notify) -> Result<()> {
        if !self.has_channel {
            return Err(Error::invalid("req_notify_cq", "the queue was made without a completion channel"));
        }
        let mut state = self.fabric.poll();
        if let Some(cq) = state.cqs.get_mut(self.id) {
            // Asking for less does not take back that more was asked for.
            let asked = if cq.armed == Some(Notify::Any) { Notify::Any } else { notify };
            cq.armed = Some(asked);
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
