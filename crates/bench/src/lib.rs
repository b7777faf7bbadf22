//! Workloads, experiments and reports of Farcall.
//!
//! - [`workload`]: the YCSB core workloads with values a reader can verify;
//! - [`experiments`]: one file an experiment;
//! - [`load`]: the load generator, over any [`load::Target`];
//! - [`measure`]: latencies, medians over repetitions, CPU, memory and system calls of processes;
//! - [`baseline`]: the bare limits of the machine;
//! - [`rnic`]: what verbs can do between two processes;
//! - [`ucx`]: the yardstick, UCX over shared memory;
//! - [`report`]: one table model, as text or JSON, always with its conditions.

pub mod baseline;
pub mod experiments;
pub mod load;
pub mod measure;
pub mod report;
pub mod rnic;
pub mod ucx;
pub mod workload;
