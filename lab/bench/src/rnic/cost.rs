//! Processor time of both ends during a measurement.

use crate::measure::CpuMeter;
use crate::peer::{Peer, PeerError};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Processor time of both ends during a complete measurement, in cores: 1.0 is one core fully used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct BothEnds {
    /// Cores used by the measuring process.
    pub client: f64,
    /// Cores used by its peer.
    pub server: f64,
}

pub(super) struct Meter<'a> {
    client: CpuMeter,
    server: &'a Peer,
    /// Start of the measurement, and the processor time that the peer had used by then.
    server_start: (Instant, Duration),
}

impl<'a> Meter<'a> {
    pub(super) fn start(server: &'a Peer) -> Result<Self, PeerError> {
        let server_start = (Instant::now(), server.cpu_time()?);
        Ok(Self { client: CpuMeter::start(std::process::id())?, server, server_start })
    }

    pub(super) fn stop(self) -> Result<BothEnds, PeerError> {
        let (start, used_before) = self.server_start;
        let client = self.client.core_share()?;
        let (wall, used) = (start.elapsed(), self.server.cpu_time()?.saturating_sub(used_before));
        Ok(BothEnds { client, server: used.div_duration_f64(wall.max(Duration::from_nanos(1))) })
    }
}
