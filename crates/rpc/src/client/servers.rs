//! Several servers behind one client, for tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farcall_verbs::Provider;
use tokio::sync::Mutex;

use super::{AsyncClient, ClientOptions, PerCall};
use crate::error::{Broken, CallError};
use crate::wire::Status;

/// How calls are spread over servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// One after the other.
    RoundRobin,
    /// To the one with the fewest calls of this client under way.
    LeastLoaded,
}

/// A server that failed is asked again after so long, while others serve.
const REST: Duration = Duration::from_secs(1);

/// Connections to servers that do the same, made when they are first needed. Clones share them.
///
/// A call that a server certainly did not execute, because it could not be reached, drains, or has no room, is made
/// again by the next one, each once: no call is executed by two. One whose outcome is unknown is not made again.
#[derive(Clone)]
pub struct AsyncServers(Arc<Shared>);

struct Shared {
    provider: Box<dyn Provider>,
    options: ClientOptions,
    spread: Spread,
    members: Box<[Member]>,
    next: AtomicUsize,
    /// From when on times are counted.
    epoch: Instant,
}

struct Member {
    address: String,
    client: Mutex<Option<AsyncClient>>,
    under_way: AtomicUsize,
    /// Until when others are preferred, in milliseconds; 0: it works.
    rests_until_ms: AtomicU64,
}

/// A call is under way at a member.
struct UnderWay<'a>(&'a Member);

impl<'a> UnderWay<'a> {
    fn at(member: &'a Member) -> Self {
        member.under_way.fetch_add(1, Ordering::Relaxed);
        Self(member)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsyncServers {
    /// Servers, at most 64; nothing is connected yet. An address that is named several times gets so many connections,
    /// over which calls are spread as over servers. How long a call may wait for a server that is gone is the options'
    /// `connect_timeout` and `reconnect_timeout`.
    ///
    /// # Panics
    /// Without an address, or with more than 64.
    pub fn new(
        provider: impl Provider + 'static,
        addresses: impl IntoIterator<Item = impl Into<String>>,
        options: ClientOptions,
        spread: Spread,
    ) -> Self {
        let member = |address: String| Member {
            address,
            client: Mutex::new(None),
            under_way: AtomicUsize::new(0),
            rests_until_ms: AtomicU64::new(0),
        };
        let members: Box<[Member]> = addresses.into_iter().map(|address| member(address.into())).collect();
        assert!((1..=64).contains(&members.len()), "1 to 64 servers, not {}", members.len());
        let (provider, next, epoch) = (Box::new(provider), AtomicUsize::new(0), Instant::now());
        Self(Arc::new(Shared { provider, options, spread, members, next, epoch }))
    }

    /// Calls one of the servers.
    ///
    /// # Errors
    /// As [`AsyncClient::call`]; of the last server, if none could be called.
    pub async fn call(&self, method: u16, request: &[u8]) -> Result<Vec<u8>, CallError> {
        self.call_with(method, request, PerCall::default()).await
    }

    /// As [`AsyncServers::call`], with a timeout, at each server, and a trace of the caller's own.
    ///
    /// # Errors
    /// As [`AsyncServers::call`].
    pub async fn call_with(
        &self,
        method: u16,
        request: &[u8],
        options: PerCall,
    ) -> Result<Vec<u8>, CallError> {
        let shared = &self.0;
        let first = shared.next.fetch_add(1, Ordering::Relaxed);
        let mut tried = 0u64;
        loop {
            let at = shared.choose(first, tried);
            tried |= 1 << at;
            let outcome = shared.call_at(at, method, request, options).await;
            let is_last = tried.count_ones() as usize == shared.members.len();
            match outcome {
                Err(error) if !is_last && may_go_elsewhere(&error) => {}
                outcome => return outcome,
            }
        }
    }

    /// Calls the server that a key belongs to: the same one whichever client asks, as long as the list of addresses is
    /// the same; of a list that changed, other keys keep their servers. The call is not made elsewhere.
    ///
    /// # Errors
    /// As [`AsyncClient::call`].
    pub async fn call_by_key(
        &self,
        key: &[u8],
        method: u16,
        request: &[u8],
        options: PerCall,
    ) -> Result<Vec<u8>, CallError> {
        self.0.call_at(self.0.of_key(key), method, request, options).await
    }

    /// Which of the addresses a key belongs to.
    pub fn address_of_key(&self, key: &[u8]) -> &str {
        &self.0.members[self.0.of_key(key)].address
    }
}

impl Shared {
    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// The best of those that were not tried: one that works rather than one that rests.
    fn choose(&self, first: usize, tried: u64) -> usize {
        let (count, now_ms) = (self.members.len(), self.now_ms());
        let left = (0..count).map(|i| (first + i) % count).filter(|at| tried & 1 << at == 0);
        let cost = |at: &usize| {
            let member = &self.members[*at];
            let load = match self.spread {
                Spread::RoundRobin => 0,
                Spread::LeastLoaded => member.under_way.load(Ordering::Relaxed),
            };
            (member.rests(now_ms), load)
        };
        left.min_by_key(cost).unwrap_or(first % count)
    }

    /// The highest of the hashes of key and address: rendezvous hashing.
    fn of_key(&self, key: &[u8]) -> usize {
        let weight = |at: &usize| {
            let address = self.members[*at].address.as_bytes();
            let hash =
                key.iter().chain([&0xff]).chain(address).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                    (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
                });
            // FNV's high bits depend little on the last bytes.
            (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        (0..self.members.len()).max_by_key(weight).unwrap_or(0)
    }

    async fn call_at(
        &self,
        at: usize,
        method: u16,
        request: &[u8],
        options: PerCall,
    ) -> Result<Vec<u8>, CallError> {
        let member = &self.members[at];
        let _under_way = UnderWay::at(member);
        let outcome = match self.client_of(member).await {
            Ok(client) => client.call_with(method, request, options).await,
            Err(error) => Err(error),
        };
        match &outcome {
            Err(error) if may_go_elsewhere(error) => {
                let until_ms = self.now_ms() + REST.as_millis() as u64;
                member.rests_until_ms.store(until_ms, Ordering::Relaxed);
            }
            _ => member.rests_until_ms.store(0, Ordering::Relaxed),
        }
        outcome
    }

    /// The connection to a member; made if there is none.
    async fn client_of(&self, member: &Member) -> Result<AsyncClient, CallError> {
        let mut client = member.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let connected =
            AsyncClient::connect(&*self.provider, member.address.clone(), self.options.clone()).await;
        match connected {
            Ok(connected) => Ok(client.insert(connected).clone()),
            Err(error) => Err(CallError::NotSent(Broken::Unreachable(error.to_string()))),
        }
    }
}

impl Member {
    fn rests(&self, now_ms: u64) -> bool {
        now_ms < self.rests_until_ms.load(Ordering::Relaxed)
    }
}

/// Whether the call certainly was not executed, and for a reason that is the server's.
fn may_go_elsewhere(error: &CallError) -> bool {
    match error {
        CallError::NotSent(_) => true,
        CallError::Server { status, .. } => matches!(*status, Status::GOING_AWAY | Status::OVERLOADED),
        _ => false,
    }
}
