//! Programs under the preloaded library: their results are those of TCP, and their bytes go through shared memory.

mod calls;
mod confinement;
mod differ;
mod direct_calls;
mod grpc;
mod languages;
mod programs;
mod report;
mod support;
mod tonic;
mod traffic;
