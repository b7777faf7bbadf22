//! Connection management for queue pairs in user space: the messages, and the state machine of a connection.
//!
//! Messages and states have the names of the InfiniBand specification's communication management (volume 1, chapter 12:
//! REQ, REP, RTU, REJ, DREQ, DREP, MRA; SIDR for datagrams), and its bytes: what Linux's `rdma_cm` sends is understood
//! here, and the other way round. No socket, no clock, no thread: bytes and calls in, messages and events out.
//!
//! - [`Message`]: what the messages say;
//! - [`Mad`]: one message as it travels, in [`MESSAGE_BYTES`] bytes;
//! - [`CommunicationIds`]: which messages belong to one connection;
//! - [`Exchange`]: what is sent again, and what was heard before, where messages are lost;
//! - [`Connection`]: what each message, call and failure means in each state;
//! - [`Room`], [`RequestRate`]: how many connections a host may ask for, and how often; [`host_network`]: which
//!   addresses count as one host;
//! - [`place`]: the names of sockets that stand for an address and a port.

mod admission;
mod connection;
mod exchange;
mod fields;
mod ids;
mod ip_route;
mod layout;
mod mad;
mod message;
pub mod place;
pub mod reason;
mod request_rate;
mod source;

pub use admission::{Count, Room, first_to_give_way};
pub use connection::{Connection, Event, State, Step, WrongState};
pub use exchange::{Due, Exchange, Heard};
pub use ids::CommunicationIds;
pub use mad::{Mad, Malformed};
pub use message::{
    Answered, Ece, IpRoute, Message, PortSpace, QueuePair, Rejection, Reply, Request, ServiceReply,
    ServiceRequest, Terms,
};
pub use request_rate::RequestRate;
pub use source::host_network;

/// The bytes of a message: all have as many.
pub const MESSAGE_BYTES: usize = 256;

/// Private data that the messages have room for, in bytes (volume 1, section 12.6, less the addresses of both ends).
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
