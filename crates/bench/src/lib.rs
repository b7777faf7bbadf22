//! Workloads, experiments and reports of Farcall.
//!
//! - [`workload`]: the YCSB core workloads with values a reader can verify;
//! - [`measure`]: latencies, medians over repetitions, CPU, memory and system calls of processes;
//! - [`baseline`]: the bare limits of the machine.

pub mod baseline;
pub mod measure;
pub mod workload;
