//! Where the library is, and under which name programs find it.

use crate::failure::Failure;
use std::env;
use std::path::PathBuf;

/// The name that programs link.
pub const SYSTEM_NAME: &str = "libibverbs.so.1";
/// The name that cargo builds.
const BUILT_NAME: &str = "libfarcall_ibverbs_abi.so";

/// The library beside this program, where cargo builds both, or in `../lib`, where packages put it.
///
/// # Errors
/// When it is in neither place.
pub fn find() -> Result<PathBuf, Failure> {
    let program =
        env::current_exe().map_err(|error| Failure::because("cannot find out where farcall is", &error))?;
    let beside = program.with_file_name(BUILT_NAME);
    let packaged = program.parent().map(|folder| folder.join("../lib").join(BUILT_NAME));
    let places: Vec<PathBuf> = [Some(beside), packaged].into_iter().flatten().collect();
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Failure::new("the library for RDMA programs is not there").at(looked.join(", ")).remedy(
            "build it beside farcall: cargo build --release --workspace (cargo install builds programs only)",
        )
    })
}
