//! Byte streams: reliable, ordered bytes in both directions between two processes, over any provider.
//!
//! * [`Stream`]: the endpoint. It owns no thread, clock or socket; a driver runs it.
//! * [`Carried`]: a stream with the channel that its handshake goes over, which tells of the peer's death.
//! * [`StreamSocket`], [`StreamListener`]: sockets for threads, with a descriptor to wait on; `AsyncStream` for tokio.
//! * [`StreamSet`]: many sockets and one thread.
//!
//! # Memory
//!
//! Each end has a receive *ring* of registered memory, a row of *words* beside it, and private memory half as long as
//! the peer's ring to send from. The byte at position `p` of a stream lies at `(p - base) mod length` of the ring, so
//! nothing is moved when the ring wraps. A write copies bytes into the send ring ([`Stream::write_with`] composes them
//! there), WRITEs them into the peer's ring, and WRITEs one word behind them; a device that takes whole pieces inline
//! copies them by itself. A read copies bytes out, or is lent them in a private copy ([`Stream::fill`]): the ring itself
//! is never a reference. What a write has accepted is posted; it arrives without further calls.
//!
//! # Words
//!
//! Each word has a WRITE of its own, is read once a look and then checked; impossible words end the stream.
//!
//! | word | says |
//! |---|---|
//! | `WRITTEN` | how many bytes the peer wrote: these have landed |
//! | `CONSUMED` | how many of our bytes the peer read (credit), told once a quarter of its ring |
//! | `WAKES_TAKEN` | how many of our wake-ups the peer took |
//! | `WISH` | whether the peer wants wake-ups: a number and a flag |
//! | `PROMISE` | the number of our wish, and from which byte on the peer obeys it |
//! | `END` | the length of the peer's whole stream, plus one |
//! | `TURN` | from which byte on the peer writes into the ring that we offered last |
//! | `OFFER` | another ring: number, address, length, key |
//!
//! Every word but `WRITTEN` is true by itself, in whatever order words become visible. `WRITTEN` is believed where
//! WRITEs land in order; elsewhere every word comes with immediate data that holds the position, whose completion shows
//! that everything before it landed.
//!
//! # Waking
//!
//! A WRITE wakes nobody. An end that wants to sleep says so (`WISH`); its peer promises the byte N from which on each
//! word comes with immediate data, and that answer wakes, too. The end sleeps when it has seen everything up to N. An
//! end that polls asks for silence again. A writer hears a wish
//! before it posts. Until the promise has come, an end naps, ever longer: only what crosses with its wish comes unnoticed. An end has
//! 64 receives for wake-ups; a writer has at most half of them under way for bytes, so none ever finds no receive.
//!
//! Where a poller looks on behalf of an end that sleeps (BPEV), that end asks for silence, too: its peer pays for no
//! wake-up, and the poller, who sees the words change, wakes it. Before the poller sleeps itself it wakes the end, which
//! then asks for wake-ups.
//!
//! # Rings that follow their use
//!
//! A ring that the peer keeps filling is too short: its owner offers one four times as long, up to its limit. When
//! nothing comes for a second, it offers the first one again. The peer says the byte from which on it writes there.
//!
//! # TCP
//!
//! Between hosts where neither shared memory nor an RNIC reaches, the server answers that the channel of the handshake
//! carries the stream itself ([`StreamPath::Tcp`]). Nothing is added to its bytes; until its end is said, closing the
//! connection resets it, so that death is no end.
//!
//! # States
//!
//! Each direction ends by itself: [`Stream::finish`] says `END` behind the last byte; the reader gets all bytes, then
//! the end. When all that was written has arrived, the channel of the handshake carries `StreamEnded` with the length.
//! If that channel ends before, the peer is gone: the reader gets what arrived, then an error ([`Broken`]).
//!
//! # Handshake
//!
//! One message each way ([`farcall_link::bootstrap::StreamEnd`]) in the frames of [`farcall_link::bootstrap`], which
//! negotiate a version: later ones only append fields. The server sends nothing before the client's first word has
//! come.

mod carried;
mod config;
mod error;
mod inlet;
mod lent;
mod nap;
mod outlet;
mod probe;
mod receive_ring;
mod ring;
mod ring_stream;
mod shown;
mod socket;
mod space;
mod staging;
mod stream;
mod tcp_path;
mod tcp_stream;
mod waking;
#[cfg(test)]
mod waking_model;
mod words;

pub use carried::{Carried, Carrier};
pub use config::StreamConfig;
pub use error::{Broken, OpenError, StreamError};
pub use ring_stream::Opening;
pub use socket::{Asked, StreamListener, StreamOptions, StreamSet, StreamSocket};
#[cfg(feature = "tokio")]
pub use socket::{AsyncStream, AsyncStreamListener};
pub use space::Space;
pub use stream::{Counters, Stream, StreamPath};
