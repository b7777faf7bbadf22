//! The design space: one type per axis, a [`Plan`] as one choice on each axis, and the table of named points.
//!
//! A plan is plain data: the tuner searches plans, the command line names them, and the handshake exchanges them. Only
//! the points of [`PRESETS`] are implemented. Any other point is refused together with the nearest preset. An axis
//! contains only choices that some code executes; a new choice is appended together with its code.

use farcall_verbs::{Mtu, QpType};
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::batching::Batching;

/// How a request reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RequestPath {
    /// WRITE into a mailbox that the server polls.
    WriteMailbox,
    /// SEND into a receive that the server has posted.
    Send,
    /// SEND of a datagram: one queue pair of the server thread receives the requests of all its clients.
    Datagram,
    /// WRITE into a mailbox, then WRITE of one byte into an array that has one byte for each client of the server
    /// thread. The thread polls only this array (L5, as described in RDMA communication patterns, section 8).
    DenseMailbox,
}

/// How a response reaches the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ResponsePath {
    /// WRITE into a response slot that the client polls.
    Write,
    /// The client always READs the result from the server's memory.
    Fetch,
    /// The client READs the result, and switches to server-reply for calls that take long (RF-RPC, section 3.2).
    FetchThenReply,
    /// SEND into a receive that the client has posted.
    Send,
    /// SEND of a datagram: one queue pair of the server thread serves all its clients (HERD).
    Datagram,
    /// The server announces the result by SEND; then the client READs it (RDMA-Memcached, as RF-RPC describes it).
    NotifyThenFetch,
}

/// The transport of the queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl Transport {
    /// All transports, the most capable first.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// Returns the type of its queue pairs.
    #[must_use]
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// Returns whether every message is delivered unless the connection breaks.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

/// Ownership of connections by client threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ConnectionModel {
    /// Each client thread has its own connection.
    PrivatePerThread,
    /// One thread of the client process has a connection to each server thread, and issues the calls of the other
    /// threads.
    Dispatcher,
}

/// Wait strategy of the thread that drives an endpoint. Each side chooses its own. While threads compete for the
/// processors, strategies that poll before sleeping sleep at once, except `Bpev` with a fixed time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// Polls without end. A server thread, which polls its many connections in turn, then implements busy-polling
    /// time-sharing (BPTS; RR-Compound, algorithm 1). One thread per connection would be plain busy polling (BP).
    Busy,
    /// Sleeps until an event, then polls all completions.
    EventBatch,
    /// Polls a fixed number of times after each sleep, then sleeps until an event.
    NaiveHybrid,
    /// Polls until `max_retry` empty polls in a row, then sleeps until an event (RDMAbox, algorithm 3).
    Adaptive {
        /// Empty polls in a row before it sleeps.
        max_retry: u32,
    },
    /// Polls for a limited time. Then sleeps until an event, or until a poller thread, which polls in the meantime,
    /// signals work (BPEV; RR-Compound, algorithm 2, whose line 29 is printed inverted: it sleeps when there are no
    /// events). Without pollers, and while they sleep because of inactivity, it relies on events alone.
    Bpev {
        /// Polling time in microseconds. `None`: the usual duration of recent waits, up to the cost of a sleep, and no
        /// polling while threads compete for the processors.
        bp_timeout_us: Option<u32>,
    },
}

/// Thresholds of posting. Memory is registered in advance; payloads are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// Messages up to this many bytes are copied into the work request (RF-RPC, section 3.2: 92 bytes on its RNIC).
    pub inline_max_bytes: u32,
    /// One of every `signal_every` work requests is signalled.
    pub signal_every: u16,
}

/// Message slots of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    /// Number of messages in flight, which is the number of slots in each direction. A power of two.
    pub window: u16,
    /// Length of a request slot in bytes, header and tail included.
    pub request_slot_bytes: u32,
    /// Length of a response slot in bytes, header and tail included.
    pub response_slot_bytes: u32,
}

impl Geometry {
    /// Maximum window.
    pub const WINDOW_MAX: u16 = 256;
    /// Maximum length of a slot in bytes.
    pub const SLOT_BYTES_MAX: u32 = 1 << 20;
    /// Minimum length of a slot in bytes.
    pub const SLOT_BYTES_MIN: u32 = 128;

    /// Checks that every number is in its range. The geometry of a peer is checked before anything is allocated.
    ///
    /// # Errors
    /// Returns a description of the number that is out of range, with the range.
    pub fn check(&self) -> Result<(), String> {
        if !self.window.is_power_of_two() || self.window > Self::WINDOW_MAX {
            return Err(format!("window {}: a power of two up to {}", self.window, Self::WINDOW_MAX));
        }
        for (name, bytes) in
            [("request slot", self.request_slot_bytes), ("response slot", self.response_slot_bytes)]
        {
            let fits = (Self::SLOT_BYTES_MIN..=Self::SLOT_BYTES_MAX).contains(&bytes);
            if !fits || !bytes.is_multiple_of(64) {
                let (min, max) = (Self::SLOT_BYTES_MIN, Self::SLOT_BYTES_MAX);
                return Err(format!("{name} of {bytes} bytes: a multiple of 64 from {min} to {max}"));
            }
        }
        Ok(())
    }

    /// Maximum window of a mailbox whose messages are announced by a byte. The byte is the low byte of the message
    /// number, so it must not repeat within a window.
    pub const WINDOW_OF_BYTE_MAX: u16 = 128;

    /// Returns the geometry with the smaller of both values in every number.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            window: self.window.min(other.window),
            request_slot_bytes: self.request_slot_bytes.min(other.request_slot_bytes),
            response_slot_bytes: self.response_slot_bytes.min(other.response_slot_bytes),
        }
    }

    /// Returns the length of all request slots in bytes.
    pub const fn mailbox_bytes(&self) -> usize {
        self.window as usize * self.request_slot_bytes as usize
    }

    /// Returns the length of all response slots in bytes.
    pub const fn responses_bytes(&self) -> usize {
        self.window as usize * self.response_slot_bytes as usize
    }
}

impl Default for Geometry {
    /// Slots hold 4 KiB of payload. Their stride is an odd multiple of 128 bytes, so that the first cache lines of
    /// neighbouring slots fall into different cache sets. With a stride of 4,096 bytes they would share one set.
    fn default() -> Self {
        Self { window: 16, request_slot_bytes: 4_224, response_slot_bytes: 4_224 }
    }
}

/// One choice per axis, and the parameters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Plan {
    /// Path of requests.
    pub request: RequestPath,
    /// Path of responses.
    pub response: ResponsePath,
    /// Transport of the queue pairs.
    pub transport: Transport,
    /// Ownership of connections.
    pub connections: ConnectionModel,
    /// Wait strategy that this side prefers.
    pub waiting: WaitStrategy,
    /// Batching of calls.
    pub batching: Batching,
    /// Thresholds of posting.
    pub memory: MemoryPolicy,
    /// Message slots.
    pub geometry: Geometry,
}

/// A named point of the design space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Name, as on the command line.
    pub name: &'static str,
    /// Description of the message paths in one sentence.
    pub summary: &'static str,
    /// Its plan.
    pub plan: Plan,
}

const BASE: Plan = Plan {
    request: RequestPath::WriteMailbox,
    response: ResponsePath::FetchThenReply,
    transport: Transport::Rc,
    connections: ConnectionModel::PrivatePerThread,
    waiting: WaitStrategy::Adaptive { max_retry: 2_000 },
    batching: Batching::None,
    memory: MemoryPolicy { inline_max_bytes: 256, signal_every: 8 },
    geometry: Geometry { window: 16, request_slot_bytes: 4_224, response_slot_bytes: 4_224 },
};

/// The implemented points.
///
/// - `rf-rpc`: remote fetching (RF-RPC, section 3). The request arrives by WRITE. The server stores the result in its
///   own memory, and the client fetches it by READ, so the server posts no request. Methods that take long switch to
///   server-reply automatically.
/// - `fetch`: the same without the switch to server-reply.
/// - `server-reply`: request by WRITE, response by WRITE into memory that the client polls.
/// - `l5`: the same, and one byte announces each request. A server thread has an array with one byte per client and
///   polls only this array, so that polling 64 empty mailboxes touches one cache line. The client posts a second WRITE
///   per request (RDMA communication patterns, section 8). The byte is a hint: the server executes the message.
/// - `uc-rpc`: like `server-reply` over UC, which can lose messages. A client that has no response queries it, at
///   intervals that double, and then sends its oldest request again. Only the oldest is sent again, because the server
///   may merely be slow. The server replies from its response slots, and executes only the next number. After five
///   seconds without a message the client reconnects.
/// - `herd`: requests like `uc-rpc`, results as datagrams from one queue pair of the server thread to one queue pair
///   of each client (HERD, section 4). A response slot is at most as long as a datagram; longer results are sent in
///   several messages. The number in a datagram identifies the message to which it replies, and its tail the session.
///   The client posts two receives for each message of its window, and accepts results in the order of their messages,
///   each once.
/// - `ud-rpc`: results like `herd`, and requests as datagrams to the same queue pair of the server thread: a client
///   needs no queue pair at the server. The session tag, source and tail of a request identify the client. The server
///   copies the request into its slot of the client's mailbox, so that the receive, one of 1,024 that all clients
///   share, is posted again at once. A client without a response sends its oldest request again; the server replies to
///   requests that it has already executed from their slots.
/// - `write-send`, `send-write`, `send-send`: the first word names the request path, the second the response path. A
///   SEND consumes a receive that was posted for it (one for each message credit of the sender), and wakes a sleeping
///   receiver.
/// - `rdma-memcached`: requests by SEND. The server stores the result in its memory and announces it by a SEND of
///   eight bytes, number and length; the client READs exactly this length. RF-RPC describes its competitor in this way
///   (section 5.1) without specifying the path of requests; in the design that it cites they are active messages,
///   which are SENDs.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "rf-rpc",
        summary: "The client fetches results by READ; methods that take long turn to server-reply",
        plan: BASE,
    },
    Preset {
        name: "fetch",
        summary: "The client fetches every result by READ",
        plan: Plan { response: ResponsePath::Fetch, ..BASE },
    },
    Preset {
        name: "server-reply",
        summary: "The server writes every result",
        plan: Plan { response: ResponsePath::Write, ..BASE },
    },
    Preset {
        name: "l5",
        summary: "As server-reply; one byte announces each request, and the server polls only these bytes",
        plan: Plan { request: RequestPath::DenseMailbox, response: ResponsePath::Write, ..BASE },
    },
    Preset {
        name: "uc-rpc",
        summary: "As server-reply over UC: lost messages are requested again and retransmitted",
        plan: Plan { response: ResponsePath::Write, transport: Transport::Uc, ..BASE },
    },
    Preset {
        name: "herd",
        summary: "The client writes requests over UC; the server sends every result as a datagram",
        plan: Plan { response: ResponsePath::Datagram, transport: Transport::Uc, ..BASE },
    },
    Preset {
        name: "ud-rpc",
        summary: "Requests and results are datagrams; no queue pair is connected",
        plan: Plan {
            request: RequestPath::Datagram,
            response: ResponsePath::Datagram,
            transport: Transport::Ud,
            ..BASE
        },
    },
    Preset {
        name: "write-send",
        summary: "The server sends every result",
        plan: Plan { response: ResponsePath::Send, ..BASE },
    },
    Preset {
        name: "send-write",
        summary: "The client sends requests; the server writes every result",
        plan: Plan { request: RequestPath::Send, response: ResponsePath::Write, ..BASE },
    },
    Preset {
        name: "send-send",
        summary: "The client sends requests; the server sends every result",
        plan: Plan { request: RequestPath::Send, response: ResponsePath::Send, ..BASE },
    },
    Preset {
        name: "rdma-memcached",
        summary: "The client sends requests; the server announces every result by SEND, and the client READs it",
        plan: Plan { request: RequestPath::Send, response: ResponsePath::NotifyThenFetch, ..BASE },
    },
];

/// A point that is not implemented, and the nearest that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "no such point in the preset table (requests by {request:?}, responses by {response:?}, {transport:?}); \
     the nearest is \"{nearest}\"",
    request = .requested.request,
    response = .requested.response,
    transport = .requested.transport,
    nearest = .nearest.name
)]
pub struct PlanRefused {
    /// The requested plan.
    pub requested: Plan,
    /// The nearest preset.
    pub nearest: &'static Preset,
}

impl Plan {
    /// Returns the plan of the preset `name`.
    pub fn named(name: &str) -> Option<Self> {
        PRESETS.iter().find(|preset| preset.name == name).map(|preset| preset.plan)
    }

    /// Returns the plan with slots that fit into a datagram, which is one packet. A longer message is sent in several
    /// parts, as with any slot.
    #[must_use]
    pub fn with_mtu(self, mtu: Mtu) -> Self {
        // Slightly less than the MTU, so that the stride is odd as in `Geometry::default`.
        let most_bytes = mtu.bytes() - 128;
        let mut geometry = self.geometry;
        if self.request == RequestPath::Datagram {
            geometry.request_slot_bytes = geometry.request_slot_bytes.min(most_bytes);
        }
        if self.response == ResponsePath::Datagram {
            geometry.response_slot_bytes = geometry.response_slot_bytes.min(most_bytes);
        }
        Self { geometry, ..self }
    }

    /// Returns the number of axes of the preset table on which two plans differ. Other axes do not count: each side
    /// chooses its wait strategy, the client chooses batching and connection ownership, and thresholds and slots are
    /// parameters.
    pub fn distance(&self, other: &Self) -> u32 {
        u32::from(self.request != other.request)
            + u32::from(self.response != other.response)
            + u32::from(self.transport != other.transport)
    }

    /// Returns the preset of which this plan is a variant.
    ///
    /// # Errors
    /// Returns the nearest preset if this plan is not a variant of any.
    pub fn preset(&self) -> Result<&'static Preset, PlanRefused> {
        let nearest = PRESETS.iter().min_by_key(|preset| self.distance(&preset.plan)).unwrap_or(&PRESETS[0]);
        if self.distance(&nearest.plan) == 0 {
            Ok(nearest)
        } else {
            Err(PlanRefused { requested: *self, nearest })
        }
    }
}

impl Default for Plan {
    /// `rf-rpc`.
    fn default() -> Self {
        BASE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BatchConfig;

    #[test]
    fn presets_are_found_by_name_and_by_choice() {
        for preset in PRESETS {
            assert_eq!(Plan::named(preset.name), Some(preset.plan));
            assert_eq!(preset.plan.preset().unwrap().name, preset.name);
            preset.plan.geometry.check().unwrap();
        }
        let batching = Batching::Calls(BatchConfig::fixed(8));
        let local = Plan { waiting: WaitStrategy::Busy, batching, ..Plan::default() };
        assert_eq!(local.preset().unwrap().name, "rf-rpc");
    }

    #[test]
    fn a_point_outside_of_the_table_is_refused_with_the_nearest() {
        let requested = Plan { response: ResponsePath::Write, transport: Transport::Ud, ..Plan::default() };
        let refused = requested.preset().unwrap_err();
        assert_eq!(refused.nearest.name, "server-reply");
        assert!(refused.to_string().contains("Ud") && refused.to_string().contains("server-reply"));
    }

    #[test]
    fn limits_datagram_slots_to_one_packet_of_any_mtu() {
        let [herd, ud_rpc] = ["herd", "ud-rpc"].map(|name| Plan::named(name).unwrap());
        for mtu in [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096] {
            for plan in [herd, ud_rpc] {
                let geometry = plan.with_mtu(mtu).geometry;
                geometry.check().unwrap();
                assert!(geometry.response_slot_bytes <= mtu.bytes(), "{mtu:?}");
            }
            assert!(ud_rpc.with_mtu(mtu).geometry.request_slot_bytes <= mtu.bytes(), "{mtu:?}");
            let written = herd.with_mtu(mtu).geometry.request_slot_bytes;
            assert_eq!(written, herd.geometry.request_slot_bytes);
            assert_eq!(Plan::default().with_mtu(mtu), Plan::default());
        }
    }

    #[test]
    fn checks_the_geometry_of_a_peer() {
        let good = Geometry::default();
        assert!(good.check().is_ok());
        assert!(Geometry { window: 3, ..good }.check().is_err());
        assert!(Geometry { window: 0, ..good }.check().is_err());
        assert!(Geometry { window: 512, ..good }.check().is_err());
        assert!(Geometry { request_slot_bytes: 100, ..good }.check().is_err());
        assert!(Geometry { response_slot_bytes: u32::MAX - 63, ..good }.check().is_err());
    }
}
