//! The program's handles of completion channels.

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::Arc;

use farcall_verbs::{CompChannel, Result};

use crate::channel::{Channel, Descriptor};
use crate::fabric::Fabric;
use crate::packet::Node;

/// The program's handle of a channel.
pub(crate) struct SimChannel {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) id: u32,
}

impl SimChannel {
    pub(crate) fn create(fabric: &Arc<Fabric>, node: Node) -> Self {
        let id = fabric.call().devices.channels.insert(Channel::new(node));
        Self { fabric: fabric.clone(), id }
    }
}

impl Drop for SimChannel {
    fn drop(&mut self) {
        self.fabric.call().devices.channels.remove(self.id);
    }
}

impl CompChannel for SimChannel {
    fn fd(&self) -> RawFd {
        Descriptor::Channel(self.id).fd()
    }

    fn poll_cq_event(&self) -> Result<Option<u32>> {
        let mut state = self.fabric.poll();
        Ok(state.devices.channels.get_mut(self.id).and_then(Channel::pop))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
