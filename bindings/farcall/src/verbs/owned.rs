//! Verbs without `unsafe`: buffers are transferred to a queue pair while a request is in flight, and returned with its
//! completion. Misuse is a compile error: a posted buffer cannot be read, changed, posted again or freed.
//!
//! ```
//! # #[cfg(feature = "softnic")] {
//! use farcall::{Nic, SoftNic};
//! use farcall::verbs::owned::{Buffers, Completion, Pair, Transport};
//!
//! let nic = Nic::open(&SoftNic::new())?;
//! let buffers = Buffers::new(&nic, 16, 4096)?;
//! // Both ends in one program; two programs exchange the 28 bytes of their addresses by any channel.
//! let mut here = Pair::new(&nic, Transport::Rc, &buffers)?;
//! let mut there = Pair::new(&nic, Transport::Rc, &buffers)?;
//! here.connect(&there.address())?;
//! there.connect(&here.address())?;
//!
//! there.post_receive(buffers.take().expect("one of 16"))?;
//! let mut buffer = buffers.take().expect("one of 16");
//! buffer.write(0, b"hello");
//! here.send(buffer, 5)?;
//! let Completion::Received { buffer, payload, .. } = there.wait(None)?.expect("no time limit") else { panic!() };
//! assert_eq!(buffer.to_vec(payload), b"hello");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A posted buffer is not accessible until it is returned, so this does not compile:
//!
//! ```compile_fail,E0382
//! # use farcall::verbs::owned::{Buffers, Pair};
//! # fn f(pair: &mut Pair, buffers: &Buffers) {
//! let mut buffer = buffers.take().unwrap();
//! let _ = pair.send(buffer, 5);
//! buffer.write(0, b"too late: it is under way");
//! # }
//! ```
//!
//! nor does reading the result of a receive before its completion,
//!
//! ```compile_fail,E0382
//! # use farcall::verbs::owned::{Buffers, Pair};
//! # fn f(pair: &mut Pair, buffers: &Buffers) {
//! let buffer = buffers.take().unwrap();
//! let _ = pair.post_receive(buffer);
//! buffer.to_vec(0..5);
//! # }
//! ```
//!
//! freeing it,
//!
//! ```compile_fail,E0382
//! # use farcall::verbs::owned::{Buffers, Pair};
//! # fn f(pair: &mut Pair, buffers: &Buffers) {
//! let buffer = buffers.take().unwrap();
//! let _ = pair.post_receive(buffer);
//! drop(buffer);
//! # }
//! ```
//!
//! or posting it twice:
//!
//! ```compile_fail,E0382
//! # use farcall::verbs::owned::{Buffers, Pair};
//! # fn f(pair: &mut Pair, buffers: &Buffers) {
//! let buffer = buffers.take().unwrap();
//! let _ = pair.send(buffer, 5);
//! let _ = pair.send(buffer, 5);
//! # }
//! ```
//!
//! while this does, because the buffer was returned:
//!
//! ```
//! # use farcall::verbs::owned::{Buffers, Completion, Pair};
//! # fn f(pair: &mut Pair, buffers: &Buffers) -> Result<(), Box<dyn std::error::Error>> {
//! let buffer = buffers.take().unwrap();
//! pair.send(buffer, 5)?;
//! if let Some(Completion::Done(mut buffer)) = pair.wait(None)? {
//!     buffer.write(0, b"again");
//!     pair.send(buffer, 5)?;
//! }
//! # Ok(())
//! # }
//! ```

mod buffer;
mod pair;
#[cfg(feature = "tokio")]
mod tasks;

pub use buffer::{Buffer, Buffers, SharedMemory};
pub use farcall_link::{PostRefused, RemoteRegion, Transport};
pub use pair::{Address, Completion, Pair, Refused};
#[cfg(feature = "tokio")]
pub use tasks::AsyncPair;
