//! Byte streams: reliable, ordered bytes in both directions between two processes, over any provider.
//!
//! * [`Stream`]: the endpoint. It owns no thread, clock or socket; a driver runs it.
//! * [`NegotiatedStream`]: a stream together with its handshake channel, which also reports the exit of the peer
//!   process.
//! * [`StreamSocket`], [`StreamListener`]: sockets for threads, with a descriptor to wait on; `AsyncStream` for tokio.
//! * [`StreamSet`]: many sockets and one thread.
//!
//! # Memory
//!
//! Each end has a receive *ring* of registered memory, a row of *control words* next to it, and a private send ring
//! half as long as the peer's receive ring. The byte at position `p` of a stream lies at `(p - base) mod length` of
//! the ring, so no bytes are moved when the ring wraps. A write copies bytes into the send ring
//! ([`Stream::write_with`] composes them there), WRITEs them into the peer's ring, and WRITEs one control word after
//! them. If the device accepts complete segments as inline data, it copies them itself and the send ring is not used.
//! A read copies bytes out of the ring, or the stream lends them in a private copy ([`Stream::fill`]): no reference
//! into the ring ever exists. The WRITEs of all bytes that a write accepts are posted before it returns; the bytes
//! arrive without further calls.
//!
//! # Control words
//!
//! Each control word is written by a WRITE of its own. A poll reads it once and then validates it; an impossible value
//! ends the stream.
//!
//! | word | contents |
//! |---|---|
//! | `WRITTEN` | number of bytes that the peer wrote; they are in the ring |
//! | `CONSUMED` | number of our bytes that the peer read (credit), sent once per quarter of its ring |
//! | `WAKES_TAKEN` | number of our wake-ups that the peer consumed |
//! | `WAKE_REQUEST` | the peer's wake request: a number, and whether it requests wake-ups |
//! | `WAKE_ACK` | acknowledgement of our wake request: number, position from which on the peer sends wake-ups |
//! | `END` | the length of the peer's complete stream, plus one |
//! | `TURN` | position from which on the peer writes into the ring that we offered last |
//! | `OFFER` | another ring: number, address, length, key |
//!
//! Every control word except `WRITTEN` is valid independently of the others, in whatever order they become visible.
//! `WRITTEN` is used directly only if WRITEs are placed in order. Otherwise every control word is sent with immediate
//! data that contains the position; its completion shows that all earlier bytes have been placed.
//!
//! # Waking
//!
//! A plain WRITE does not wake a sleeping reader. Going to sleep takes these steps:
//!
//! 1. The end that wants to sleep sends a wake request (`WAKE_REQUEST`). Its peer reads the request before each post.
//! 2. The peer acknowledges with the position N (`WAKE_ACK`) from which on every control word is sent with immediate
//!    data. The acknowledgement itself is a wake-up.
//! 3. The end sleeps when it has seen all bytes up to N.
//!
//! Until the acknowledgement arrives, the end sleeps with increasing timeouts: only bytes that cross with its request
//! arrive without a wake-up. An end that polls requests that wake-ups stop. An end has 64 receives for wake-ups. A
//! writer has at most half of them outstanding for bytes, so a wake-up always finds a posted receive.
//!
//! If a poller thread polls on behalf of a sleeping end (BPEV), that end also requests that wake-ups stop. Its peer
//! then pays for no wake-up, and the poller wakes the end when the control words change. Before the poller itself
//! sleeps it wakes the end, which then requests wake-ups.
//!
//! # Ring resizing
//!
//! A ring that the peer keeps filling is too short: its owner offers one four times as long, up to the configured
//! limit. If no bytes arrive for a second, it offers the first ring again. The peer announces the position from which
//! on it writes into the offered ring.
//!
//! # TCP
//!
//! Between hosts where neither shared memory nor an RNIC reaches, the server replies that the handshake channel
//! carries the stream itself ([`StreamPath::Tcp`]). No bytes are added to the stream. Until this end has ended its
//! stream, closing the connection resets it, so that the peer can distinguish a process exit from the end of the
//! stream.
//!
//! # States
//!
//! Each direction ends independently: [`Stream::finish`] sends `END` after the last byte; the reader receives all
//! bytes, then the end. When all written bytes have arrived, the handshake channel carries `StreamEnded` with the
//! length. If that channel closes earlier, the peer has exited: the reader receives the bytes that arrived, then an
//! error ([`Broken`]).
//!
//! # Handshake
//!
//! One message in each direction ([`farcall_link::bootstrap::StreamEnd`]) in the frames of
//! [`farcall_link::bootstrap`], which negotiate a version: later versions only append fields. The server sends nothing
//! before the client's first control word has arrived.

mod backoff_sleep;
mod config;
mod error;
mod negotiated;
mod probe;
mod receive_buffer;
mod receive_ring;
mod recv_half;
mod ring;
mod ring_stream;
mod send_half;
mod send_ring;
mod socket;
mod stream;
mod stream_stats;
mod tcp_path;
mod tcp_stream;
mod waking;
#[cfg(test)]
mod waking_model;
mod words;
mod write_buffer;

pub use config::StreamConfig;
pub use error::{Broken, OpenError, StreamError};
pub use negotiated::{BootstrapChannel, NegotiatedStream};
pub use ring_stream::UnconnectedStream;
pub use socket::{AcceptCounts, StreamListener, StreamOptions, StreamSet, StreamSocket};
#[cfg(feature = "tokio")]
pub use socket::{AsyncStream, AsyncStreamListener};
pub use stream::{Counters, Stream, StreamPath};
pub use write_buffer::WriteBuffer;
