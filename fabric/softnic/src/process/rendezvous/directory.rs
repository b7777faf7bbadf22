//! Directories of rendezvous sockets: one that only its user can change, or one that is shared.

use std::path::{Path, PathBuf};

use farcall_shm::trusted_variable;
use farcall_verbs::{Error, Result};
use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process;

use super::authorization::configured_group;

/// Environment variable with a directory that containers or the users of a group share.
const DIR_VARIABLE: &str = "FARCALL_SOCKET_DIR";

/// Returns the shared directory if one is configured.
pub fn socket_directory() -> Option<PathBuf> {
    trusted_variable(DIR_VARIABLE).map(PathBuf::from)
}

/// Returns the directory in which this process and its peers find each other: the shared one, otherwise one of the
/// user's own, which does not depend on the environment.
///
/// # Errors
/// Returns an error if there is no directory that only this user can change.
pub fn rendezvous_directory() -> Result<PathBuf> {
    if let Some(shared) = socket_directory() {
        return Ok(shared);
    }
    farcall_shm::private_runtime_dir().map_err(no_directory_error)
}

fn no_directory_error(refused: String) -> Error {
    Error::InvalidState {
        operation: "find a place for rendezvous sockets",
        object: "directories of this user's own".into(),
        state: refused,
        remedy: "name a directory that only this user may change in FARCALL_SOCKET_DIR",
    }
}

/// Grants members of the configured group, in addition to the owner, access to a socket of this process in the shared
/// directory.
///
/// # Errors
/// Returns an error if the file is not a socket of this user, if the owner is no member of the group, or if the group
/// name is invalid.
pub fn admit_group(path: &Path) -> Result<()> {
    const OP: &str = "admit a group to a socket path";
    let fail = |e| Error::os(OP, format!("{} (are you a member of FARCALL_GROUP?)", path.display()), e);
    // Not changed by its path: in a directory that other users may change, the path may refer to another file by now.
    let socket =
        fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).map_err(fail)?;
    let stat = fs::fstat(&socket).map_err(fail)?;
    if stat.st_uid != process::geteuid().as_raw() || FileType::from_raw_mode(stat.st_mode) != FileType::Socket
    {
        return Err(fail(Errno::PERM));
    }
    let change_mode = |mode| {
        use std::os::fd::AsRawFd;
        fs::chmod(format!("/proc/self/fd/{}", socket.as_raw_fd()), mode)
    };
    let mode = Mode::RUSR | Mode::WUSR;
    let group = if socket_directory().is_some() { configured_group()? } else { None };
    let Some(group) = group else { return change_mode(mode).map_err(fail) };
    fs::chownat(&socket, "", None, Some(fs::Gid::from_raw(group)), fs::AtFlags::EMPTY_PATH).map_err(fail)?;
    change_mode(mode | Mode::RGRP | Mode::WGRP).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn without_a_place_to_meet_the_error_names_the_remedy() {
        let error = no_directory_error("/tmp/farcall-1000: it belongs to user 7".into()).to_string();
        assert!(error.contains("FARCALL_SOCKET_DIR") && error.contains("user 7"), "{error}");
    }

    #[test]
    fn what_stands_at_the_path_of_a_socket_is_not_given_away() {
        let folder = std::env::temp_dir().join(format!("farcall-place-{}", process::getpid().as_raw_pid()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let (secret, socket) = (folder.join("secret"), folder.join("socket"));
        std::fs::write(&secret, "").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&secret, &socket).unwrap();
        assert!(admit_group(&socket).is_err());
        assert_eq!(std::fs::metadata(&secret).unwrap().mode() & 0o777, 0o640);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
