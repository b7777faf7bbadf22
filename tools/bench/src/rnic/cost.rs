//! What a measurement costs both ends.

use crate::measure::{CpuMeter, ProcessError};
use serde::{Deserialize, Serialize};

/// Processor time of both ends over the whole of a measurement, in cores: 1.0 is a core kept busy.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct BothEnds {
    /// Of the measuring process.
    pub client: f64,
    /// Of its peer.
    pub server: f64,
}

pub(super) struct Meter {
    client: CpuMeter,
    server: CpuMeter,
}

impl Meter {
    pub(super) fn start(peer_pid: u32) -> Result<Self, ProcessError> {
        Ok(Self { client: CpuMeter::start(std::process::id())?, server: CpuMeter::start(peer_pid)? })
    }

    pub(super) fn stop(self) -> Result<BothEnds, ProcessError> {
        Ok(BothEnds { client: self.client.core_share()?, server: self.server.core_share()? })
    }
}
