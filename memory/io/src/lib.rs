//! One-sided I/O to remote memory: the I/O path of RDMAbox (section IV). Many threads read and write ranges of a peer's
//! registered memory by RDMA READ and WRITE, through a small interface:
//!
//! * [`Target`]: the passive side. It grants memory to one peer, over several queue pairs.
//! * [`Session`]: the active side, connected to a target. Any thread submits a [`Request`]; the session's [`Handler`] is
//!   called when the request has completed.
//! * [`Poller`]: a completion queue, the sessions that complete on it, and the endpoint that polls it.
//!
//! # The path of a request
//!
//! 1. **Arrival.** The submitting thread adds the request to a lock-free list. The first thread to do so plans; later
//!    ones return at once, and the first takes their requests, too (load-aware batching, section IV-A). No thread waits
//!    for a batch to fill, so a request that is alone is posted at once.
//! 2. **Merging and chaining** (section IV-A, algorithms 1 and 2). Requests that are adjacent in remote memory become one
//!    work request; several work requests are posted with one doorbell, as [`Combining`] says.
//! 3. **Admission** (section IV-A). A [`Window`] of bytes in flight, or another [`Admission`] policy, limits what is
//!    posted. Requests that are held back continue to merge.
//! 4. **Registered memory** (section IV-A, figure 5). Short buffers are copied through a registered pool (preMR), long
//!    ones are registered for their request (dynMR); [`Config::register_from_bytes`] is the threshold. A [`Buffer`] in
//!    registered memory is used in place.
//! 5. **Completion** (section IV-B). The poller takes completions in batches. How it waits for them (adaptive polling,
//!    algorithm 3, and its rivals) is its driver's choice.
//!
//! Plain verbs stay available beside it, over `farcall-link`'s connections.
//!
//! # Order
//!
//! Requests are executed as if one after another, in the order in which they were submitted: a read sees every write
//! that was submitted before it, and none that was submitted after it was over. That holds between threads if one
//! submits after another's `submit` has returned; of requests submitted at the same time, either may be first. Requests
//! that share no byte are executed together, whatever their order; they are over in any order. A request may be read or
//! written in any order of its bytes, and in pieces, while it is not over: nobody else should look at its range.
//!
//! # Failures
//!
//! A work request that fails ends its session, since it ends its queue pair. Its requests end with [`Failure::Failed`],
//! others under way with [`Failure::Unknown`], those that wait with [`Failure::NotPosted`]: only these are sure to have
//! changed nothing. What a WRITE that failed, or whose fate is unknown, may still do to its range, it may do until the
//! peer has closed its ends: a packet may be late. So the range is of no use before [`Target::close`] at the peer and
//! [`Target::is_quiesced`] there, then a new session. No request is sent again by itself for the same reason.
//!
//! ```
//! use std::sync::{Arc, mpsc};
//! use farcall_io::{Config, Done, Handler, Poller, PollerConfig, Request, Target, Window};
//! use farcall_link::{Nic, Region};
//! use farcall_softnic::SoftNic;
//! use farcall_verbs::{Access, Endpoint, Nanos};
//!
//! struct Tell(mpsc::Sender<Done<&'static str>>);
//! impl Handler for Tell {
//!     type Context = &'static str;
//!     fn done(&self, done: Done<&'static str>) {
//!         let _ = self.0.send(done);
//!     }
//! }
//!
//! // Here both ends are in one process; `infos` and `grant` go over any byte channel.
//! let nic = Nic::open(&SoftNic::new())?;
//! let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
//! let config = Config::default();
//! let memory = Arc::new(Region::alloc(&*nic.pd, 1 << 20, access)?);
//! let mut target = Target::new(&nic, memory, config.connections)?;
//! let mut poller = Poller::new(&nic, PollerConfig::default())?;
//! let (tell, told) = mpsc::channel();
//! let session = poller.open(config, Window::PAPER, Tell(tell))?;
//! target.connect(&session.infos())?;
//! session.connect(&target.infos(), &[target.grant()])?;
//!
//! session.submit(Request::write(4096, b"remote memory".to_vec(), "write")).unwrap();
//! session.submit(Request::read(4096, vec![0; 6], "read")).unwrap();
//! let mut over = Vec::new();
//! while over.len() < 2 {
//!     poller.progress(Nanos(0));
//!     over.extend(told.try_iter());
//! }
//! assert!(over.iter().all(|done| done.result.is_ok()));
//! assert_eq!(over.pop().unwrap().buffer.into_owned().unwrap(), b"remote");
//! # Ok::<(), farcall_verbs::Error>(())
//! ```

mod arrivals;
mod config;
mod grants;
mod line;
mod merging;
mod pieces;
mod planner;
mod poller;
mod request;
mod session;
mod sync;
mod target;
mod window;

pub use config::Config;
pub use merging::{Combining, Counts, Direction};
pub use poller::{PollCounts, Poller, PollerConfig};
pub use request::{Attached, Buffer, Done, Failure, Handler, Refusal, Refused, Request, SessionEnd, Slice};
pub use session::Session;
pub use target::Target;
pub use window::{Admission, Window};
