//! Byte streams between two processes: `farcall-stream`, and those of the system for comparison.
//!
//! Each end has one thread, which polls. Round trips transfer [`MESSAGE_LEN_BYTES`] bytes in each direction. In one
//! direction, writes follow each other as fast as the stream accepts them. All bytes of round trips are checked. Of
//! one-way writes, all bytes are checked in a run before the timed one; in the timed run, the first and last eight
//! bytes of each write are checked.

mod echo;
mod medium;
mod one_way;
mod ping_pong;
mod record;
mod waits;

pub use medium::{Medium, path};
pub use one_way::OneWay;
pub use ping_pong::MESSAGE_LEN_BYTES;
pub use record::WRITE_LENS_BYTES;
pub use waits::{EchoServer, Load, Served, WaitMode, serve};

use crate::measure::{RoundTrips, pin_thread};
use crate::peer::{self, PairPlan, PeerError, PeerPlace, PeerTask};
use farcall::select::SelectedNic;
use farcall_verbs::with_sources;
use medium::{Bytes, Opened, ServingEnd};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// Timeout of waiting for the other end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Work of the serving end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Job {
    /// Replies to each message.
    Answer,
    /// Receives writes of this length.
    Take { len_bytes: usize },
}

/// Task of the serving end.
#[derive(Debug, Serialize, Deserialize)]
pub struct Server {
    end: ServingEnd,
    job: Job,
}

impl PeerTask for Server {
    const KIND: &'static str = "byte-stream";

    fn run(self, mut place: PeerPlace) -> Result<(), PeerError> {
        self.job.check()?;
        let mut stream = self.end.open(&mut place)?;
        let done = self.job.serve(&mut *stream);
        // The result is sent before the other end finds the stream closed. The error is ignored: the other end may
        // have exited.
        let told = done.as_ref().map_err(|error| with_sources(error));
        let _ = peer::send(place.control(), &told);
        done
    }
}

impl Job {
    /// Rejects lengths that no measuring end requests: a request from another host is untrusted.
    fn check(self) -> Result<(), PeerError> {
        match self {
            Self::Take { len_bytes } if !WRITE_LENS_BYTES.contains(&len_bytes) => {
                Err(PeerError::Part(format!("writes are of {WRITE_LENS_BYTES:?} bytes, not of {len_bytes}")))
            }
            Self::Answer | Self::Take { .. } => Ok(()),
        }
    }

    fn serve(self, stream: &mut dyn Bytes) -> Result<(), PeerError> {
        match self {
            Self::Answer => ping_pong::answer(stream),
            Self::Take { len_bytes } => one_way::take(stream, len_bytes),
        }
    }
}

/// Measures round trips over a new stream.
///
/// # Errors
/// Returns an error if the other end cannot be started, if the stream fails, or if a byte is wrong.
pub fn round_trips(medium: Medium, chosen: &SelectedNic, plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    with_peer(medium, Job::Answer, chosen, plan, |opened| {
        ping_pong::round_trips(&mut *opened.stream, plan.warm_up, plan.duration)
    })
}

/// Measures writes of `len_bytes` over a new stream.
///
/// # Errors
/// Those of [`round_trips`].
pub fn one_way(
    medium: Medium,
    len_bytes: usize,
    chosen: &SelectedNic,
    plan: &PairPlan,
) -> Result<OneWay, PeerError> {
    with_peer(medium, Job::Take { len_bytes }, chosen, plan, |opened| {
        one_way::measure(&mut *opened.stream, len_bytes, plan, &opened.peer)
    })
}

/// Measures with the other end in a process of its own. Pins the calling thread.
fn with_peer<T>(
    medium: Medium,
    job: Job,
    chosen: &SelectedNic,
    plan: &PairPlan,
    measure: impl FnOnce(&mut Opened) -> Result<T, PeerError>,
) -> Result<T, PeerError> {
    pin_thread(plan.client_core)?;
    let mut opened = medium.open(job, chosen, plan)?;
    measure(&mut opened).map_err(|error| match error {
        // The other end closed the stream and has reported the reason.
        PeerError::System { ref source, .. } if is_end(source.kind()) => {
            match peer::receive::<Result<(), String>>(opened.peer.control()) {
                Ok(Err(why)) => PeerError::Part(why),
                _ => error,
            }
        }
        error => error,
    })
}

fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof, WriteZero};
    matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof | WriteZero)
}

#[cfg(test)]
mod tests;
