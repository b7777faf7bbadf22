//! The design space: one type per axis, a [`Plan`] as one choice on each, and the table of named points.
//!
//! A plan is plain data. It is what the tuner searches, the command line names and the handshake exchanges. Only points
//! of [`PRESETS`] run; any other is refused together with the nearest one that does. An axis names only what some code
//! executes: a choice is added, at the end, with the code that runs it.

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
    /// The same as a datagram: one queue pair of the server thread takes the requests of all its clients.
    Datagram,
    /// WRITE into a mailbox, then WRITE of one byte among those of all clients of the server thread, which polls these
    /// bytes alone (L5, as RDMA communication patterns, section 8, describes it).
    DenseMailbox,
}

/// How a response reaches the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ResponsePath {
    /// WRITE into a slot of the client, which polls it.
    Write,
    /// The client READs it out of the server's memory, always.
    Fetch,
    /// The client READs it, and turns to server-reply for calls that take long (RF-RPC, section 3.2).
    FetchThenReply,
    /// SEND into a receive that the client has posted.
    Send,
    /// The same as a datagram: one queue pair of the server thread serves all its clients (HERD).
    Datagram,
    /// The server tells of it by SEND; then the client READs it (RDMA-Memcached, as RF-RPC describes it).
    NoticeThenFetch,
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
    /// All of them, the most capable first.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// The queue pairs it takes.
    #[must_use]
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// Whether what was sent arrives, or the connection breaks.
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

/// Who owns connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ConnectionModel {
    /// Each client thread has its own.
    PrivatePerThread,
    /// One thread of the client's process has one to each server thread, and makes the calls of the others.
    Dispatcher,
}

/// How an endpoint's owner waits. A local choice of either side. While threads compete for the processors, strategies
/// that poll before they sleep sleep at once, except `Bpev` with a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Waiting {
    /// Polls without end. A server thread, which polls its many connections in turn, waits by busy-polling time-sharing
    /// then (BPTS; RR-Compound, algorithm 1); a thread for each connection would be plain busy polling (BP).
    Busy,
    /// Sleeps until an event, then takes all completions.
    EventBatch,
    /// Polls a fixed number of times after each sleep, then sleeps until an event.
    NaiveHybrid,
    /// Polls until `max_retry` empty polls in a row, then sleeps until an event (RDMAbox, algorithm 3).
    Adaptive {
        /// Empty polls in a row before it sleeps.
        max_retry: u32,
    },
    /// Polls for a while, then sleeps until an event, or until a poller that looks meanwhile tells of news (BPEV;
    /// RR-Compound, algorithm 2, whose line 29 is printed inverted: it sleeps when there are no events). Without
    /// pollers, and where they sleep because nothing moves, by events alone.
    Bpev {
        /// How long it polls. `None`: as long as waits usually take, up to what a sleep costs, and not at all while
        /// threads compete for the processors.
        bp_timeout_us: Option<u32>,
    },
}

/// Thresholds of posting. Memory is registered beforehand; payloads are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// Messages up to this many bytes are copied into the work request (RF-RPC, section 3.2: 92 bytes on its RNIC).
    pub inline_max_bytes: u32,
    /// One of so many work requests is signalled.
    pub signal_every: u16,
}

/// Slots of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    /// Messages in flight: slots in each direction. A power of two.
    pub window: u16,
    /// Bytes of one request slot, header and tail included.
    pub request_slot_bytes: u32,
    /// Bytes of one response slot, header and tail included.
    pub response_slot_bytes: u32,
}

impl Geometry {
    /// The largest window.
    pub const WINDOW_MAX: u16 = 256;
    /// The largest slot.
    pub const SLOT_BYTES_MAX: u32 = 1 << 20;
    /// The smallest slot.
    pub const SLOT_BYTES_MIN: u32 = 128;

    /// Whether every number is in its range. Foreign geometries are checked before anything is allocated.
    ///
    /// # Errors
    /// Which number is wrong, and its range.
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

    /// The largest window of a mailbox that is told of by a byte: the byte is the low one of a message's number, and
    /// must not come round within a window.
    pub const WINDOW_OF_BYTE_MAX: u16 = 128;

    /// The smaller of two in every number.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            window: self.window.min(other.window),
            request_slot_bytes: self.request_slot_bytes.min(other.request_slot_bytes),
            response_slot_bytes: self.response_slot_bytes.min(other.response_slot_bytes),
        }
    }

    /// Bytes of all request slots.
    pub const fn mailbox_bytes(&self) -> usize {
        self.window as usize * self.request_slot_bytes as usize
    }

    /// Bytes of all response slots.
    pub const fn responses_bytes(&self) -> usize {
        self.window as usize * self.response_slot_bytes as usize
    }
}

impl Default for Geometry {
    /// Slots hold 4 KiB of payload. Their stride is odd in units of 128 bytes, so that the first lines of neighbouring
    /// slots do not fall into one set of the cache, as a stride of 4,096 would make them.
    fn default() -> Self {
        Self { window: 16, request_slot_bytes: 4_224, response_slot_bytes: 4_224 }
    }
}

/// One choice per axis, and the constants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Plan {
    /// Request verbs.
    pub request: RequestPath,
    /// Response verbs.
    pub response: ResponsePath,
    /// Transport.
    pub transport: Transport,
    /// Connection model.
    pub connections: ConnectionModel,
    /// Waiting, as this side would like it.
    pub waiting: Waiting,
    /// Batching.
    pub batching: Batching,
    /// Memory.
    pub memory: MemoryPolicy,
    /// Slots.
    pub geometry: Geometry,
}

/// A named point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name, as on the command line.
    pub name: &'static str,
    /// How messages travel, in a sentence.
    pub summary: &'static str,
    /// Its choices.
    pub plan: Plan,
}

const BASE: Plan = Plan {
    request: RequestPath::WriteMailbox,
    response: ResponsePath::FetchThenReply,
    transport: Transport::Rc,
    connections: ConnectionModel::PrivatePerThread,
    waiting: Waiting::Adaptive { max_retry: 2_000 },
    batching: Batching::None,
    memory: MemoryPolicy { inline_max_bytes: 256, signal_every: 8 },
    geometry: Geometry { window: 16, request_slot_bytes: 4_224, response_slot_bytes: 4_224 },
};

/// The points that run.
///
/// - `rf-rpc`: remote fetching (RF-RPC, section 3). The request arrives by WRITE; the server leaves the result in its
///   own memory; the client fetches it by READ, so the server issues nothing. Methods that take long turn to
///   server-reply by themselves.
/// - `fetch`: the same without ever turning to server-reply.
/// - `server-reply`: request by WRITE, response by WRITE into memory that the client polls.
/// - `l5`: the same, and one byte announces each request. A server thread has the bytes of all its clients side by side
///   and polls them alone, so that 64 empty mailboxes cost one cache line; the client pays with a second WRITE (RDMA
///   communication patterns, section 8). The byte is a hint: the server executes the message.
/// - `uc-rpc`: as `server-reply` over UC, which loses messages. A client without a response asks for it, after pauses
///   that double, then sends its oldest request again; only that one, since the server may as well be slow. The server
///   replies from its response slots, and executes only the next number. After five seconds of silence the client
///   connects anew.
/// - `herd`: requests as under `uc-rpc`, results as datagrams, from one queue pair of the server thread to one of each
///   client (HERD, section 4). A response slot is at most as long as a datagram; longer results arrive in pieces. The
///   number in a datagram names the message that it answers, its tail the session. The client posts two receives for
///   each message of its window, and takes results in the order of their messages, each once.
/// - `ud-rpc`: results as under `herd`, and requests as datagrams to the same queue pair of the server thread: a
///   client costs the server no queue pair. A request's session tag, source and tail identify its client. The server
///   copies it into its slot of the client's mailbox, so that the receive, one of 1,024 that all clients share, is
///   posted again at once. A client without a response sends its oldest request again; the server replies to what it
///   executed before from its slot.
/// - `write-send`, `send-write`, `send-send`: the first word is the request, the second the response. A SEND arrives
///   in a receive that is posted for it, one for each message that its sender has credits for, and wakes a receiver
///   that sleeps.
/// - `rdma-memcached`: requests by SEND; the server leaves the result in its memory and announces it by a SEND of
///   eight bytes, number and length; the client READs exactly that. So RF-RPC describes its rival (section 5.1),
///   without saying how requests travel; in the design that it names they are active messages, which are SENDs.
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
        summary: "As server-reply; each request is told of by one byte, and the server polls such bytes alone",
        plan: Plan { request: RequestPath::DenseMailbox, response: ResponsePath::Write, ..BASE },
    },
    Preset {
        name: "uc-rpc",
        summary: "As server-reply over UC: what is lost is asked for and sent again",
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
        summary: "The client sends requests; the server tells of every result by SEND, and the client READs it",
        plan: Plan { request: RequestPath::Send, response: ResponsePath::NoticeThenFetch, ..BASE },
    },
];

/// A point that does not run, and the nearest that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "no such point in the preset table (requests by {request:?}, responses by {response:?}, {transport:?}); \
     the nearest is \"{nearest}\"",
    request = .asked.request,
    response = .asked.response,
    transport = .asked.transport,
    nearest = .nearest.name
)]
pub struct PlanRefused {
    /// What was asked for.
    pub asked: Plan,
    /// What to ask for instead.
    pub nearest: &'static Preset,
}

impl Plan {
    /// A preset's plan by name.
    pub fn named(name: &str) -> Option<Self> {
        PRESETS.iter().find(|preset| preset.name == name).map(|preset| preset.plan)
    }

    /// The plan with slots that fit into its datagrams: one is one packet. What is longer goes in parts, as with any
    /// slot.
    #[must_use]
    pub fn with_mtu(self, mtu: Mtu) -> Self {
        // Less by a little, for a stride that is odd as the one of `Geometry::default`.
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

    /// On how many axes of the table two plans differ. Waiting is each side's own, batches and the owner of connections
    /// are the client's, thresholds and slots are constants: they do not count.
    pub fn distance(&self, other: &Self) -> u32 {
        u32::from(self.request != other.request)
            + u32::from(self.response != other.response)
            + u32::from(self.transport != other.transport)
    }

    /// The preset this plan is a variant of.
    ///
    /// # Errors
    /// If there is none: the nearest one.
    pub fn preset(&self) -> Result<&'static Preset, PlanRefused> {
        let nearest = PRESETS.iter().min_by_key(|preset| self.distance(&preset.plan)).unwrap_or(&PRESETS[0]);
        if self.distance(&nearest.plan) == 0 {
            Ok(nearest)
        } else {
            Err(PlanRefused { asked: *self, nearest })
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
        let local = Plan { waiting: Waiting::Busy, batching, ..Plan::default() };
        assert_eq!(local.preset().unwrap().name, "rf-rpc");
    }

    #[test]
    fn a_point_outside_of_the_table_is_refused_with_the_nearest() {
        let asked = Plan { response: ResponsePath::Write, transport: Transport::Ud, ..Plan::default() };
        let refused = asked.preset().unwrap_err();
        assert_eq!(refused.nearest.name, "server-reply");
        assert!(refused.to_string().contains("Ud") && refused.to_string().contains("server-reply"));
    }

    #[test]
    fn what_goes_by_datagram_fits_one_packet_of_any_mtu() {
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
    fn foreign_geometries_are_checked() {
        let good = Geometry::default();
        assert!(good.check().is_ok());
        assert!(Geometry { window: 3, ..good }.check().is_err());
        assert!(Geometry { window: 0, ..good }.check().is_err());
        assert!(Geometry { window: 512, ..good }.check().is_err());
        assert!(Geometry { request_slot_bytes: 100, ..good }.check().is_err());
        assert!(Geometry { response_slot_bytes: u32::MAX - 63, ..good }.check().is_err());
    }
}
