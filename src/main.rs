//! The `farcall` binary.

use std::process::ExitCode;

use farcall_bench::measure::CountingAllocator;

/// Counts heap operations while a benchmark requests it.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    farcall_cli::main()
}
