//! Processor time of both ends during a measurement.

use super::{Peer, PeerError};
use crate::measure::CpuMeter;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Processor time of both ends during a measurement, in cores: 1.0 is one core fully used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct BothEnds {
    /// Cores used by the measuring process.
    pub client: f64,
    /// Cores used by its peer.
    pub server: f64,
}

impl BothEnds {
    /// Cores of a measurement that does not report them.
    pub(crate) const NONE: Self = Self { client: f64::NAN, server: f64::NAN };
}

/// Measurement of [`BothEnds`] in progress.
pub(crate) struct Meter<'a> {
    client: CpuMeter,
    server: &'a Peer,
    /// Start of the measurement, and the processor time that the peer had used by then.
    server_start: (Instant, Duration),
}

impl<'a> Meter<'a> {
    pub(crate) fn start(server: &'a Peer) -> Result<Self, PeerError> {
        let server_start = (Instant::now(), server.cpu_time()?);
        Ok(Self { client: CpuMeter::start(std::process::id())?, server, server_start })
    }

    pub(crate) fn stop(self) -> Result<BothEnds, PeerError> {
        let (start, used_before) = self.server_start;
        let client = self.client.core_share()?;
        let (wall, used) = (start.elapsed(), self.server.cpu_time()?.saturating_sub(used_before));
        Ok(BothEnds { client, server: used.div_duration_f64(wall.max(Duration::from_nanos(1))) })
    }
}
