//! One partition of a store, from the perspective of a client.

use farcall_link::Nic;
use std::collections::VecDeque;

use farcall_rpc::{CallError, CallId, Client, ClientOptions};

use super::{KvConnectError, KvError};
use crate::wire::{PingReply, Request, decode_ping_reply};

/// A connection to the thread that owns a partition, with the calls in flight on it.
pub(super) struct Part {
    client: Client,
    /// The calls in flight with the caller's number for each, in the order in which they started.
    under_way: VecDeque<(CallId, usize)>,
}

impl Part {
    /// Connects and queries the identity of the partition.
    pub fn connect(
        nic: &Nic,
        address: &str,
        partition: u16,
        options: &ClientOptions,
    ) -> Result<(Self, PingReply), KvConnectError> {
        let client = Client::connect(nic, address, options.clone().thread(partition))
            .map_err(|source| KvConnectError::Unreachable { partition, source })?;
        let mut part = Self { client, under_way: VecDeque::new() };
        let (mut request, mut reply) = (Vec::new(), Vec::new());
        Request::Ping.encode(&mut request);
        let identity = part
            .call(Request::Ping.method().id(), &request, &mut reply)
            .map_err(KvError::from)
            .and_then(|()| Ok(decode_ping_reply(&reply)?))
            .map_err(|source| KvConnectError::NoStore { partition, source: Box::new(source) })?;
        Ok((part, identity))
    }

    /// Makes one call and replaces `reply` by its result.
    pub fn call(&mut self, method: u16, request: &[u8], reply: &mut Vec<u8>) -> Result<(), CallError> {
        reply.clear();
        self.client.call(method, request, reply)
    }

    /// Returns whether a call can start now.
    pub fn has_room(&self) -> bool {
        self.client.available() > 0
    }

    /// Returns whether calls are in flight.
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Starts a call that the caller identifies by `name`.
    pub fn begin(&mut self, name: usize, method: u16, request: &[u8]) -> Result<(), CallError> {
        let id = self.client.submit(method, request)?;
        self.under_way.push_back((id, name));
        Ok(())
    }

    /// Waits for a call in flight to complete. Returns `None` if there is none.
    pub fn wait(&mut self) -> Option<(usize, Result<&[u8], CallError>)> {
        let Self { client, under_way } = self;
        let Ok(done) = client.wait() else {
            under_way.clear();
            return None;
        };
        // Usually the oldest call.
        let place = under_way.iter().position(|(id, _)| *id == done.call)?;
        let (_, name) = under_way.remove(place)?;
        Some((name, done.result))
    }
}
