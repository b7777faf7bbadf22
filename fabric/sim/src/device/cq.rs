//! The program's handles of completion queues.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use farcall_verbs::{CompChannel, CqInitAttr, Error, Notify, RawCq, Result, Wc};

use super::channel::SimChannel;
use crate::cq::Cq;
use crate::fabric::Fabric;
use crate::packet::Node;
use crate::trace::RecordKind;

/// The program's handle of a completion queue.
pub(crate) struct SimCq {
    fabric: Arc<Fabric>,
    pub(crate) id: u32,
    /// Constant for the lifetime of the queue.
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
        state.note(RecordKind::Create, [3, u64::from(id), u64::from(attr.cqe), 0]);
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
        state.note(RecordKind::Destroy, [3, u64::from(self.id), 0, 0]);
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
                qp.polled(entry.released);
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
            // A request for solicited completions does not weaken an earlier request for any completion.
            let asked = if cq.armed == Some(Notify::Any) { Notify::Any } else { notify };
            cq.armed = Some(asked);
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
