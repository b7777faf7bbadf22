//! A directory that only its user can write to, even if another user has created the usual path before.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{self, Access, AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process;

use crate::trusted_variable;

/// Returns the directory of this user in which processes find each other. It does not depend on the environment.
///
/// # Errors
/// Returns the reason for each candidate that cannot be used.
pub fn private_runtime_dir() -> Result<PathBuf, String> {
    static OWN: OnceLock<PathBuf> = OnceLock::new();
    if let Some(own) = OWN.get() {
        return Ok(own.clone());
    }
    let user = process::geteuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own = first_of(&lasting(Path::new("/"), user, home_directory(&users, user)), user)?;
    Ok(OWN.get_or_init(|| own).clone())
}

/// Returns a directory of this user for files that other processes need not find: in memory, if such a file system
/// exists.
///
/// # Errors
/// Returns the reason for each candidate that cannot be used.
pub fn private_memory_dir() -> Result<PathBuf, String> {
    let user = process::geteuid().as_raw();
    let session = trusted_variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    first_of(&in_memory(Path::new("/"), user, session), user)
        .or_else(|why| private_runtime_dir().map_err(|also| format!("{why}; {also}")))
}

/// Returns the candidates of [`private_runtime_dir`], best first.
fn lasting(root: &Path, user: u32, home: Option<PathBuf>) -> Vec<PathBuf> {
    // Not /run/user, which exists only while the user is logged in: a service would lose its clients.
    let mut candidates = vec![root.join(format!("tmp/farcall-{user}"))];
    if let Some(refuge) = home.map(|home| home.join(".farcall")) {
        // An existing directory in the home means that the other candidate could not be used at some time. It stays
        // preferred, so that new processes find the running ones.
        let at = if refuge.exists() { 0 } else { 1 };
        candidates.insert(at, refuge);
    }
    candidates
}

/// Returns the candidates for files in memory, best first.
fn in_memory(root: &Path, user: u32, session: Option<PathBuf>) -> Vec<PathBuf> {
    let of_session = session.map(|session| session.join("farcall"));
    of_session.into_iter().chain([root.join(format!("dev/shm/farcall-{user}"))]).collect()
}

fn first_of(candidates: &[PathBuf], user: u32) -> Result<PathBuf, String> {
    let mut refused = Vec::new();
    for path in candidates {
        match make_own(path, user) {
            Ok(()) => return Ok(path.clone()),
            Err(why) => refused.push(format!("{}: {why}", path.display())),
        }
    }
    Err(refused.join("; "))
}

/// Creates a directory that only this user can change, or checks that the existing one is such.
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
    // The directory may exist on a file system that is read-only now.
    fs::accessat(&directory, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|e| e.to_string())
}

fn open_directory(at: impl std::os::fd::AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(at, path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn is_open_to_others(stat: &Stat, how: Mode) -> bool {
    Mode::from_raw_mode(stat.st_mode).intersects(how)
}

/// Returns the home directory of a user according to the text of `/etc/passwd`.
fn home_directory(users: &str, user: u32) -> Option<PathBuf> {
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_it = fields.get(2)?.parse() == Ok(user);
        is_it.then(|| fields.get(5).filter(|home| home.starts_with('/')).map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    /// A root directory of the test, with `tmp` and a home, removed when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("farcall-own-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&root);
            for directory in ["tmp", "dev/shm", "home", "session"] {
                std::fs::create_dir_all(root.join(directory)).unwrap();
            }
            for shared in ["tmp", "dev/shm"] {
                std::fs::set_permissions(root.join(shared), std::fs::Permissions::from_mode(0o1777)).unwrap();
            }
            Self(root)
        }

        fn place(&self) -> Result<PathBuf, String> {
            let user = process::geteuid().as_raw();
            first_of(&lasting(&self.0, user, Some(self.0.join("home"))), user)
        }

        fn place_in_memory(&self) -> Result<PathBuf, String> {
            let user = process::geteuid().as_raw();
            first_of(&in_memory(&self.0, user, Some(self.0.join("session"))), user)
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
    fn ignores_the_environment_in_the_choice_of_a_directory() {
        let root = Root::new("own");
        assert_eq!(root.place().unwrap(), root.path("tmp/farcall-UID"));
        let made = std::fs::metadata(root.path("tmp/farcall-UID")).unwrap();
        assert_eq!(made.mode() & 0o777, 0o700);
        // Permissions for others, of an earlier version or set by hand, are removed.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(root.path("tmp/farcall-UID"), open).unwrap();
        assert_eq!(root.place().unwrap(), root.path("tmp/farcall-UID"));
        let made = std::fs::metadata(root.path("tmp/farcall-UID")).unwrap();
        assert_eq!(made.mode() & 0o777, 0o700);
    }

    #[test]
    fn avoids_a_directory_that_another_user_created() {
        let root = Root::new("squatted");
        symlink(root.path("home"), root.path("tmp/farcall-UID")).unwrap();
        assert_eq!(root.place().unwrap(), root.path("home/.farcall"));
        // Processes that start later find those that run already.
        std::fs::remove_file(root.path("tmp/farcall-UID")).unwrap();
        assert_eq!(root.place().unwrap(), root.path("home/.farcall"));
    }

    /// Root can write in spite of permissions; a test in a guest with a read-only file system covers this check for
    /// root.
    #[test]
    fn avoids_a_directory_that_is_not_writable() {
        let root = Root::new("read-only");
        let first = root.path("tmp/farcall-UID");
        std::fs::create_dir(&first).unwrap();
        std::fs::set_permissions(&first, std::fs::Permissions::from_mode(0o500)).unwrap();
        let place = if process::geteuid().is_root() { first } else { root.path("home/.farcall") };
        assert_eq!(root.place().unwrap(), place);
    }

    #[test]
    fn names_each_candidate_if_none_is_usable() {
        let root = Root::new("none");
        for (name, mode) in [("tmp", 0o777), ("home", 0o775)] {
            std::fs::set_permissions(root.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let error = root.place().unwrap_err();
        assert!(error.contains("tmp/farcall-") && error.contains("home/.farcall"), "{error}");
    }

    #[test]
    fn skips_a_memory_directory_that_another_user_created() {
        let root = Root::new("memory");
        assert_eq!(root.place_in_memory().unwrap(), root.path("session/farcall"));
        std::fs::remove_dir(root.path("session/farcall")).unwrap();
        symlink(root.path("home"), root.path("session/farcall")).unwrap();
        assert_eq!(root.place_in_memory().unwrap(), root.path("dev/shm/farcall-UID"));
        // Another user's directory in one that is writable for all users; only root can create this situation.
        std::fs::remove_dir(root.path("dev/shm/farcall-UID")).unwrap();
        std::fs::create_dir(root.path("dev/shm/farcall-UID")).unwrap();
        if std::os::unix::fs::chown(root.path("dev/shm/farcall-UID"), Some(65_534), None).is_ok() {
            let error = root.place_in_memory().unwrap_err();
            assert!(error.contains("it belongs to user 65534"), "{error}");
        }
    }

    #[test]
    fn finds_home_directories_by_user_number() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:1000::/srv/alice:\nnobody:x:7:7:::\n";
        assert_eq!(home_directory(users, 1000), Some(PathBuf::from("/srv/alice")));
        assert_eq!(home_directory(users, 0), Some(PathBuf::from("/root")));
        assert_eq!(home_directory(users, 7).or(home_directory(users, 8)), None);
    }
}
