//! Locations of the libraries, and the names under which programs find them.

use crate::failure::Failure;
use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The verbs library under the name that programs link.
pub const VERBS: &str = "libibverbs.so.1";
/// Names as built by cargo, and as linked by programs.
const NAMES: [(&str, &str); 2] =
    [("libfarcall_ibverbs.so", VERBS), ("libfarcall_rdmacm.so", "librdmacm.so.1")];

/// A library that replaces one of the system's.
pub struct Library {
    /// Path of the file.
    pub file: PathBuf,
    /// Name that programs link.
    pub system_name: &'static str,
}

/// Directory of the libraries in an installation, relative to that of the program: under the names that programs link,
/// but not visible to other programs of the system.
const INSTALLED: &str = "../lib/farcall";

/// Finds the libraries next to this program, where cargo builds them, in `../lib`, where packages install them, or in
/// `../lib/farcall`, where `farcall verbs install` copies them.
///
/// # Errors
/// If one is in none of these directories.
pub fn find() -> Result<Vec<Library>, Failure> {
    NAMES
        .iter()
        .map(|(built_name, system_name)| {
            Ok(Library { file: find_one(built_name, system_name)?, system_name })
        })
        .collect()
}

/// Returns the directory that has all libraries under the names that programs link, if there is one that can be passed
/// to the loader.
pub fn common_directory(libraries: &[Library]) -> Option<&Path> {
    let directory = libraries.first()?.file.parent()?;
    let has_all = libraries.iter().all(|library| library.file == directory.join(library.system_name));
    (has_all && can_be_listed(directory)).then_some(directory)
}

/// Returns a search path with `directory` before the value of the variable.
pub fn before(directory: &Path, variable: &str) -> OsString {
    let mut path = OsString::from(directory);
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    path
}

/// Returns whether a path can be part of the loader's lists, which are split at these characters (man ld.so) without a
/// way to quote them.
pub fn can_be_listed(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b';' | b'\t' | b'\n'))
}

/// Finds a library by the name that cargo gives it, or by the one under which it is installed.
///
/// # Errors
/// Like [`find`].
pub fn find_one(built_name: &str, system_name: &str) -> Result<PathBuf, Failure> {
    let program = env::current_exe()
        .map_err(|error| Failure::because("cannot find the directory of farcall", &error))?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    let candidates = [
        directory.join(built_name),
        directory.join("../lib").join(built_name),
        directory.join(INSTALLED).join(system_name),
    ];
    candidates.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let searched: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        Failure::new("a library for other programs is missing").at(searched.join(", ")).remedy(
            "cargo install does not build libraries: in the repository, run .github/actions/farcall-verbs/install.sh PREFIX and use \
             PREFIX/bin/farcall, or run packaging/build.sh OUT and install its packages",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_no_link_directory_for_libraries_with_system_names() {
        let library = |file: &str, system_name: &'static str| Library { file: file.into(), system_name };
        let installed = [
            library("/opt/lib/libibverbs.so.1", VERBS),
            library("/opt/lib/librdmacm.so.1", "librdmacm.so.1"),
        ];
        assert_eq!(common_directory(&installed), Some(Path::new("/opt/lib")));
        let built =
            [library("/opt/lib/libibverbs.so.1", VERBS), library("/opt/lib/libfarcall.so", "librdmacm.so.1")];
        assert_eq!(common_directory(&built), None);
        for directory in ["/my opt/lib", "/a:b/lib"] {
            let file = |name| library(&format!("{directory}/{name}"), name);
            assert_eq!(
                common_directory(&[file(VERBS), file("librdmacm.so.1")]),
                None,
                "the loader would cut it"
            );
        }
    }
}
