//! Where the libraries are, and under which names programs find them.

use crate::failure::Failure;
use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The library of verbs, as programs link it.
pub const VERBS: &str = "libibverbs.so.1";
/// What cargo builds, and what programs link.
const NAMES: [(&str, &str); 2] =
    [("libfarcall_ibverbs.so", VERBS), ("libfarcall_rdmacm.so", "librdmacm.so.1")];

/// A library that takes the place of one of the system's.
pub struct Library {
    /// Where it is.
    pub file: PathBuf,
    /// The name that programs link.
    pub system_name: &'static str,
}

/// Where an installation has them, beside the folder of the program: under the names that programs link, out of the way
/// of the programs of the system.
const INSTALLED: &str = "../lib/farcall";

/// The libraries beside this program, where cargo builds them, or in `../lib`, where packages put them, or as `farcall
/// verbs install` leaves them in `../lib/farcall`.
///
/// # Errors
/// When one is in none of the places.
pub fn find() -> Result<Vec<Library>, Failure> {
    NAMES
        .iter()
        .map(|(built_name, system_name)| {
            Ok(Library { file: find_one(built_name, system_name)?, system_name })
        })
        .collect()
}

/// The folder that has all libraries under the names that programs link, if there is one that the loader can be told.
pub fn common_folder(libraries: &[Library]) -> Option<&Path> {
    let folder = libraries.first()?.file.parent()?;
    let has_all = libraries.iter().all(|library| library.file == folder.join(library.system_name));
    (has_all && can_be_listed(folder)).then_some(folder)
}

/// A search path with a place in front of what the variable holds.
pub fn before(place: &Path, variable: &str) -> OsString {
    let mut path = OsString::from(place);
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    path
}

/// Whether the loader takes it in its lists, which it cuts at these characters (man ld.so) and has no way to quote
/// them.
pub fn can_be_listed(folder: &Path) -> bool {
    !folder.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b';' | b'\t' | b'\n'))
}

/// Where one is, by the name that cargo gives it or the one that it is installed under.
///
/// # Errors
/// As [`find`].
pub fn find_one(built_name: &str, system_name: &str) -> Result<PathBuf, Failure> {
    let program =
        env::current_exe().map_err(|error| Failure::because("cannot find out where farcall is", &error))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [
        folder.join(built_name),
        folder.join("../lib").join(built_name),
        folder.join(INSTALLED).join(system_name),
    ];
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Failure::new("a library for other programs is not there").at(looked.join(", ")).remedy(
            "cargo install builds programs only: in the repository, .github/actions/farcall-verbs/install.sh PREFIX and run \
             PREFIX/bin/farcall, or packaging/build.sh OUT and install what it makes",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_under_the_names_that_programs_link_need_no_other_folder() {
        let library = |file: &str, system_name: &'static str| Library { file: file.into(), system_name };
        let installed = [
            library("/opt/lib/libibverbs.so.1", VERBS),
            library("/opt/lib/librdmacm.so.1", "librdmacm.so.1"),
        ];
        assert_eq!(common_folder(&installed), Some(Path::new("/opt/lib")));
        let built =
            [library("/opt/lib/libibverbs.so.1", VERBS), library("/opt/lib/libfarcall.so", "librdmacm.so.1")];
        assert_eq!(common_folder(&built), None);
        for folder in ["/my opt/lib", "/a:b/lib"] {
            let file = |name| library(&format!("{folder}/{name}"), name);
            assert_eq!(
                common_folder(&[file(VERBS), file("librdmacm.so.1")]),
                None,
                "the loader would cut it"
            );
        }
    }
}
