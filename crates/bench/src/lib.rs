//! Workloads, experiments and reports of Farcall.
//!
//! - [`workload`]: the YCSB core workloads with values a reader can verify;
//! - [`measure`]: latencies, medians over repetitions, CPU, memory and system calls of processes.

pub mod measure;
pub mod workload;
