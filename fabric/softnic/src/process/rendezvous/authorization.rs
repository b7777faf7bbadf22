//! Authorization of peer processes: those of the same user, and members of a group if one is configured.
//!
//! A group member may use whatever processes of the same user share, except the address space: it accesses memory of
//! `reg_mr` through this process.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use farcall_shm::trusted_variable;
use farcall_verbs::{Error, Result};
use rustix::process;

use super::socket::credentials;

/// Environment variable with a group, by name or number, whose members may connect to each other's processes.
const GROUP_VARIABLE: &str = "FARCALL_GROUP";

/// Reason for which other users are refused.
const ONE_USER: &str = "only processes of one user connect, unless FARCALL_GROUP names a group of both";

/// Number that the kernel reports for users and groups that have none in this user namespace.
const OVERFLOW_ID: u32 = 65_534;

/// Trust level of an authorized process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrustLevel {
    SameUser,
    SameGroup,
}

/// Returns the number of a group from the text of `/etc/group`.
fn find_group(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Returns the number of the group that `FARCALL_GROUP` names, whose members may connect to each other's processes;
/// `None` if the variable is not set.
///
/// # Errors
/// Returns an error if there is no group of that name.
pub fn configured_group() -> Result<Option<u32>> {
    static GROUP: OnceLock<Result<Option<u32>, String>> = OnceLock::new();
    let group = GROUP.get_or_init(|| {
        let Some(name) = trusted_variable(GROUP_VARIABLE) else {
            return Ok(None);
        };
        let name = name.to_string_lossy().into_owned();
        let known = || find_group(&std::fs::read_to_string("/etc/group").unwrap_or_default(), &name);
        name.parse().ok().or_else(known).map(Some).ok_or(name)
    });
    group.clone().map_err(|name| {
        Error::invalid(
            "read FARCALL_GROUP",
            format!("{name:?} is neither a number nor a group of /etc/group"),
        )
    })
}

/// Returns whether every user has a number in this namespace, so that none is mistaken for another.
fn all_users_are_mapped(map: &str) -> bool {
    let mut lines = map.lines();
    let first: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    first == ["0", "0", "4294967295"]
}

/// Returns whether `theirs` is certainly the same user or group as `ours`.
fn is_same_id(theirs: u32, ours: u32, map: &str) -> bool {
    theirs == ours
        && (theirs != OVERFLOW_ID || all_users_are_mapped(&std::fs::read_to_string(map).unwrap_or_default()))
}

/// Returns the supplementary groups of the other end.
fn groups_of(socket: BorrowedFd<'_>) -> Vec<u32> {
    const SO_PEERGROUPS: libc::c_int = 59;
    let mut groups = vec![0_u32; 65_536];
    let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `groups`, which has that size, and stores the number of bytes in
    // `len`.
    let result = unsafe {
        let place = groups.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERGROUPS, place, &raw mut len)
    };
    groups.truncate(if result == 0 { len as usize / size_of::<u32>() } else { 0 });
    groups
}

/// Checks that the process at the other end and this process are authorized to connect.
///
/// # Errors
/// Returns an error that names the other user and the remedy.
pub(crate) fn authorize_peer(socket: BorrowedFd<'_>, peer: &str) -> Result<TrustLevel> {
    const OP: &str = "check a peer's credentials";
    let theirs = credentials(socket)?;
    let ours = process::geteuid().as_raw();
    if is_same_id(theirs.uid, ours, "/proc/self/uid_map") {
        return Ok(TrustLevel::SameUser);
    }
    let refuse = |why: String| {
        let unmapped =
            if theirs.uid == OVERFLOW_ID { " (or one without a number in our user namespace)" } else { "" };
        let what = format!("it runs as user {}{unmapped}, we as {ours}: {why}", theirs.uid);
        Err(Error::Peer { operation: OP, peer: peer.into(), what })
    };
    let Some(group) = configured_group()? else {
        return refuse(ONE_USER.into());
    };
    let is_member = |gid: u32| is_same_id(gid, group, "/proc/self/gid_map");
    if is_member(theirs.gid) || groups_of(socket).into_iter().any(is_member) {
        return Ok(TrustLevel::SameGroup);
    }
    refuse(format!("it is no member of the group {group} that FARCALL_GROUP names"))
}

/// Checks that processes of a user may connect, as far as the user number shows: members of a group are checked by
/// their sockets.
///
/// # Errors
/// Returns an error that names the user and the remedy.
pub(crate) fn authorize_user(user: u32) -> Result<()> {
    let ours = process::geteuid().as_raw();
    if is_same_id(user, ours, "/proc/self/uid_map") || configured_group()?.is_some() {
        return Ok(());
    }
    let what = format!("it runs as user {user}, we as {ours}: {ONE_USER}");
    Err(Error::Peer { operation: "check a client's user", peer: "a client".into(), what })
}

/// Returns whether a user is certainly the one that this process runs as.
pub(crate) fn is_own_user(user: u32) -> bool {
    is_same_id(user, process::geteuid().as_raw(), "/proc/self/uid_map")
}

/// Checks that the process at the other end of a socket is authorized. For code that connects processes of the software
/// RNIC over sockets of its own.
///
/// # Errors
/// Returns an error that names the other user and the remedy.
pub fn check_peer(socket: BorrowedFd<'_>, peer: &str) -> Result<()> {
    authorize_peer(socket, peer).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    #[test]
    fn groups_are_found_by_name() {
        let groups = "root:x:0:\nrdma:x:4242:alice,bob\nbroken\nworse:x:many:\n";
        assert_eq!(find_group(groups, "rdma"), Some(4242));
        for unknown in ["rdm", "broken", "worse", "alice", ""] {
            assert_eq!(find_group(groups, unknown), None, "{unknown}");
        }
    }

    #[test]
    fn users_without_a_number_are_not_taken_for_each_other() {
        assert!(all_users_are_mapped("         0          0 4294967295\n"));
        for partial in ["", "         0       1000          1\n", "0 100000 65536\n"] {
            assert!(!all_users_are_mapped(partial), "{partial}");
        }
        assert!(is_same_id(7, 7, "/dev/null") && !is_same_id(7, 8, "/dev/null"));
        assert!(!is_same_id(OVERFLOW_ID, OVERFLOW_ID, "/dev/null"), "two unknown users are not one");
    }

    #[test]
    fn we_are_our_own_user() {
        let (here, _there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(authorize_peer(here.as_fd(), "ourselves").unwrap(), TrustLevel::SameUser);
        let ours = process::geteuid().as_raw();
        assert!(authorize_user(ours).is_ok() && authorize_user(ours + 1).is_err());
    }
}
