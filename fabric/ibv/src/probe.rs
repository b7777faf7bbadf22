//! Capabilities that the device attributes do not contain: the supported transports and the maximum inline data. They
//! are determined by trial.

use std::sync::{Arc, Mutex, PoisonError};

use farcall_verbs::{CqInitAttr, QpCap, QpInitAttr, QpType, RawQp, Result};

use crate::cq::Cq;
use crate::open_device::OpenDevice;
use crate::pd::Pd;
use crate::qp::Qp;

/// Maximum inline data to try; more brings no benefit on any device.
const INLINE_BYTES_WANTED: u32 = 1024;

#[derive(Clone, Copy)]
pub(crate) struct Probed {
    pub(crate) rc: bool,
    pub(crate) uc: bool,
    pub(crate) ud: bool,
    /// Maximum inline data that every supported transport accepts, in bytes.
    pub(crate) inline_max_bytes: u32,
}

/// Results by device name and GUID. A trial creates dozens of queue pairs, so it runs once per process.
static FOUND: Mutex<Vec<(String, u64, Probed)>> = Mutex::new(Vec::new());

pub(crate) fn of_device(open: &Arc<OpenDevice>, node_guid: u64) -> Result<Probed> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., probed)) = found.iter().find(|(name, guid, _)| *name == open.name && *guid == node_guid)
    {
        return Ok(*probed);
    }
    let probed = run(open)?;
    found.push((open.name.clone(), node_guid, probed));
    Ok(probed)
}

fn run(open: &Arc<OpenDevice>) -> Result<Probed> {
    let pd = Arc::new(Pd::new(open)?);
    let cq = Cq::new(open, &CqInitAttr { cqe: 1, channel: None })?;
    let try_make = |qp_type, inline_bytes| {
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline_bytes,
        };
        Qp::create(
            &pd,
            &QpInitAttr { send_cq: &cq, recv_cq: &cq, srq: None, cap, qp_type, sq_sig_all: false },
        )
        .is_ok_and(|qp| qp.cap().max_inline_data >= inline_bytes)
    };
    let has = [QpType::Rc, QpType::Uc, QpType::Ud].map(|qp_type| try_make(qp_type, 0));
    let inline_max_bytes = [QpType::Rc, QpType::Uc, QpType::Ud]
        .into_iter()
        .zip(has)
        .filter(|(_, is_there)| *is_there)
        .map(|(qp_type, _)| largest(INLINE_BYTES_WANTED, |bytes| try_make(qp_type, bytes)))
        .min();
    Ok(Probed { rc: has[0], uc: has[1], ud: has[2], inline_max_bytes: inline_max_bytes.unwrap_or(0) })
}

/// Returns the largest number up to `limit` that fits; 0 always fits.
fn largest(limit: u32, fits: impl Fn(u32) -> bool) -> u32 {
    if fits(limit) {
        return limit;
    }
    let (mut low, mut high) = (0, limit);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_fits_is_found() {
        for truth in [0, 1, 60, 1023, 1024, 5000] {
            assert_eq!(largest(1024, |bytes| bytes <= truth), truth.min(1024));
        }
    }
}
