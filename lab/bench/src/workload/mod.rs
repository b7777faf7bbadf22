//! The YCSB core workloads: record and kind of the next operation, and the result that a reader must find.
//!
//! Everything is seeded: equal seeds give equal sequences. Source of the mixes and distributions: Cooper et al.,
//! "Benchmarking Cloud Serving Systems with YCSB" (SoCC 2010); of the Zipfian generator: Gray et al., "Quickly
//! Generating Billion-Record Synthetic Databases" (SIGMOD 1994).

mod chooser;
mod mix;
mod record;
mod stream;
mod zipf;

pub use chooser::{Chooser, Distribution};
pub use mix::{OpKind, Workload};
pub use record::{Mismatch, RecordShape, VALUE_LEN_BYTES_MIN};
pub use stream::{Op, OpStream, StreamConfig};
pub use zipf::{ScrambledZipf, Zipf};
