//! Connection management for queue pairs in user space: the messages, and the state machine of a connection.
//!
//! Messages and states have the names and the encoding of the InfiniBand specification's communication management
//! (volume 1, chapter 12: REQ, REP, RTU, REJ, DREQ, DREP, MRA; SIDR for datagrams). They are compatible with Linux's
//! `rdma_cm`. The module contains no socket, clock or thread: bytes and calls go in, messages and events come out.
//!
//! - [`Message`]: contents of the messages;
//! - [`Mad`]: one encoded message of [`MESSAGE_BYTES`] bytes;
//! - [`CommunicationIds`]: association of messages with a connection;
//! - [`Exchange`]: retransmission, and detection of duplicates;
//! - [`Connection`]: effect of each message, call and failure in each state;
//! - [`RequestCapacity`], [`RequestRate`]: limits on the number and rate of a host's connection requests;
//!   [`host_network`]: the addresses that count as one host;
//! - [`socket_name`]: names of sockets that represent an address and a port.

mod admission;
mod connection;
mod exchange;
mod fields;
mod ids;
mod ip_route;
mod layout;
mod mad;
mod message;
pub mod reason;
mod request_rate;
pub mod socket_name;
mod source;

pub use admission::{ConnectionCount, RequestCapacity, request_to_evict};
pub use connection::{Connection, Event, State, Step, WrongState};
pub use exchange::{Exchange, MessageClass, TimerAction};
pub use ids::CommunicationIds;
pub use mad::{Mad, Malformed};
pub use message::{
    ConnectionParams, Ece, IpRoute, Message, PortSpace, QueuePair, RejectedMessage, Rejection, Reply,
    Request, ServiceReply, ServiceRequest,
};
pub use request_rate::RequestRate;
pub use source::host_network;

/// Length of every message in bytes.
pub const MESSAGE_BYTES: usize = 256;

/// Maximum length of private data in bytes (volume 1, section 12.6, less the addresses of both ends).
pub mod private_data {
    /// In a REQ of a connection between IP addresses.
    pub const REQ_BYTES_MAX: usize = 56;
    /// In a REP.
    pub const REP_BYTES_MAX: usize = 196;
    /// In a REJ.
    pub const REJ_BYTES_MAX: usize = 148;
    /// In a SIDR REQ.
    pub const SIDR_REQ_BYTES_MAX: usize = 180;
    /// In a SIDR REP.
    pub const SIDR_REP_BYTES_MAX: usize = 136;
}
