//! The limits of this machine: performance of two processes on two cores without any library between them.
//!
//! Every figure with two ends is measured between two *processes*, each pinned to a core of its own. The peer is this
//! program, started again (see [`crate::peer`]).

mod events;
mod memory;
mod shared_line;
mod sockets;
mod syscall;
mod task;

pub use task::{Answer, PAYLOAD_LEN_BYTES, Waiting};

use crate::measure::RoundTrips;
use crate::peer::{PairPlan, PeerError, PeerPlace, PeerTask};

pub use memory::COPY_LEN_BYTES;

/// A limit to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// A cache line written by each side in turn, polled by the other.
    SharedMemory,
    /// TCP over loopback, both ends polling non-blocking sockets.
    TcpSpin,
    /// TCP over loopback, both ends sleeping in `epoll_wait`.
    TcpEpoll,
    /// A Unix stream socket, both ends sleeping in `epoll_wait`.
    UnixEpoll,
    /// A pair of eventfds, both ends blocking in `read`.
    Eventfd,
    /// The cheapest system call.
    SystemCall,
    /// Copying 1 MiB within one process.
    CopyPrivate,
    /// Copying 1 MiB from private memory into a shared mapping.
    CopyShared,
}

names! {
    Baseline {
        SharedMemory => "bare shared-memory ping-pong, 64 B", TcpSpin => "bare TCP echo, spinning, 64 B",
        TcpEpoll => "bare TCP echo, epoll, 64 B", UnixEpoll => "bare Unix-socket echo, epoll, 64 B",
        Eventfd => "bare eventfd pair", SystemCall => "bare system call (getppid)",
        CopyPrivate => "bare copy of 1 MiB, private memory",
        CopyShared => "bare copy of 1 MiB into shared memory",
    }
}

/// A short description for a table.
/// A measured limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BaselineResult {
    /// Round trips, calls or copies.
    pub round_trips: RoundTrips,
    /// Bytes copied a second, for the copies.
    pub bytes_per_second: Option<f64>,
}

/// Measures one limit. The calling thread is pinned to the plan's client core and remains pinned.
///
/// # Errors
/// Returns an error if the peer cannot be started or crashes, or if the system refuses sockets, memory or pinning.
pub fn measure(baseline: Baseline, plan: &PairPlan) -> Result<BaselineResult, PeerError> {
    crate::measure::pin_thread(plan.client_core)?;
    let (round_trips, copied) = match baseline {
        Baseline::SharedMemory => (shared_line::round_trips(plan)?, None),
        Baseline::TcpSpin => (sockets::tcp_round_trips(plan, Waiting::Spin)?, None),
        Baseline::TcpEpoll => (sockets::tcp_round_trips(plan, Waiting::Epoll)?, None),
        Baseline::UnixEpoll => (sockets::unix_round_trips(plan)?, None),
        Baseline::Eventfd => (events::round_trips(plan)?, None),
        Baseline::SystemCall => (syscall::calls(plan)?, None),
        Baseline::CopyPrivate => (memory::copies_private(plan)?, Some(COPY_LEN_BYTES)),
        Baseline::CopyShared => (memory::copies_shared(plan)?, Some(COPY_LEN_BYTES)),
    };
    let bytes_per_second = copied.map(|len_bytes| round_trips.per_second * len_bytes as f64);
    Ok(BaselineResult { round_trips, bytes_per_second })
}

impl PeerTask for Answer {
    const KIND: &'static str = "baseline";

    fn run(self, mut place: PeerPlace) -> Result<(), PeerError> {
        match self {
            Self::SharedLine => shared_line::answer(&place.next_fd()?, || place.ready()),
            Self::Echo(waiting) => sockets::echo(&place.next_fd()?, waiting, || place.ready()),
            Self::Eventfd => events::answer(&place.next_fd()?, &place.next_fd()?, || place.ready()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_measured_between_processes() {
        let plan = crate::peer::tests::plan(10);
        for baseline in Baseline::ALL {
            let result = measure(baseline, &plan).unwrap_or_else(|error| panic!("{baseline}: {error}"));
            assert!(result.round_trips.count >= 1, "{baseline}");
            let copies = matches!(baseline, Baseline::CopyPrivate | Baseline::CopyShared);
            assert_eq!(result.bytes_per_second.is_some(), copies, "{baseline}");
        }
    }
}
