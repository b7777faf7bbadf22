//! The store as an RPC service.

use farcall_kv::store::Partition;
use farcall_kv::wire::{ReplySink, Service};
use farcall_rpc::{Call, Handler, HandlerError, Reply};

/// Answers calls to one partition.
pub(super) struct KvHandler {
    service: Service,
    /// Milliseconds since the Unix epoch at time zero of the thread's clock.
    epoch_ms: u64,
}

impl KvHandler {
    /// Serves `partition`; the thread's clock began `epoch_ms` milliseconds after the Unix epoch.
    pub(super) fn new(partition: Partition, epoch_ms: u64) -> Self {
        Self { service: Service::new(partition), epoch_ms }
    }

    /// The partition, for the other doors of this thread.
    pub(super) fn partition(&mut self) -> &mut Partition {
        self.service.partition()
    }
}

impl Handler for KvHandler {
    #[inline]
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let now_ms = self.epoch_ms + call.arrived().0 / 1_000_000;
        self.service
            .handle(call.method(), call.payload(), &mut Sink(reply), now_ms)
            .map_err(|error| HandlerError::new(error.code(), error.to_string()))
    }
}

/// A reply in the making, written where the client fetches it from.
struct Sink<'a, 'b>(&'a mut Reply<'b>);

impl ReplySink for Sink<'_, '_> {
    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}
