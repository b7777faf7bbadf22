//! Byte streams and gRPC: each measurement starts a server of its own.

use super::sample::Sample;
use crate::experiments::subject;
use crate::experiments::{ExperimentEnv, ExperimentError};
use crate::grpc::{self, ClientPoolTask, Preset, YcsbTask};
use crate::measure::LatencyRecorder;
use crate::peer::BothEnds;
use crate::streams::{self, Load, Medium, WaitMode};
use farcall::select::SelectedNic;
use std::fmt;

/// A measured stream or gRPC load.
#[derive(Debug, Clone, Copy)]
pub(super) enum Channel {
    /// A server of many streams with a given wait strategy.
    Waits(WaitMode, Load),
    /// Writes of the given number of bytes in one direction.
    Writes(Medium, usize),
    /// gRPC calls of many clients.
    ClientPool(ClientPoolTask),
    /// A YCSB workload over gRPC.
    Ycsb(YcsbTask),
    /// Ratio of the rate of a workload to that under tonic over TCP; both are measured.
    OverTcp(YcsbTask),
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waits(mode, load) => write!(f, "streams, {mode}, {} clients", load.clients),
            Self::Writes(medium, len_bytes) => write!(f, "{medium}, writes of {len_bytes} B"),
            Self::ClientPool(task) => task.fmt(f),
            Self::Ycsb(task) => task.fmt(f),
            Self::OverTcp(task) => write!(f, "{task}, and over TCP"),
        }
    }
}

/// Returns rates, latencies and cores of a server and its clients.
fn served(latencies: &LatencyRecorder, per_second: f64, cores: BothEnds) -> Sample {
    // In a short run on a busy machine there may be no reply: the rate is 0 and there are no latencies.
    let latency = (latencies.count() > 0).then(|| latencies.summary());
    let times = latency.as_ref().map_or(subject::Sample::NONE, |it| subject::Sample::of_latency(it, 1.0));
    Sample { latency, ..Sample::of(subject::Sample { per_second, cores, ..times }) }
}

impl Channel {
    pub(super) fn measure(
        &self,
        chosen: &SelectedNic,
        env: &ExperimentEnv,
        repetition: u32,
    ) -> Result<Sample, ExperimentError> {
        let plan = env.pair_plan();
        let seed = env.seed.wrapping_add(repetition.into());
        Ok(match *self {
            Self::Waits(mode, load) => {
                let it = streams::serve(mode, load, chosen, &plan)?;
                served(&it.latencies, it.per_second, it.cores)
            }
            Self::Writes(medium, len_bytes) => {
                let it = streams::one_way(medium, len_bytes, chosen, &plan)?;
                Sample::of(subject::Sample {
                    per_second: it.writes_per_second,
                    bytes_per_second: it.writes_per_second * len_bytes as f64,
                    ..subject::Sample::NONE
                })
            }
            Self::ClientPool(task) => {
                let it = grpc::client_pool(task, chosen, &plan)?;
                let mut sample = served(&it.latencies, it.per_second, it.cores);
                sample.common.bytes_per_second = it.per_second * task.request_bytes as f64;
                sample.memory_mib_per_client = it.memory_bytes / f64::from(1 << 20);
                sample
            }
            Self::Ycsb(task) => {
                let it = grpc::ycsb(task, chosen, &plan, seed)?;
                let mut sample = served(&it.reads, it.per_second, it.cores);
                if it.writes.count() > 0 {
                    sample.writes_p50_us = it.writes.summary().p50_ns as f64 / 1e3;
                }
                sample
            }
            Self::OverTcp(task) => {
                let of = |preset| grpc::ycsb(YcsbTask { preset, ..task }, chosen, &plan, seed);
                let (tcp, ours) = (of(Preset::Tcp)?, of(task.preset)?);
                let per_second = ours.per_second / tcp.per_second;
                Sample::of_rate(per_second)
            }
        })
    }
}
