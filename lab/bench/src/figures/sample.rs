//! Results of a trial.

use crate::experiments::subject;
use crate::measure::LatencySummary;
use crate::remio;

/// Results of one run; NaN if the run does not provide them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Figures that measurements of single verbs and limits have too.
    pub(super) common: subject::Sample,
    /// Latencies, if single operations were timed.
    pub(super) latency: Option<LatencySummary>,
    /// Calls only: mean time until all calls that were outstanding together had their results.
    pub(super) round_mean_us: f64,
    /// Verbs of both ends; for a GET by READs only, the number of READs.
    pub(super) verbs_per_call: f64,
    pub(super) server_cpu_us_per_call: f64,
    pub(super) client_cpu_us_per_call: f64,
    /// Share of empty mailboxes of a responder at the time of a reply.
    pub(super) empty_share: f64,
    /// Results of one-sided I/O.
    pub(super) remio: Option<remio::Sample>,
    /// Median of writing operations, if `common` contains those of reading ones.
    pub(super) writes_p50_us: f64,
    /// Memory of the server per client.
    pub(super) memory_mib_per_client: f64,
}

impl Sample {
    pub(super) fn of(common: subject::Sample) -> Self {
        let none = f64::NAN;
        Self {
            common,
            latency: None,
            round_mean_us: none,
            verbs_per_call: none,
            server_cpu_us_per_call: none,
            client_cpu_us_per_call: none,
            empty_share: none,
            remio: None,
            writes_p50_us: none,
            memory_mib_per_client: none,
        }
    }

    /// Creates a sample that is a rate only.
    pub(super) fn of_rate(per_second: f64) -> Self {
        Self::of(subject::Sample { per_second, ..subject::Sample::NONE })
    }

    pub(super) fn per_second(&self) -> f64 {
        self.common.per_second
    }

    /// Returns millions of operations a second.
    pub(super) fn mops(&self) -> f64 {
        self.common.per_second / 1e6
    }

    /// Returns thousands of operations a second.
    pub(super) fn kops(&self) -> f64 {
        self.common.per_second / 1e3
    }

    /// Returns the duration of a single operation in seconds.
    pub(super) fn seconds(&self) -> f64 {
        1.0 / self.common.per_second
    }

    /// Returns the processor time of the server per operation, in microseconds.
    pub(super) fn server_us_per_op(&self) -> f64 {
        self.common.cores.server * 1e6 / self.common.per_second
    }

    pub(super) fn server_cores(&self) -> f64 {
        self.common.cores.server
    }

    pub(super) fn p99_us(&self) -> f64 {
        self.common.p99_us
    }

    pub(super) fn mean_us(&self) -> f64 {
        self.common.mean_us
    }

    pub(super) fn p50_us(&self) -> f64 {
        self.common.p50_us
    }

    pub(super) fn gb_per_second(&self) -> f64 {
        self.common.bytes_per_second / 1e9
    }

    pub(super) fn verbs_per_call(&self) -> f64 {
        self.verbs_per_call
    }

    /// Returns a result of one-sided I/O.
    pub(super) fn remio(&self, y: fn(&remio::Sample) -> f64) -> f64 {
        self.remio.as_ref().map_or(f64::NAN, y)
    }

    pub(super) fn mb_per_second(&self) -> f64 {
        self.common.bytes_per_second / 1e6
    }
}
