//! The program's handles of completion queues.

use std::any::Any;
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
    pub(crate) fn create(fabric: &Arc<Fabric>, owner: (u32, Node), attr: &CqInitAttr<'_>) -> Result<Self> {
        const OP: &str = "create_cq";
        let channel = attr.channel.map(|channel| own_channel(fabric, channel)).transpose()?;
        let devices = &mut fabric.call().devices;
        let limit = devices.params.limits.cqes;
        if attr.cqe == 0 || attr.cqe > limit {
            return Err(Error::invalid(OP, format!("{} completions: 1 to {limit}", attr.cqe)));
        }
        let id = devices.cqs.insert(Cq::new(owner, attr.cqe, channel));
        devices.note(RecordKind::Create, [3, u64::from(id), u64::from(attr.cqe), 0]);
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
        let devices = &mut self.fabric.call().devices;
        if let Some(cq) = devices.cqs.remove(self.id)
            && let Some(channel) = cq.channel().and_then(|id| devices.channels.get_mut(id))
        {
            channel.retain(|event| *event != self.id);
        }
        devices.note(RecordKind::Destroy, [3, u64::from(self.id), 0, 0]);
    }
}

impl RawCq for SimCq {
    fn id(&self) -> u32 {
        self.id
    }

    fn poll(&mut self, wc: &mut [Wc]) -> Result<usize> {
        let state = &mut *self.fabric.poll();
        let Some(cq) = state.devices.cqs.get_mut(self.id) else { return Ok(0) };
        if cq.has_overrun() {
            return Err(Error::InvalidState {
                operation: "poll_cq",
                object: format!("completion queue {}", self.id),
                state: "overrun".into(),
                remedy: "destroy it; make it as long as all requests that may be outstanding together",
            });
        }
        let mut got = 0;
        while got < wc.len() {
            let Some(entry) = cq.pop() else { break };
            wc[got] = entry.wc;
            got += 1;
            state.qps.polled(entry.qp, entry.released);
        }
        Ok(got)
    }

    fn req_notify(&mut self, notify: Notify) -> Result<()> {
        if !self.has_channel {
            return Err(Error::invalid("req_notify_cq", "the queue was made without a completion channel"));
        }
        if let Some(cq) = self.fabric.poll().devices.cqs.get_mut(self.id) {
            cq.arm(notify);
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
