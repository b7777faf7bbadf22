//! Where the libraries are, and under which names programs find them.

use crate::failure::Failure;
use std::env;
use std::path::{Path, PathBuf};

/// The library of verbs, as programs link it.
pub const VERBS: &str = "libibverbs.so.1";
/// What cargo builds, and what programs link.
const NAMES: [(&str, &str); 2] =
    [("libfarcall_ibverbs_abi.so", VERBS), ("libfarcall_rdmacm_abi.so", "librdmacm.so.1")];

/// A library that takes the place of one of the system's.
pub struct Library {
    /// Where it is.
    pub file: PathBuf,
    /// The name that programs link.
    pub system_name: &'static str,
}

/// The libraries beside this program, where cargo builds them, or in `../lib`, where packages put them.
///
/// # Errors
/// When one is in neither place.
pub fn find() -> Result<Vec<Library>, Failure> {
    let program =
        env::current_exe().map_err(|error| Failure::because("cannot find out where farcall is", &error))?;
    NAMES
        .iter()
        .map(|(built_name, system_name)| Ok(Library { file: find_one(&program, built_name)?, system_name }))
        .collect()
}

fn find_one(program: &Path, built_name: &str) -> Result<PathBuf, Failure> {
    let beside = program.with_file_name(built_name);
    let packaged = program.parent().map(|folder| folder.join("../lib").join(built_name));
    let places: Vec<PathBuf> = [Some(beside), packaged].into_iter().flatten().collect();
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Failure::new("a library for RDMA programs is not there").at(looked.join(", ")).remedy(
            "build it beside farcall: cargo build --release --workspace (cargo install builds programs only)",
        )
    })
}
