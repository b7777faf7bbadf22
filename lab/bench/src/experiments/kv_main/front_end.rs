//! Front ends: the protocols by which clients access the store.

use super::super::ExperimentError;
use super::super::reach::Reach;
use super::super::ready::Ready;
use crate::foreign_store::{ForeignStore, Socket};
use crate::load::{
    AUTO, BypassTarget, MemcachedTarget, Outcome, RedisTarget, Request, RpcTarget, Target, TargetError,
    Traffic, client_options, in_batches, presets, settle,
};
use crate::rivals::Rival;
use farcall::kv::MemcachedClient;
use farcall::rpc::tune::Decision;
use farcall::rpc::{Client, ClientOptions};
use farcall_kv::bypass::{ReadCounters, Scheme};
use farcall_kv::{farm::Farm, pilaf::Pilaf};
use farcall_link::BatchSizing;
use farcall_rpc::{AnyCaller, Caller, Path, StaticClient};
use farcall_verbs::with_sources;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Timeout of a reply, after which the service counts as crashed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Protocol and transport by which a client accesses the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FrontEnd {
    /// The memcached protocol over loopback TCP.
    Tcp,
    /// The memcached protocol over a Unix stream socket.
    Unix,
    /// RPC over RDMA verbs: requests by WRITE, replies by WRITE.
    ServerReply,
    /// Like `ServerReply`, and each request is announced by a doorbell byte.
    L5,
    /// RPC over RDMA verbs: requests and replies by WRITE over UC.
    UcRpc,
    /// RPC over RDMA verbs: requests by WRITE over UC, replies by SEND over UD.
    Herd,
    /// RPC over RDMA verbs: requests and replies by SEND over UD.
    UdRpc,
    /// RPC over RDMA verbs: requests by WRITE, results fetched by READ, always.
    Fetch,
    /// RPC over RDMA verbs: requests by WRITE, replies by SEND.
    WriteSend,
    /// RPC over RDMA verbs: requests by SEND, replies by WRITE.
    SendWrite,
    /// RPC over RDMA verbs: requests by SEND, replies by SEND.
    SendSend,
    /// RPC over RDMA verbs: requests by SEND, results announced by SEND and fetched by READ.
    RdmaMemcached,
    /// RPC over RDMA verbs: requests by WRITE, results fetched by READ, with the switch to server-reply.
    RfRpc,
    /// RPC over RDMA verbs under the preset that the library chooses.
    Auto,
    /// A store of another design, in this program.
    Rival(Rival),
    /// A program of another project.
    Foreign(ForeignStore, Socket),
}

impl fmt::Display for FrontEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Unix => "Unix socket",
            Self::Rival(rival) => rival.name(),
            Self::Foreign(store, socket) => return write!(f, "{store} {socket}"),
            preset => preset.preset_name().unwrap_or(AUTO),
        })
    }
}

impl FrontEnd {
    /// Returns the front end of an RPC preset or another store design by its name.
    pub fn of_preset(name: &str) -> Option<Self> {
        let preset = Self::OVER_VERBS.iter().copied().find(|front_end| front_end.to_string() == name);
        preset.or_else(|| Rival::named(name).map(Self::Rival))
    }

    /// Connects to a server of this front end for up to `window` concurrent requests. Uses the RNIC of `reach` if the
    /// front end uses verbs.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub fn connect(self, reach: &Reach, ready: &Ready, window: u32) -> Result<FrontEndTarget, TargetError> {
        let lost = |error: &dyn fmt::Display| TargetError::Lost(error.to_string());
        let absent = || TargetError::Lost("the server does not serve this front end".to_owned());
        let parse = |address: &String| address.parse::<SocketAddr>().map_err(|error| lost(&error));
        let rpc_address = || ready.rpc.as_ref().ok_or_else(absent).and_then(parse);
        let tcp_address = || ready.tcp.first().ok_or_else(absent).and_then(parse);
        let unix_path = || ready.unix.first().ok_or_else(absent);
        let mut options = reach.options(window, PATIENCE);
        let client = match self.settle(reach, ready, &mut options)?.0 {
            Self::Tcp | Self::Foreign(ForeignStore::Memcached, Socket::Tcp) => {
                MemcachedClient::connect_tcp(tcp_address()?)
            }
            Self::Unix | Self::Foreign(ForeignStore::Memcached, Socket::Unix) => {
                MemcachedClient::connect_unix(unix_path()?)
            }
            Self::Foreign(ForeignStore::Redis, socket) => {
                let target = match socket {
                    Socket::Tcp => RedisTarget::connect_tcp(tcp_address()?, PATIENCE),
                    Socket::Unix => RedisTarget::connect_unix(unix_path()?, PATIENCE),
                };
                return Ok(FrontEndTarget::Redis(Box::new(target.map_err(|error| lost(&error))?)));
            }
            Self::Rival(Rival::Pilaf) => {
                return connect_store(reach, rpc_address()?, window).map(FrontEndTarget::Pilaf);
            }
            Self::Rival(Rival::Farm | Rival::FarmVar) => {
                return connect_store(reach, rpc_address()?, window).map(FrontEndTarget::Farm);
            }
            preset => return preset.connect_preset(reach, rpc_address()?, &options),
        };
        let client = client.and_then(|client| client.set_timeout(Some(PATIENCE)).map(|()| client));
        Ok(FrontEndTarget::Memcached(Box::new(MemcachedTarget::new(client.map_err(|error| lost(&error))?))))
    }

    /// Resolves [`FrontEnd::Auto`] to the front end that the library chooses at this server, with the reason, and
    /// updates `options` accordingly. Any other front end is returned unchanged.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub(super) fn settle(
        self,
        reach: &Reach,
        ready: &Ready,
        options: &mut ClientOptions,
    ) -> Result<(Self, Option<Decision>), TargetError> {
        let (Self::Auto, Some(address)) = (self, &ready.rpc) else { return Ok((self, None)) };
        let (preset, decision) = settle(AUTO, options, &reach.nic, address)
            .map_err(|error| TargetError::Lost(with_sources(&error)))?;
        Ok((Self::of_preset(preset).unwrap_or(self), decision))
    }

    /// Returns the other store design behind this front end, if any.
    pub(crate) fn rival(self) -> Option<Rival> {
        match self {
            Self::Rival(rival) => Some(rival),
            _ => None,
        }
    }

    /// Returns whether operations can be batched.
    pub(super) fn batches(self) -> bool {
        Self::OVER_VERBS.contains(&self)
    }

    /// Like [`Self::connect`], with operations in batches.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub(super) fn connect_in_batches(
        self,
        reach: &Reach,
        ready: &Ready,
        window: u32,
        batch: BatchSizing,
    ) -> Result<FrontEndTarget, TargetError> {
        let lost = |error: &dyn fmt::Display| TargetError::Lost(error.to_string());
        let address =
            ready.rpc.as_ref().ok_or_else(|| lost(&"the server does not serve calls over verbs"))?;
        let mut options = reach.options(window, PATIENCE);
        let (front_end, _) = self.settle(reach, ready, &mut options)?;
        let options = in_batches(options, &front_end.to_string(), batch)
            .ok_or_else(|| lost(&format!("there are no batches over {self}")))?;
        reach
            .nic
            .connect(|nic| Client::connect(nic, address, options.clone()), |_| false)
            .map(|client| FrontEndTarget::Batched(Box::new(RpcTarget::new(client, &options.config.plan))))
            .map_err(|error| TargetError::Lost(with_sources(&error)))
    }

    /// Returns the error of an operation that failed over this front end.
    pub(super) fn failed(self, error: impl Into<ExperimentError>) -> ExperimentError {
        format!("{self}: {}", with_sources(&*error.into())).into()
    }
}

fn connect_rpc<P: Path>(
    reach: &Reach,
    address: SocketAddr,
    options: &ClientOptions,
) -> Result<StaticTarget<P>, TargetError> {
    reach
        .nic
        .connect(|nic| StaticClient::connect(nic, address.to_string(), options.clone()), |_| false)
        .map(|client| Box::new(RpcTarget::new(client, &options.config.plan)))
        .map_err(|error| TargetError::Lost(with_sources(&error)))
}

fn connect_store<S: Scheme>(
    reach: &Reach,
    address: SocketAddr,
    window: u32,
) -> Result<Box<BypassTarget<S>>, TargetError> {
    let options = client_options(window, PATIENCE, None);
    reach
        .nic
        .connect(|nic| BypassTarget::connect(nic, address, &options), |_| false)
        .map(Box::new)
        .map_err(|error| TargetError::Lost(with_sources(&error)))
}

/// A target over verbs with paths that are fixed at compile time.
type StaticTarget<P> = Box<RpcTarget<Caller<P>>>;

macro_rules! front_ends {
    ($($preset:ident = $name:literal: $paths:ty,)+) => {
        /// A connection through any front end.
        pub enum FrontEndTarget {
            /// Over a stream socket, to memcached or a server with its protocol.
            Memcached(Box<MemcachedTarget>),
            /// Over a stream socket, to Redis.
            Redis(Box<RedisTarget>),
            $(
                #[doc = concat!("Over verbs, by the paths of `", $name, "`.")]
                $preset(StaticTarget<$paths>),
            )+
            /// Over verbs by any paths, in batches. Each call needs one dynamic dispatch, which is small compared with
            /// the copies into and out of a batch.
            Batched(Box<RpcTarget<dyn AnyCaller>>),
            /// Pilaf, whose clients READ the store.
            Pilaf(Box<BypassTarget<Pilaf>>),
            /// FaRM, whose clients READ the store.
            Farm(Box<BypassTarget<Farm>>),
        }

        impl FrontEnd {
            /// Front ends that use RPC over verbs.
            const OVER_VERBS: &[Self] = &[$(Self::$preset,)+ Self::Auto];

            fn preset_name(self) -> Option<&'static str> {
                match self {
                    $(Self::$preset => Some($name),)+
                    _ => None,
                }
            }

            fn connect_preset(
                self,
                reach: &Reach,
                address: SocketAddr,
                options: &ClientOptions,
            ) -> Result<FrontEndTarget, TargetError> {
                match self {
                    $(Self::$preset => connect_rpc(reach, address, options).map(FrontEndTarget::$preset),)+
                    _ => Err(TargetError::Lost("no preset was chosen; this is a defect".to_owned())),
                }
            }
        }
    };
}

presets!(front_ends);

/// Makes the same call on the target of any variant; sockets use another expression if one is given.
macro_rules! each {
    ($front_end:expr, $target:ident => $call:expr) => {
        each!($front_end, $target => $call, $call)
    };
    ($front_end:expr, $target:ident => $call:expr, $of_sockets:expr) => {
        presets!(match_front_end($front_end, $target => $call, $of_sockets))
    };
}

macro_rules! match_front_end {
    (
        ($front_end:expr, $target:ident => $call:expr, $of_sockets:expr)
        $($preset:ident = $name:literal: $paths:ty,)+
    ) => {
        match $front_end {
            FrontEndTarget::Memcached($target) => $of_sockets,
            FrontEndTarget::Redis($target) => $of_sockets,
            $(FrontEndTarget::$preset($target) => $call,)+
            FrontEndTarget::Batched($target) => $call,
            FrontEndTarget::Pilaf($target) => $call,
            FrontEndTarget::Farm($target) => $call,
        }
    };
}

impl FrontEndTarget {
    /// Returns the traffic so far.
    pub fn traffic(&self) -> Traffic {
        each!(self, target => target.traffic())
    }

    /// Returns the current R and F, if results are fetched individually.
    pub fn tuning(&self) -> Option<(u32, u32)> {
        match self {
            Self::Fetch(target) => Some(target.tuning()),
            Self::RfRpc(target) => Some(target.tuning()),
            _ => None,
        }
    }

    /// Returns the cost of GETs so far, if they are READs.
    pub fn gets(&self) -> Option<ReadCounters> {
        match self {
            Self::Pilaf(target) => Some(target.gets()),
            Self::Farm(target) => Some(target.gets()),
            _ => None,
        }
    }

    /// Returns when a client that reconnects by itself detected the loss of its connection.
    pub fn lost_at(&self) -> Option<Instant> {
        each!(self, target => target.lost_at(), { let _ = target; None })
    }

    /// Returns whether the client reconnected by itself to a server that restarted.
    pub fn has_restarted(&self) -> bool {
        each!(self, target => target.has_restarted(), { let _ = target; false })
    }

    /// Continues with a restarted server, if the client reconnected by itself.
    pub fn accept_restart(&mut self) {
        each!(self, target => target.accept_restart(), { let _ = target; });
    }
}

impl Target for FrontEndTarget {
    #[inline]
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        each!(self, target => target.submit(slot, request))
    }

    #[inline]
    fn flush(&mut self) -> Result<(), TargetError> {
        each!(self, target => target.flush())
    }

    #[inline]
    fn poll(&mut self, done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        each!(self, target => target.poll(done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_front_end() {
        for preset in farcall_link::PRESETS {
            assert!(FrontEnd::of_preset(preset.name).is_some(), "{} is measured by nothing", preset.name);
        }
        for rival in Rival::ALL {
            assert_eq!(FrontEnd::of_preset(rival.name()), Some(FrontEnd::Rival(rival)));
        }
    }
}
