//! Workloads, experiments and reports of Farcall.
//!
//! - [`workload`]: the YCSB core workloads with values that a reader can verify;
//! - [`experiments`]: one file per experiment;
//! - `figures` (feature `verbs`): the papers' figures, with the published values next to those measured here;
//! - `files` (feature `verbs`): files on `farcall mount`, and on the file systems that it is compared with;
//! - `grpc` (feature `verbs`): gRPC between two processes, with HTTP/2 and without;
//! - [`load`]: the load generator, over any [`load::Target`];
//! - [`measure`]: latencies, medians over repetitions, CPU, memory and system calls of processes;
//! - `paged` (feature `verbs`): databases and machine learning with a part of their memory resident;
//! - [`peer`]: the other process of a measurement, on this host or another;
//! - [`baseline`]: the limits of the machine without Farcall;
//! - [`rivals`]: other designs of stores to compare with, [`foreign_store`]: stores that are separate programs;
//! - `remio` (feature `verbs`): one-sided I/O to memory that another process donates;
//! - `rnic` (feature `verbs`): performance of verbs between two processes;
//! - `streams` (feature `verbs`): byte streams between two processes;
//! - `training` (feature `verbs`): TensorFlow with a parameter server, over TCP and under `farcall run`;
//! - `ucx` (feature `verbs`): UCX over shared memory, the reference for comparison;
//! - [`report`]: one table model, as text or JSON, always with its conditions.

#[macro_use]
mod names;
pub mod baseline;
pub mod experiments;
#[cfg(feature = "verbs")]
pub mod figures;
#[cfg(feature = "verbs")]
mod files;
pub mod foreign_store;
#[cfg(feature = "verbs")]
pub mod grpc;
mod html;
#[cfg(feature = "verbs")]
mod libfabric;
pub mod load;
pub mod measure;
#[cfg(feature = "verbs")]
mod nodes;
#[cfg(feature = "verbs")]
pub mod paged;
pub mod peer;
#[cfg(feature = "verbs")]
mod program_pair;
#[cfg(feature = "verbs")]
mod python;
#[cfg(feature = "verbs")]
pub mod remio;
pub mod report;
pub mod rivals;
#[cfg(feature = "verbs")]
pub mod rnic;
#[cfg(feature = "verbs")]
pub mod streams;
mod tasks;
#[cfg(feature = "verbs")]
mod training;
#[cfg(feature = "verbs")]
pub mod ucx;
pub mod workload;

pub use tasks::run_peer;
