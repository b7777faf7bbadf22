//! The key-value service over Farcall RPC as a target.

use super::target::{Outcome, Request, Target, TargetError};
use crate::rpc_connection::{RpcConnectError, RpcConnection};
use farcall_kv::store::PutMode;
use farcall_kv::wire::{Request as KvRequest, Status, decode_item, decode_version};
use farcall_rpc::{CallError, CallId, Executed, Path};
use farcall_verbs::Provider;
use std::net::SocketAddr;
use std::time::Duration;

/// More than a connection's window can hold.
const CALLS_MAX: usize = 1024;

/// A connection to a key-value service of one partition. The calling thread polls.
pub struct RpcTarget<P: Path> {
    connection: RpcConnection<P>,
    /// The slot of each call under way, by the call's number, and whether it is a read.
    calls: Box<[(u32, bool)]>,
    payload: Vec<u8>,
}

impl<P: Path> RpcTarget<P> {
    /// Connects; see [`RpcConnection::connect`].
    ///
    /// # Errors
    /// When there is no device, or the service cannot be reached or refuses.
    pub fn connect(
        provider: &dyn Provider,
        address: SocketAddr,
        window: u32,
        patience: Duration,
    ) -> Result<Self, RpcConnectError> {
        let connection = RpcConnection::connect(provider, address, window, patience)?;
        let calls = vec![(0, false); CALLS_MAX].into_boxed_slice();
        Ok(Self { connection, calls, payload: Vec::with_capacity(4096) })
    }

    /// WRITEs and READs of both ends so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.connection.operations()
    }

    fn place(call: CallId) -> usize {
        call.0 as usize % CALLS_MAX
    }
}

impl<P: Path> Target for RpcTarget<P> {
    #[inline]
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        let (request, is_read) = match request {
            Request::Get { key } => (KvRequest::Get { key }, true),
            Request::Put { key, value } => {
                (KvRequest::Put { key, value, flags: 0, ttl_ms: 0, mode: PutMode::Set }, false)
            }
        };
        self.payload.clear();
        request.encode(&mut self.payload);
        let call = self.connection.submit(request.method().id(), &self.payload);
        let call = call.map_err(|error| TargetError::Protocol(error.to_string()))?;
        self.calls[Self::place(call)] = (slot, is_read);
        Ok(())
    }

    #[inline]
    fn flush(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    #[inline]
    fn poll(&mut self, mut done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        self.connection.progress();
        while let Some(completion) = self.connection.next_completion() {
            let (slot, is_read) = self.calls[Self::place(completion.call)];
            done(slot, outcome(&completion.result, is_read)?);
        }
        match self.connection.caller().broken() {
            None => Ok(()),
            Some(broken) => Err(TargetError::Lost(broken.to_string())),
        }
    }
}

/// What an answer means.
#[inline]
fn outcome<'a>(result: &Result<&'a [u8], CallError>, is_read: bool) -> Result<Outcome<'a>, TargetError> {
    let broken = |error: farcall_kv::wire::ReplyError| TargetError::Protocol(error.to_string());
    match result {
        Ok(reply) if is_read => {
            Ok(decode_item(reply).map_err(broken)?.map_or(Outcome::Absent, |item| Outcome::Value(item.value)))
        }
        Ok(reply) => match decode_version(reply).map_err(broken)? {
            (Status::Ok, _) => Ok(Outcome::Stored),
            _ => Ok(Outcome::Refused),
        },
        Err(error) if error.executed() == Executed::Unknown => Ok(Outcome::Unknown),
        Err(_) => Ok(Outcome::Refused),
    }
}
