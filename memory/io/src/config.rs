//! Configuration of a session.

use farcall_link::{QpSizes, SGES_MAX, TOGETHER_MAX};
use farcall_verbs::{Access, Error};

use crate::merging::{Combining, Limits, WorkLimits};

/// Sizes and thresholds of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of queue pairs to the peer. The paper measured the best results with four.
    pub connections: usize,
    /// How requests are combined into work requests and doorbells.
    pub combining: Combining,
    /// Maximum number of work requests posted with one doorbell (MAX_CHAINING_SIZE); at most 16.
    pub chain: usize,
    /// Number of waiting requests among which adjacent ones are searched for.
    pub look_ahead: usize,
    /// Maximum length of a merged work request in bytes.
    pub work_max_bytes: usize,
    /// Size in bytes of the registered pool through which requests are copied (preMR).
    pub pool_bytes: usize,
    /// Length in bytes from which the memory of a request is registered instead (dynMR). The paper measured 928 KB in
    /// user space.
    pub register_from_bytes: usize,
    /// Maximum number of outstanding requests.
    pub outstanding: usize,
    /// Depth of the send queue of each queue pair. One slot is reserved for draining.
    pub send_depth: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connections: 4,
            combining: Combining::MergeAndChain,
            chain: TOGETHER_MAX,
            look_ahead: 64,
            work_max_bytes: 1 << 20,
            pool_bytes: 8 << 20,
            register_from_bytes: 928 << 10,
            outstanding: 4096,
            send_depth: 128,
        }
    }
}

impl Config {
    /// Checks that every number is in its range.
    ///
    /// # Errors
    /// If a number is out of range; the error contains its name and its range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let ranges = [
            ("connections", self.connections, 1, 64),
            ("chain", self.chain, 1, TOGETHER_MAX),
            ("look_ahead", self.look_ahead, 1, 4096),
            ("work_max_bytes", self.work_max_bytes, 1, 1 << 30),
            // Shorter requests are copied through the pool, so each of them must fit in the empty pool.
            ("register_from_bytes", self.register_from_bytes, 1, self.pool_bytes / 64 * 64),
            ("outstanding", self.outstanding, 1, 1 << 20),
            ("send_depth", self.send_depth as usize, 2, 1 << 16),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(Error::invalid(
                    "open session",
                    format!("{name} is {value}: from {min} to {max}"),
                ));
            }
        }
        Ok(())
    }

    /// Returns the sizes of a queue pair, on a device with `elements` scatter/gather elements per work request.
    pub(crate) fn pair(&self, elements: u32) -> QpSizes {
        QpSizes {
            send_depth: self.send_depth,
            recv_depth: 1,
            sges_max: elements.clamp(1, SGES_MAX as u32),
            signal_every: 1,
            inline_max_bytes: 0,
            access: Access::LOCAL_WRITE,
        }
    }

    /// Returns the limits of the merge queue, on a device with `elements` scatter/gather elements per work request.
    pub(crate) fn limits(&self, elements: u32) -> Limits {
        let elements = (elements as usize).clamp(1, SGES_MAX);
        let bytes = self.work_max_bytes as u64;
        let work = WorkLimits { elements, bytes, pool_bytes: bytes };
        Limits { combining: self.combining, chain: self.chain, look_ahead: self.look_ahead, work }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        Config::default().check().unwrap();
        let zero = Config { connections: 0, ..Config::default() };
        assert!(zero.check().unwrap_err().to_string().contains("connections is 0: from 1 to 64"));
        // Requests of 65,537 to 99,999 bytes would be copied through a pool that never has room for them.
        let small = Config { pool_bytes: 65_536, register_from_bytes: 100_000, ..Config::default() };
        assert!(small.check().unwrap_err().to_string().contains("register_from_bytes"));
    }
}
