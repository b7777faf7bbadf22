//! Where rendezvous sockets stand: in a directory that nobody but its user can fill, or in one that several share.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use farcall_shm::trusted_variable;
use farcall_verbs::{Error, Result};
use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process;

use super::trust::configured_group;

/// Names a directory that is shared: by containers, or by the users of a group.
const DIR_VARIABLE: &str = "FARCALL_SOCKET_DIR";

/// The directory that is shared, if one is named.
pub fn socket_directory() -> Option<PathBuf> {
    trusted_variable(DIR_VARIABLE).map(PathBuf::from)
}

/// The directory in which this process and its peers find each other: the shared one, or else one of the user's own,
/// which does not depend on the environment.
///
/// # Errors
/// If there is no directory that this user alone can change.
pub fn rendezvous_directory() -> Result<PathBuf> {
    static OWN: OnceLock<PathBuf> = OnceLock::new();
    if let Some(shared) = socket_directory() {
        return Ok(shared);
    }
    if let Some(own) = OWN.get() {
        return Ok(own.clone());
    }
    let user = process::geteuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own = first_of(&candidates(Path::new("/"), user, home_of(&users, user)), user)?;
    Ok(OWN.get_or_init(|| own).clone())
}

/// Where a directory of a user's own may be, in the order of preference.
fn candidates(root: &Path, user: u32, home: Option<PathBuf>) -> Vec<PathBuf> {
    // Not /run/user, which comes with the first login and goes with the last: a service would lose its clients.
    let mut candidates = vec![root.join(format!("tmp/farcall-{user}"))];
    if let Some(refuge) = home.map(|home| home.join(".farcall")) {
        // Once the other could not be used it stays the place, so that those who come later find those who are there.
        let at = if refuge.exists() { 0 } else { 1 };
        candidates.insert(at, refuge);
    }
    candidates
}

fn first_of(candidates: &[PathBuf], user: u32) -> Result<PathBuf> {
    let mut refused = String::new();
    for path in candidates {
        match make_own(path, user) {
            Ok(()) => return Ok(path.clone()),
            Err(why) => refused += &format!("{}: {why}; ", path.display()),
        }
    }
    Err(Error::InvalidState {
        operation: "find a place for rendezvous sockets",
        object: "directories of this user's own".into(),
        state: refused.trim_end_matches("; ").into(),
        remedy: "name a directory that only this user may change in FARCALL_SOCKET_DIR",
    })
}

/// Makes a directory that this user alone may change, or finds it as such.
fn make_own(path: &Path, user: u32) -> Result<(), String> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err("no path".into()) };
    let parent = open_directory(fs::CWD, parent).map_err(|e| e.to_string())?;
    let stat = fs::fstat(&parent).map_err(|e| e.to_string())?;
    let is_sticky = Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX);
    if !is_sticky && (stat.st_uid != user || is_open_to_others(&stat, Mode::WGRP | Mode::WOTH)) {
        return Err("others may rename what is in the directory above".into());
    }
    match fs::mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.to_string()),
    }
    let directory = open_directory(&parent, Path::new(name)).map_err(|e| e.to_string())?;
    let stat = fs::fstat(&directory).map_err(|e| e.to_string())?;
    if stat.st_uid != user {
        return Err(format!("it belongs to user {}", stat.st_uid));
    }
    if is_open_to_others(&stat, Mode::RWXG | Mode::RWXO) {
        fs::fchmod(&directory, Mode::RWXU).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn open_directory(at: impl std::os::fd::AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(at, path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn is_open_to_others(stat: &Stat, how: Mode) -> bool {
    Mode::from_raw_mode(stat.st_mode).intersects(how)
}

/// The home directory of a user in the text of `/etc/passwd`.
fn home_of(users: &str, user: u32) -> Option<PathBuf> {
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_it = fields.get(2)?.parse() == Ok(user);
        is_it.then(|| fields.get(5).filter(|home| home.starts_with('/')).map(PathBuf::from))?
    })
}

/// Lets members of the configured group at a socket of ours in the shared directory, and nobody else but its owner.
///
/// # Errors
/// If it is not our socket, the owner is no member of the group, or the name of the group cannot be understood.
pub fn admit_group(path: &Path) -> Result<()> {
    const OP: &str = "admit a group to a socket path";
    let fail = |e| Error::os(OP, format!("{} (are you a member of FARCALL_GROUP?)", path.display()), e);
    // Not by its path: in a directory that others may change something else may stand there by now.
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

    /// A root directory of its own, with `tmp` and a home, removed when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("farcall-place-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&root);
            for directory in ["tmp", "home"] {
                std::fs::create_dir_all(root.join(directory)).unwrap();
            }
            std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777)).unwrap();
            Self(root)
        }

        fn place(&self) -> Result<PathBuf> {
            let user = process::geteuid().as_raw();
            first_of(&candidates(&self.0, user, Some(self.0.join("home"))), user)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name.replace("UID", &process::geteuid().as_raw().to_string()))
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_place_is_the_users_own_whatever_the_environment_says() {
        let root = Root::new("own");
        assert_eq!(root.place().unwrap(), root.path("tmp/farcall-UID"));
        let made = std::fs::metadata(root.path("tmp/farcall-UID")).unwrap();
        assert_eq!(made.mode() & 0o777, 0o700);
        // What an earlier version or a hand left open is closed.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(root.path("tmp/farcall-UID"), open).unwrap();
        assert_eq!(root.place().unwrap(), root.path("tmp/farcall-UID"));
        let made = std::fs::metadata(root.path("tmp/farcall-UID")).unwrap();
        assert_eq!(made.mode() & 0o777, 0o700);
    }

    #[test]
    fn a_place_that_is_squatted_is_left_for_one_that_stays() {
        let root = Root::new("squatted");
        symlink(root.path("home"), root.path("tmp/farcall-UID")).unwrap();
        assert_eq!(root.place().unwrap(), root.path("home/.farcall"));
        // Those who come later find those who are there.
        std::fs::remove_file(root.path("tmp/farcall-UID")).unwrap();
        assert_eq!(root.place().unwrap(), root.path("home/.farcall"));
    }

    #[test]
    fn without_a_place_the_error_names_the_remedy() {
        let root = Root::new("none");
        for (name, mode) in [("tmp", 0o777), ("home", 0o775)] {
            std::fs::set_permissions(root.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let error = root.place().unwrap_err().to_string();
        assert!(error.contains("FARCALL_SOCKET_DIR") && error.contains("home/.farcall"), "{error}");
    }

    #[test]
    fn homes_are_found_by_number() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:1000::/srv/alice:\nnobody:x:7:7:::\n";
        assert_eq!(home_of(users, 1000), Some(PathBuf::from("/srv/alice")));
        assert_eq!(home_of(users, 0), Some(PathBuf::from("/root")));
        assert_eq!(home_of(users, 7).or(home_of(users, 8)), None);
    }

    #[test]
    fn what_stands_at_the_path_of_a_socket_is_not_given_away() {
        let root = Root::new("given");
        let (secret, socket) = (root.path("home/secret"), root.path("tmp/socket"));
        std::fs::write(&secret, "").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&secret, &socket).unwrap();
        assert!(admit_group(&socket).is_err());
        assert_eq!(std::fs::metadata(&secret).unwrap().mode() & 0o777, 0o640);
    }
}
