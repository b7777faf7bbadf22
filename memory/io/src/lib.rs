//! One-sided I/O to remote memory: the I/O path of RDMAbox (section IV). Many threads read and write ranges of a peer's
//! registered memory by RDMA READ and WRITE:
//!
//! * [`Target`]: the passive side, which grants memory to one peer over several queue pairs.
//! * [`Session`]: the active side, connected to a target. Any thread submits a [`Request`]; the session's [`Handler`]
//!   is called when the request has completed.
//! * [`Poller`]: a completion queue, the sessions that complete on it, and the endpoint that polls it.
//!
//! # The path of a request
//!
//! 1. **Arrival.** The submitting thread enqueues the request in a lock-free queue. The first thread to do so plans;
//!    later ones return at once, and the first also handles their requests (load-aware batching, section IV-A). No
//!    thread waits for a batch to fill, so a single request is posted at once.
//! 2. **Merging and chaining** (section IV-A, algorithms 1 and 2). Requests that are adjacent in remote memory become
//!    one work request; several work requests are posted with one doorbell. [`Combining`] selects this.
//! 3. **Admission** (section IV-A). A [`Window`] of bytes in flight, or another [`Admission`] policy, limits the posted
//!    work requests. Requests that are held back continue to merge.
//! 4. **Registered memory** (section IV-A, figure 5). Short buffers are copied through a registered pool (preMR), long
//!    ones are registered for their request (dynMR); [`Config::register_from_bytes`] is the threshold. A [`Buffer`] in
//!    registered memory is used in place.
//! 5. **Completion** (section IV-B). The poller polls completions in batches. Its driver selects the wait strategy
//!    (adaptive polling, algorithm 3, or an alternative to it).
//!
//! Programs that need plain verbs use the connections of `farcall-link`.
//!
//! # A one-sided request
//!
//! The threads that handle a request, from [`Session::submit`] to [`Handler::on_completion`]:
//!
//! 1. **Submit.** A thread enqueues its request in a lock-free queue (`CombiningQueue`). If no thread holds the
//!    combiner role, it takes the role. Otherwise it returns at once, and the combiner dequeues the request.
//! 2. **Plan.** The combiner dequeues all messages. The merge queue holds back requests that overlap a range in flight
//!    or an earlier waiting request, merges requests that are adjacent in remote memory, and admits work requests while
//!    the window has room. The result is a batch for a queue pair to which no other thread posts. The combiner releases
//!    the role before it posts the batch.
//! 3. **Post.** The same thread copies written data into the session's pool, or registers the memory, and posts the
//!    chain of work requests with one doorbell. Then it enqueues a message that the queue pair is free. If this returns
//!    the combiner role to it, it continues with step 2. It returns when there is nothing to post, and after a few
//!    batches if work requests are in flight.
//! 4. **Complete.** The poller finds completions, and copies read data out of the pool. It enqueues a message for each
//!    work request that has ended. If this gives it the combiner role, it plans and posts the requests that waited, as
//!    in steps 2 and 3. Then it calls the handler for each completed request.
//!
//! Only planning is serialized: several threads can copy, register and post at the same time, each to its own queue
//! pair.
//!
//! # Order
//!
//! The result is that of executing requests one after another in the order of submission: a read observes every write
//! that was submitted before it, and none that was submitted after it. This order holds between threads if one of them
//! submits after the `submit` of the other has returned. Concurrent submissions may be ordered either way. Requests
//! that do not overlap may execute concurrently, and complete in any order. Until a request has completed, its bytes
//! may be read or written in any order and in several parts, so the peer should not access its range.
//!
//! # Failures
//!
//! A work request that fails ends its queue pair, and with it the session. Its requests complete with
//! [`TransferFailure::Failed`], others in flight with [`TransferFailure::Unknown`], and waiting ones with
//! [`TransferFailure::NotPosted`]. Only the last are certain to have changed nothing. A WRITE that failed, or whose
//! outcome is unknown, may still change its range later, because a packet may be delayed. This ends only when the peer
//! closes its queue pairs. The range must therefore not be used until the peer has called [`Target::close`] and
//! [`Target::is_quiesced`] has returned true; then a new session may be opened. For the same reason, requests are not
//! retried automatically.
//!
//! ```
//! use std::sync::{Arc, mpsc};
//! use farcall_io::{Config, TransferCompletion, Handler, Poller, PollerConfig, Request, Target, Window};
//! use farcall_link::{Nic, Region};
//! use farcall_softnic::SoftNic;
//! use farcall_verbs::{Access, Endpoint, Nanos};
//!
//! struct CompletionSender(mpsc::Sender<TransferCompletion<&'static str>>);
//! impl Handler for CompletionSender {
//!     type Context = &'static str;
//!     fn on_completion(&self, completion: TransferCompletion<&'static str>) {
//!         let _ = self.0.send(completion);
//!     }
//! }
//!
//! // Here both ends are in one process; `infos` and `grant` go over any byte channel.
//! let nic = Nic::open(&SoftNic::new())?;
//! let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
//! let config = Config::default();
//! let memory = Arc::new(Region::alloc(&**nic.pd(), 1 << 20, access)?);
//! let mut target = Target::new(&nic, memory, config.connections)?;
//! let mut poller = Poller::new(&nic, PollerConfig::default())?;
//! let (sender, receiver) = mpsc::channel();
//! let session = poller.open(config, Window::PAPER, CompletionSender(sender))?;
//! target.connect(&session.infos())?;
//! session.connect(&target.infos(), &[target.grant()])?;
//!
//! session.submit(Request::write(4096, b"remote memory".to_vec(), "write")).unwrap();
//! session.submit(Request::read(4096, vec![0; 6], "read")).unwrap();
//! let mut completed = Vec::new();
//! while completed.len() < 2 {
//!     poller.progress(Nanos(0));
//!     completed.extend(receiver.try_iter());
//! }
//! assert!(completed.iter().all(|completion| completion.result.is_ok()));
//! assert_eq!(completed.pop().unwrap().buffer.into_owned().unwrap(), b"remote");
//! # Ok::<(), farcall_verbs::Error>(())
//! ```

mod buffer_pool;
mod combining_queue;
mod config;
mod grants;
mod merging;
mod poller;
mod post_scheduler;
mod request;
mod session;
mod session_qp;
mod sync;
mod target;
mod window;

pub use config::Config;
pub use merging::{Combining, Counts, Direction};
pub use poller::{PollCounts, Poller, PollerConfig};
pub use request::{
    Attached, Buffer, Handler, Refusal, Request, SessionEnd, Slice, SubmitError, TransferCompletion,
    TransferFailure,
};
pub use session::Session;
pub use target::Target;
pub use window::{Admission, Window};
