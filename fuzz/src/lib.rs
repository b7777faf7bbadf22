//! Fuzz targets: one function for each parser of bytes from a peer. It panics if its input reveals a defect.
//!
//! `cargo fuzz` runs them with libFuzzer; the tests of this package run the seeds, and random modifications of them,
//! with any toolchain.

pub mod bootstrap;
pub mod capture_part;
pub mod cm_message;
pub mod grpc_frame;
pub mod measurement_control;
pub mod membership_record;
pub mod memcached;
pub mod memory_control;
pub mod region_snapshot;
pub mod roce_packet;
pub mod roce_responder;
pub mod rpc_batch;
pub mod rpc_header;
pub mod rpc_profile;
pub mod softnic_frame;
pub mod stats_file;
pub mod store_read;
pub mod tree_log;
pub mod volume_notes;

#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
#[doc(hidden)]
pub use libfuzzer_sys;

/// Program of a target. Built by `cargo fuzz`, it is libFuzzer's; otherwise it runs the files in its arguments, which
/// reproduces a crash.
#[macro_export]
macro_rules! target {
    ($target:ident) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(|input: &[u8]| $crate::$target::run(input));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            for file in std::env::args_os().skip(1) {
                $crate::$target::run(&std::fs::read(file)?);
            }
            Ok(())
        }
    };
}
