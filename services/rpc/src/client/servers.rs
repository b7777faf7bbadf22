//! Several servers behind one client, for tasks.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use farcall_link::{Backoff, Nic};
use farcall_verbs::with_sources;
use tokio::sync::Mutex;

use super::addresses::{Addresses, SERVERS_MAX};
use super::{AsyncClient, CallOptions, ClientOptions};
use crate::error::{Broken, CallError};
use crate::wire::Status;

/// How calls are distributed over servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadBalancing {
    /// One server after another.
    RoundRobin,
    /// The server with the fewest calls of this client in flight.
    LeastLoaded,
}

/// Handling of a call that none of the servers executed. By default its error is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    /// How often all servers are tried again.
    pub rounds: u32,
    /// Maximum of the first pause. Pauses are random, and their maximum doubles each time.
    pub pause_first_max: Duration,
    /// Upper limit of the maximum pause.
    pub pause_max: Duration,
}

/// Time for which other servers are preferred to one that failed.
const FAILED_SERVER_COOLDOWN: Duration = Duration::from_secs(1);
/// Interval between reads of addresses that may change, while calls are made.
const READ_PERIOD: Duration = Duration::from_secs(1);

/// Connections to equivalent servers, established when they are first needed. Clones share them.
///
/// A call that a server certainly did not execute, because it could not be reached, drains, or has no capacity, is
/// made again at the next server, at most once at each: no call is executed by two servers. When all have been tried,
/// [`Retry`] determines whether to try them again. A call whose outcome is unknown is not repeated.
#[derive(Clone)]
pub struct AsyncServers {
    shared: Arc<Shared>,
    retry: Retry,
}

farcall_verbs::opaque_debug!(AsyncServers);

struct Shared {
    nic: Nic,
    options: ClientOptions,
    load_balancing: LoadBalancing,
    /// Replaced as a unit: a call uses the list that was current when it began.
    members: RwLock<Members>,
    /// Source of the addresses, if they may change.
    source: Option<Addresses>,
    /// When the addresses must be read next, in milliseconds since `epoch`.
    next_read_ms: AtomicU64,
    next: AtomicUsize,
    /// Reference point of all times.
    epoch: Instant,
}

type Members = Arc<[Arc<Member>]>;

struct Member {
    address: String,
    client: Mutex<Option<AsyncClient>>,
    in_flight: AtomicUsize,
    /// Time until which other servers are preferred, in milliseconds since `epoch`; 0: the server works.
    cooldown_until_ms: AtomicU64,
}

/// Counts a call in flight at a member.
struct InFlightGuard<'a>(&'a Member);

impl<'a> InFlightGuard<'a> {
    fn at(member: &'a Member) -> Self {
        member.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(member)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsyncServers {
    /// Creates a client of up to 64 servers without connecting to them. An address that is listed several times gets
    /// that number of connections, and calls are distributed over them as over different servers. The options'
    /// `connect_timeout` and `reconnect_timeout` limit how long a call may wait for an exited server.
    ///
    /// # Panics
    /// Panics without an address, or with more than 64.
    pub fn new(
        nic: &Nic,
        addresses: impl IntoIterator<Item = impl Into<String>>,
        options: ClientOptions,
        load_balancing: LoadBalancing,
    ) -> Self {
        let addresses: Vec<String> = addresses.into_iter().map(Into::into).collect();
        let count = addresses.len();
        assert!((1..=SERVERS_MAX).contains(&count), "1 to {SERVERS_MAX} servers, not {count}");
        Self::with(nic.clone(), addresses, None, options, load_balancing)
    }

    /// Creates a client whose addresses may change. They are read now, and once a second while calls are made, on a
    /// thread that may block. A server that is no longer listed gets no new calls. If the addresses cannot be read,
    /// the list remains unchanged.
    ///
    /// # Errors
    /// Returns an error if they cannot be read now, or if there are none or more than 64.
    pub async fn from_source(
        nic: &Nic,
        source: Addresses,
        options: ClientOptions,
        load_balancing: LoadBalancing,
    ) -> io::Result<Self> {
        let (source, read) = read(source).await?;
        Ok(Self::with(nic.clone(), read?, Some(source), options, load_balancing))
    }

    fn with(
        nic: Nic,
        addresses: Vec<String>,
        source: Option<Addresses>,
        options: ClientOptions,
        load_balancing: LoadBalancing,
    ) -> Self {
        let shared = Shared {
            nic,
            options,
            load_balancing,
            members: RwLock::new(addresses.into_iter().map(Member::new).collect()),
            source,
            next_read_ms: AtomicU64::new(READ_PERIOD.as_millis() as u64),
            next: AtomicUsize::new(0),
            epoch: Instant::now(),
        };
        Self { shared: Arc::new(shared), retry: Retry::default() }
    }

    /// Sets the retries, so that a short outage of all servers loses no call.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Makes a call at one of the servers.
    ///
    /// # Errors
    /// Returns the errors of [`AsyncClient::call`]; that of the last server, if none could be called.
    pub async fn call(&self, method: u16, request: &[u8]) -> Result<Vec<u8>, CallError> {
        self.call_with(method, request, CallOptions::default()).await
    }

    /// Calls like [`AsyncServers::call`], with a timeout for all attempts together, and a trace specified by the
    /// caller.
    ///
    /// # Errors
    /// Returns the errors of [`AsyncServers::call`].
    pub async fn call_with(
        &self,
        method: u16,
        request: &[u8],
        options: CallOptions,
    ) -> Result<Vec<u8>, CallError> {
        let shared = &self.shared;
        let first = shared.next.fetch_add(1, Ordering::Relaxed);
        let Retry { rounds, pause_first_max, pause_max } = self.retry;
        let mut pauses = Backoff::new(pause_first_max, pause_max, shared.options.seed ^ first as u64);
        let deadline =
            options.timeout.or(shared.options.call_timeout).map(|timeout| Instant::now() + timeout);
        let mut round = 0;
        loop {
            match shared.call_any(&self.members(), first, method, request, options, deadline).await {
                Err(error) if round < rounds && may_try_other_server(&error) => {}
                outcome => return outcome,
            }
            round += 1;
            let pause = pauses.next_delay();
            if deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
                return Err(CallError::DeadlineExceeded);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Makes a call at the server that a key maps to. This server is the same for all clients with the same list of
    /// addresses. If the list changes, most keys keep their servers. The call is not made at another server.
    ///
    /// # Errors
    /// Returns the errors of [`AsyncClient::call`].
    pub async fn call_by_key(
        &self,
        key: &[u8],
        method: u16,
        request: &[u8],
        options: CallOptions,
    ) -> Result<Vec<u8>, CallError> {
        let members = self.members();
        self.shared.call_at(&members[of_key(&members, key)], method, request, options).await
    }

    /// Returns the address that a key maps to.
    pub fn address_of_key(&self, key: &[u8]) -> String {
        let members = self.shared.members();
        members[of_key(&members, key)].address.clone()
    }

    /// Returns the servers for a call that begins now, and starts reading the addresses again if that is due.
    fn members(&self) -> Members {
        let shared = &self.shared;
        if let Some(source) = &shared.source
            && shared.is_read_due()
        {
            tokio::spawn(Arc::clone(shared).reread(source.clone()));
        }
        shared.members()
    }
}

/// Reads addresses on a thread that may block.
async fn read(source: Addresses) -> io::Result<(Addresses, io::Result<Vec<String>>)> {
    let read = move || {
        let addresses = source.read();
        (source, addresses)
    };
    tokio::task::spawn_blocking(read).await.map_err(io::Error::other)
}

impl Shared {
    fn members(&self) -> Members {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether the addresses must be read again. Of concurrent callers only one gets `true`.
    #[inline]
    fn is_read_due(&self) -> bool {
        let (now_ms, due_ms) = (self.now_ms(), self.next_read_ms.load(Ordering::Relaxed));
        let next_ms = now_ms + READ_PERIOD.as_millis() as u64;
        let exchange =
            || self.next_read_ms.compare_exchange(due_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed);
        now_ms >= due_ms && exchange().is_ok()
    }

    /// Reads the addresses again. Servers that stay in the list keep their connections.
    async fn reread(self: Arc<Self>, source: Addresses) {
        let addresses = match read(source).await {
            Ok((_, Ok(addresses))) => addresses,
            Ok((_, Err(why))) => return tracing::warn!("the servers stay as they were: {why}"),
            // The runtime shuts down.
            Err(_) => return,
        };
        let before = self.members();
        if before.iter().map(|member| &member.address).eq(&addresses) {
            return;
        }
        let known = |address: &String| before.iter().find(|member| member.address == *address);
        let member = |address: String| known(&address).cloned().unwrap_or_else(|| Member::new(address));
        let count = addresses.len();
        let members = addresses.into_iter().map(member).collect();
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
        tracing::info!(servers = count, "other servers are called from now on");
    }

    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// Returns the best server that was not tried. Servers without a recent failure are preferred.
    fn choose(&self, members: &[Arc<Member>], first: usize, tried: u64) -> usize {
        let (count, now_ms) = (members.len(), self.now_ms());
        let left = (0..count).map(|i| (first + i) % count).filter(|at| tried & 1 << at == 0);
        let cost = |at: &usize| {
            let member = &members[*at];
            let load = match self.load_balancing {
                LoadBalancing::RoundRobin => 0,
                LoadBalancing::LeastLoaded => member.in_flight.load(Ordering::Relaxed),
            };
            (member.is_cooling_down(now_ms), load)
        };
        left.min_by_key(cost).unwrap_or(first % count)
    }

    /// Calls one server after another, until one has executed the call, or may have.
    async fn call_any(
        &self,
        members: &[Arc<Member>],
        first: usize,
        method: u16,
        request: &[u8],
        options: CallOptions,
        deadline: Option<Instant>,
    ) -> Result<Vec<u8>, CallError> {
        let mut tried = 0u64;
        loop {
            let at = self.choose(members, first, tried);
            tried |= 1 << at;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let outcome = self.call_at(&members[at], method, request, options.timeout(left)).await;
            let is_last = tried.count_ones() as usize == members.len();
            match outcome {
                Err(error) if !is_last && may_try_other_server(&error) => {}
                outcome => return outcome,
            }
        }
    }

    async fn call_at(
        &self,
        member: &Member,
        method: u16,
        request: &[u8],
        options: CallOptions,
    ) -> Result<Vec<u8>, CallError> {
        let _in_flight = InFlightGuard::at(member);
        let outcome = match self.client_of(member).await {
            Ok(client) => client.call_with(method, request, options).await,
            Err(error) => Err(error),
        };
        match &outcome {
            Err(error) if may_try_other_server(error) => {
                let until_ms = self.now_ms() + FAILED_SERVER_COOLDOWN.as_millis() as u64;
                member.cooldown_until_ms.store(until_ms, Ordering::Relaxed);
            }
            _ => member.cooldown_until_ms.store(0, Ordering::Relaxed),
        }
        outcome
    }

    /// Returns the connection to a member, which is established if there is none.
    async fn client_of(&self, member: &Member) -> Result<AsyncClient, CallError> {
        let mut client = member.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let connected = AsyncClient::connect(&self.nic, member.address.clone(), self.options.clone()).await;
        match connected {
            Ok(connected) => Ok(client.insert(connected).clone()),
            Err(error) => Err(CallError::NotSent(Broken::Unreachable(with_sources(&error)))),
        }
    }
}

impl Member {
    fn new(address: String) -> Arc<Self> {
        Arc::new(Self {
            address,
            client: Mutex::new(None),
            in_flight: AtomicUsize::new(0),
            cooldown_until_ms: AtomicU64::new(0),
        })
    }

    fn is_cooling_down(&self, now_ms: u64) -> bool {
        now_ms < self.cooldown_until_ms.load(Ordering::Relaxed)
    }
}

/// Returns the index with the highest hash of key and address: rendezvous hashing.
fn of_key(members: &[Arc<Member>], key: &[u8]) -> usize {
    let weight = |at: &usize| {
        let address = members[*at].address.as_bytes();
        let hash = key.iter().chain([&0xff]).chain(address).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        // FNV's high bits depend little on the last bytes.
        (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    (0..members.len()).max_by_key(weight).unwrap_or(0)
}

/// Returns whether the call certainly was not executed, for a reason that is specific to the server.
fn may_try_other_server(error: &CallError) -> bool {
    match error {
        CallError::NotSent(_) => true,
        CallError::Server { status, .. } => matches!(*status, Status::GOING_AWAY | Status::OVERLOADED),
        _ => false,
    }
}
